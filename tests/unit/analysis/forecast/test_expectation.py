"""From places to what to expect: both averages, the best K, and the verdict with its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import theory
from toolkit.analysis.forecast.estimate import Estimate
from toolkit.analysis.forecast.expectation import Expectation, expect
from toolkit.analysis.forecast.rounds import Places, judge
from toolkit.sampling import adjust, draw


def text(overlap: list[float], given_token: list[float] | None = None, own: bool = True) -> Places:
    """A text with these places; `own`: as surprising as the target's own."""
    n = len(overlap)
    chances = overlap if given_token is None else given_token
    surprise = np.zeros(n) if own else np.full(n, np.inf)
    return Places(np.array(overlap), np.array(chances), np.ones(n), surprise, np.ones(n))


def steady(alpha: float, c: float | None, k: int = 8, places: int = 200) -> Expectation:
    """Every place keeps its draft with chance alpha."""
    return expect([text([alpha] * places)] * 5, k, c)


def values(found: list[Estimate]) -> list[float]:
    return [one.value for one in found]


class TestSteadyAcceptance:
    """Where all places are alike, all is as the closed forms say."""

    @given(st.floats(0.05, 1), st.floats(0, 1))
    def test_the_best_k_is_that_of_theory(self, alpha: float, c: float) -> None:
        best = steady(alpha, c, k=4, places=30).best
        assert best is not None
        assert best[1].value == pytest.approx(theory.best_k(alpha, c, most=4)[1])

    def test_tokens_per_step_are_those_of_theory(self) -> None:
        found = [one.tokens_per_step.value for one in steady(0.7, None).lengths]
        assert found == pytest.approx([theory.expected_tokens(0.7, k) for k in range(1, 9)])

    def test_both_averages_agree_at_every_position(self) -> None:
        found = steady(0.7, None)
        assert values(found.everywhere) == pytest.approx(values(found.stepping))

    def test_a_draft_that_is_always_kept_gives_k_plus_1_tokens(self) -> None:
        assert steady(1.0, 0.0).lengths[-1].tokens_per_step.value == 9

    def test_a_draft_that_is_never_kept_has_no_second_position(self) -> None:
        assert values(steady(0.0, 0.1).stepping) == [0.0]


class TestHardAndEasyPlaces:
    """Kept, hard, kept, hard ... for certain: a round of 8 keeps the first draft of its text alone."""

    alternating = text([1.0, 0.0] * 50)

    def test_an_average_over_all_places_keeps_half(self) -> None:
        found = expect([self.alternating], 8, None)
        assert (found.predicted.value, found.everywhere[0].value) == (0.5, 0.5)

    def test_rounds_of_eight_always_start_in_the_easy_place_behind_the_hard_one(self) -> None:
        assert expect([self.alternating], 8, None).acceptance.value == 1.0

    def test_a_round_starts_in_the_place_behind_the_rejected_one(self) -> None:
        """Easy, then three hard: the first of these ends the round of the easy one, the others have their own."""
        found = expect([text([1.0, 0.0, 0.0, 0.0] * 25)], 8, None)
        assert found.acceptance.value == pytest.approx(25 / 75)

    def test_the_token_that_followed_says_where_rounds_start(self) -> None:
        """Two alike places of chance 1/2; that the first draft was lost is known from the text."""
        known = expect([text([0.5, 1.0], given_token=[0.0, 1.0])], 2, None)
        assert known.acceptance == Estimate(0.75, known.acceptance.low, known.acceptance.high, 2.0)

    def test_of_a_foreign_text_the_overlap_says_it(self) -> None:
        foreign = expect([text([0.5, 1.0], given_token=[0.0, 1.0], own=False)], 2, None)
        assert foreign.acceptance.n == pytest.approx(1.5)

    def test_of_a_foreign_text_it_is_no_exact_stepping(self) -> None:
        assert not expect([text([0.5, 1.0], own=False)], 2, None).exact

    def test_a_round_longer_than_the_texts_is_left_out(self) -> None:
        assert [one.k for one in expect([text([0.9] * 3)], 8, None).lengths] == [1, 2, 3]

    def test_the_rounds_of_a_loop_are_counted_by_position(self) -> None:
        found = expect([text([0.5] * 9)] * 2, 3, None, [[(3, 3), (3, 0), (1, 1)], [(3, 1), (2, 2)]])
        assert found.loop is not None
        assert [(one.value, one.n) for one in found.loop] == [(0.8, 5), (pytest.approx(2 / 3), 3), (1.0, 1)]


class TestStepping:
    def test_it_is_what_the_rule_does_round_after_round(self) -> None:
        """A text drawn place by place by the rule itself, its rounds counted; p and q of each place at random."""
        generator = np.random.default_rng(2)
        p = adjust(np.random.default_rng(3).normal(0, 1.5, (6000, 5)))
        q = adjust(np.log(p) + np.random.default_rng(4).normal(0, 1, p.shape))
        k, rounds, tokens, place = 3, 0, [], 0
        kept_first = 0
        while place < len(p):
            rounds, position = rounds + 1, 0
            while place < len(p):
                token = draw(p[place], generator)
                keeps = position < k and generator.random() < min(1.0, q[place, token] / p[place, token])
                kept_first += keeps and position == 0
                tokens.append(token)
                place, position = place + 1, position + 1
                if not keeps:
                    break
        found = expect([judge(p, q, np.array(tokens), generator)], k, None)
        assert found.exact
        spread = np.sqrt(0.25 / rounds)
        assert found.acceptance.value == pytest.approx(kept_first / rounds, abs=5 * spread)
        assert found.acceptance.n == pytest.approx(rounds, rel=0.05)


class TestVerdict:
    @pytest.mark.parametrize(
        ("alpha", "c", "verdict"),
        [(0.49, 0.21, "stop"), (0.51, 0.21, "pays"), (0.49, 0.2, "pays"), (0.05, 0.15, "costs"), (0.1, 0.9, "stop")],
    )
    def test_stop_is_said_under_a_half_where_a_draft_step_costs_over_a_fifth(
        self, alpha: float, c: float, verdict: str
    ) -> None:
        assert steady(alpha, c).verdict == verdict

    def test_an_interval_that_holds_1_decides_nothing(self) -> None:
        mixed = [text([alpha] * 40) for alpha in (0.05, 0.35, 0.1, 0.3, 0.2)]
        assert expect(mixed, 4, 0.2).verdict == "inconclusive"

    def test_without_c_there_is_none(self) -> None:
        assert steady(0.4, None).verdict is None

    def test_rounds_decide_not_the_average_over_all_places(self) -> None:
        """Four hard places whose drafts were lost, then two easy ones. The first hard place ends the easy ones' round,
        so rounds start in three hard places and an easy one: 1.9 of 4, where all places have 3.2 of 6.
        """
        places = text([0.3] * 4 + [1.0] * 2, given_token=[0.0] * 4 + [1.0] * 2)
        found = expect([Places(*(np.tile(getattr(places, name), 40) for name in Places.__slots__))] * 5, 8, 0.25)
        assert found.predicted.value == pytest.approx(3.2 / 6)
        assert found.acceptance.value == pytest.approx(1.9 / 4, abs=0.005)  # the first text starts in a hard place
        assert found.verdict == "stop"

    @given(st.floats(0.05, 0.95))
    def test_at_the_break_even_the_best_speedup_is_1(self, alpha: float) -> None:
        c, k = steady(alpha, None, k=3, places=20).break_even
        assert theory.speedup(alpha, k, c) == pytest.approx(1)
        assert theory.best_k(alpha, c, most=3)[1] == pytest.approx(1)

    def test_json_has_numbers_and_names_the_best_k(self) -> None:
        found = steady(0.8, 0.1)
        assert (found.as_json()["stepping"]["best_k"], found.as_json()["verdict"]) == (6, "pays")

    def test_json_without_c_has_no_speedup(self) -> None:
        found = steady(0.8, None).as_json()
        assert (found["verdict"], found["stepping"]["speedup"], found["everywhere"]["best_k"]) == (None, None, None)
