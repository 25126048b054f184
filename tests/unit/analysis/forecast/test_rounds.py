"""Where rounds start: against every outcome of the rule written out, and against chances worked out by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.forecast.estimate import IntArray
from toolkit.analysis.forecast.rounds import UNKNOWN, Places, judge, reach, written_by_target
from toolkit.sampling import FloatArray, adjust, draw

chances = st.lists(st.floats(0, 1), min_size=1, max_size=7)
logits = st.lists(st.floats(-4, 4), min_size=4, max_size=4)


def rows(*values: list[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)


def tokens(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def reached_by_outcomes(kept: list[float], k: int) -> FloatArray:
    """`reach` by its meaning: for each way the rule can decide at the places, its chance and where rounds then are."""
    found = np.zeros((len(kept), k))
    for decisions in product([True, False], repeat=len(kept)):
        chance = float(np.prod([a if keeps else 1 - a for a, keeps in zip(kept, decisions, strict=True)]))
        position = 0
        for place, keeps in enumerate(decisions):
            if position == k:  # the bonus token: no draft was judged here
                position = 0
                continue
            found[place, position] += chance
            position = position + 1 if keeps else 0
    return found


class TestReach:
    @given(chances, st.integers(1, 4))
    def test_it_sums_over_every_outcome(self, kept: list[float], k: int) -> None:
        assert reach(np.array(kept), k) == pytest.approx(reached_by_outcomes(kept, k))

    def test_the_next_round_starts_behind_a_rejection(self) -> None:
        assert reach(np.array([0.0, 0.0]), 3)[:, 0].tolist() == [1, 1]

    def test_the_place_of_a_bonus_token_has_no_draft(self) -> None:
        assert reach(np.array([1.0, 1.0, 1.0, 1.0]), 2).tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]

    def test_everywhere_a_round_starts_at_every_place(self) -> None:
        assert reach(np.array([0.5, 0.5, 0.0]), 2, everywhere=True).tolist() == [[1, 0], [1, 0.5], [1, 0.5]]


X = 0.5


@pytest.fixture(scope="module")
def places() -> Places:
    """Of a long text of the two-state target; the means below have standard errors of 0.0018 and less."""
    text = (np.random.default_rng(3).random(20_000) > X).astype(np.int64)
    before = np.concatenate([[1], text[:-1]])
    p = np.tile([X, 1 - X], (len(text), 1))
    q = np.where(before[:, None] == 1, [1.0, 0.0], p)
    return judge(p, q, text, rng())


class TestHardPlacesFollowRejections:
    """Two states. After token 0 comes an easy place, where q = p; after token 1 a hard one, where q is sure of token 0.

    p is (x, 1 - x) everywhere. A hard place keeps its draft with chance x; a rejected one is replaced by token 1, which
    leads to a hard place again, as a rejection anywhere does.
    """

    def acceptance(self, places: Places, k: int, everywhere: bool = False) -> float:
        """Of first drafts."""
        start = reach(places.given_token, k, everywhere)[:, 0]
        return float((start * places.overlap).sum() / start.sum())

    def test_an_average_over_all_places_says_three_quarters(self, places: Places) -> None:
        average = X * 1 + (1 - X) * X
        assert average == 0.75
        assert self.acceptance(places, 1, everywhere=True) == pytest.approx(average, abs=0.009)

    def test_long_rounds_start_behind_rejections_alone_and_keep_half(self, places: Places) -> None:
        assert self.acceptance(places, 64) == pytest.approx(X, abs=0.009)

    def test_rounds_of_one_start_in_a_hard_place_two_times_of_three(self, places: Places) -> None:
        """A share h of rounds starts hard. A kept draft is followed by a bonus token, so the next place is hard with
        chance 1 - x; a rejection makes it hard: h = (1 - h)(1 - x) + h (x (1 - x) + 1 - x) = (1 - x) / (1 - x + x^2).
        """
        hard = (1 - X) / (1 - X + X**2)
        assert hard == pytest.approx(2 / 3)
        assert self.acceptance(places, 1) == pytest.approx(1 - hard * (1 - X), abs=0.009)


class TestJudge:
    @given(logits, logits)
    def test_the_overlap_is_the_same_with_target_and_draft_exchanged(self, a: list[float], b: list[float]) -> None:
        p, q = adjust([a]), adjust([b])
        assert judge(p, q, tokens(0), rng()).overlap == judge(q, p, tokens(0), rng()).overlap

    @given(logits, logits)
    def test_the_overlap_lies_in_0_to_1(self, a: list[float], b: list[float]) -> None:
        assert 0 <= judge(adjust([a]), adjust([b]), tokens(0), rng()).overlap[0] <= 1

    @given(logits)
    def test_equal_distributions_overlap_wholly(self, a: list[float]) -> None:
        assert judge(adjust([a]), adjust([a]), tokens(0), rng()).overlap[0] == pytest.approx(1, abs=1e-12)

    @given(logits, logits)
    def test_what_does_not_overlap_is_their_total_variation(self, a: list[float], b: list[float]) -> None:
        p, q = adjust([a]), adjust([b])
        missing = 1 - judge(p, q, tokens(0), rng()).overlap[0]
        assert missing == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-12)

    @given(logits, logits)
    def test_the_chances_given_each_token_average_to_the_overlap(self, a: list[float], b: list[float]) -> None:
        """P(kept) = sum over y of p(y) P(kept | y): what makes stepping along a text exact."""
        p, q = adjust(a), adjust(b)
        places = judge(np.tile(p, (4, 1)), np.tile(q, (4, 1)), tokens(0, 1, 2, 3), rng())
        assert float((p * places.given_token).sum()) == pytest.approx(places.overlap[0])

    def test_the_rule_keeps_what_the_overlap_says(self) -> None:
        p, q = adjust([[0.0, 1.0, 2.0, -1.0]] * 10_000), adjust([[1.0, 1.0, 0.0, 0.5]] * 10_000)
        places = judge(p, q, np.zeros(10_000, dtype=np.int64), rng())
        alpha = float(places.overlap[0])
        bound = 5 * np.sqrt(alpha * (1 - alpha) / 10_000)  # passed by chance once in 1.7 million
        assert float(places.kept.mean()) == pytest.approx(alpha, abs=bound)

    def test_without_the_token_its_chance_is_unknown(self) -> None:
        assert np.isnan(judge(rows([0.5, 0.5]), rows([0.1, 0.9]), tokens(UNKNOWN), rng()).given_token[0])

    def test_a_token_that_the_target_never_draws_has_no_chance(self) -> None:
        assert np.isnan(judge(rows([1.0, 0.0]), rows([0.1, 0.9]), tokens(1), rng()).given_token[0])


class TestWrittenByTarget:
    p = adjust(np.random.default_rng(1).normal(0, 2, (1500, 8)))

    def says(self, text: IntArray, p: FloatArray | None = None) -> bool:
        p = self.p if p is None else p
        return written_by_target([judge(p, np.full_like(p, 1 / p.shape[1]), text, rng())])

    def test_draws_from_p_may_be(self) -> None:
        generator = rng()
        assert self.says(tokens(*(draw(row, generator) for row in self.p)))

    def test_likeliest_tokens_are_not(self) -> None:
        assert not self.says(self.p.argmax(axis=1))

    def test_draws_at_another_temperature_are_not(self) -> None:
        generator = rng()
        hotter = adjust(np.log(self.p), temperature=1.5)
        assert not self.says(tokens(*(draw(row, generator) for row in hotter)))

    def test_likeliest_tokens_of_a_greedy_target_are(self) -> None:
        p = adjust(np.log(self.p), temperature=0)
        assert self.says(p.argmax(axis=1), p)

    def test_a_token_of_no_probability_is_not(self) -> None:
        assert not self.says(tokens(0, 1), rows([0.5, 0.5], [1.0, 0.0]))

    def test_unknown_tokens_are_not(self) -> None:
        assert not self.says(tokens(0, UNKNOWN), rows([1.0, 0.0], [1.0, 0.0]))
