"""Rounds along texts, what they predict, and the verdict."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.layers.curve import Enough, Kept, LayerSearch, Point, point, round_cost
from toolkit.theory import expected_tokens_by_position


def kept(*texts: Sequence[int], behind: int = 8) -> Kept:
    """Of each text, how many drafts are kept from each start; `behind` tokens follow the last start."""
    counts = np.array([count for text in texts for count in text])
    text = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    left = np.array([len(text) - at + behind for text in texts for at in range(len(text))])
    return Kept(counts, text, left)


class TestRounds:
    def test_a_round_starts_where_the_last_one_ended(self) -> None:
        # 0, then 1 + 2 drafts to 3, then rejected: 4, 5 and 1 more.
        rounds = kept([2, 9, 9, 0, 0, 1]).rounds(4)
        assert rounds.kept.tolist() == [2, 0, 0, 1]
        assert rounds.tokens.value == 7 / 4

    def test_no_round_keeps_more_than_it_drafts(self) -> None:
        assert kept([8] * 9).rounds(2).kept.tolist() == [2, 2, 2]

    def test_each_text_begins_with_a_round(self) -> None:
        assert kept([5, 0, 0], [0, 5]).rounds(4).kept.tolist() == [4, 0, 4]

    def test_what_stands_behind_an_end_is_not_emitted(self) -> None:
        assert kept([2, 1, 0], behind=0).rounds(2).tokens.value == 3  # not 4: the bonus token would come after the end
        assert kept([1, 0], behind=0).rounds(1).tokens.value == 2

    def test_shares_by_position_are_of_rounds_that_came_so_far(self) -> None:
        assert kept([2, 9, 9, 0, 1, 9, 2]).rounds(3).given == (3 / 4, 2 / 3, 0.0)

    def test_a_position_that_no_round_reached_has_no_share(self) -> None:
        assert kept([0, 0]).rounds(2).given == (0.0, None)

    @given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=30), min_size=2, max_size=6), st.integers(1, 6))
    def test_tokens_per_step_are_those_of_the_closed_form(self, texts: list[list[int]], k: int) -> None:
        rounds = kept(*texts).rounds(k)
        given = [share or 0.0 for share in rounds.given]
        assert rounds.tokens.value == pytest.approx(expected_tokens_by_position(given))

    def test_the_speedup_is_tokens_over_cost(self) -> None:
        assert kept([1] * 20, [1] * 20).rounds(1).speedup(1.6).value == pytest.approx(2 / 1.6)


def test_agreement_counts_every_start() -> None:
    assert kept([2, 0, 1], [0]).agreement.value == 0.5


GOOD, BAD = [[1] * 20] * 8, [[0, 1, 0, 0, 0] * 4] * 8


def made(searched: list[list[int]], held_out: list[list[int]], c: float, layers: int = 2, most: int = 4) -> Point:
    return point(range(layers), c, lambda k: 1 + k * c, kept(*searched), kept(*held_out), most)


class TestPoint:
    def test_the_best_k_is_that_of_the_texts_searched_with(self) -> None:
        one = made([[3] * 24] * 8, BAD, 0.1)
        assert one.k == 3
        assert one.speedup.value < 1

    def test_a_pass_over_more_tokens_that_takes_longer_is_counted(self) -> None:
        cost = round_cost(0.1, lambda tokens: 1 + 0.2 * (tokens - 1))
        one = point([0], 0.1, cost, kept(*GOOD), kept(*GOOD), 1)
        assert one.speedup.value == pytest.approx(2 / (1 + 0.1 + 0.2))


class TestEnough:
    @given(st.lists(st.lists(st.integers(0, 8), min_size=8, max_size=30), min_size=2, max_size=4), st.floats(0.05, 1))
    def test_no_longer_draft_would_have_paid_more_by_average_over_starts(
        self, texts: list[list[int]], c: float
    ) -> None:
        drafts = kept(*texts)
        enough = Enough(c, lambda k: 1 + k * c, drafts.text, drafts.left)
        depth = next((k for k in range(1, 9) if enough(k, np.minimum(drafts.counts, k))), 8)
        speedups = [(1 + np.minimum(drafts.counts, k).mean()) / (1 + k * c) for k in range(1, 9)]
        by_rounds = [drafts.rounds(k).speedup(1 + k * c).value for k in range(1, 9)]
        assert max(speedups[depth - 1 :]) <= max(*speedups[:depth], *by_rounds[:depth]) + 1e-9

    def test_a_draft_that_is_always_kept_goes_on(self) -> None:
        drafts = kept([8] * 20, [8] * 20)
        assert not Enough(0.5, lambda k: 1 + 0.5 * k, drafts.text, drafts.left)(1, np.minimum(drafts.counts, 1))

    def test_a_draft_that_is_seldom_kept_ends_at_once(self) -> None:
        drafts = kept(*BAD)
        assert Enough(0.5, lambda k: 1 + 0.5 * k, drafts.text, drafts.left)(1, drafts.counts)


def found(*points: Point) -> LayerSearch:
    return LayerSearch("lab", "chat", 4, points, "by bytes", "float32", (8, 8), (160, 160), 9, 1.0, 1.0)


class TestVerdict:
    def test_a_set_that_pays(self) -> None:
        search = found(made(GOOD, GOOD, 0.5))
        assert (search.verdict, search.sentence) == (
            "pays",
            "a set pays: the best, 2 of 4 layers with K = 1, predicts 1.33x [1.33, 1.33]",
        )

    def test_no_set_that_pays_is_said_plainly(self) -> None:
        search = found(made(BAD, BAD, 0.5))
        assert search.verdict == "costs"
        assert search.sentence.startswith("no set pays here: the best, 2 of 4 layers with K = 1, predicts 0.8")

    def test_an_interval_that_contains_1_is_open(self) -> None:
        mixed = [[1] * 20, [0] * 20, [1] * 20, [0, 1] * 10, [0] * 20, [1] * 20]
        assert found(made(mixed, mixed, 0.45)).verdict == "inconclusive"

    def test_what_other_texts_say_counts_and_not_those_searched_with(self) -> None:
        assert found(made(GOOD, BAD, 0.5)).verdict == "costs"

    def test_the_best_set_is_chosen_on_the_texts_searched_with(self) -> None:
        lucky, chosen = made(BAD, GOOD, 0.5, layers=1), made(GOOD, BAD, 0.5, layers=2)
        assert found(lucky, chosen).best is chosen


def test_json_keys_are_stable() -> None:
    told = found(made(GOOD, GOOD, 0.5)).as_json()
    assert list(told) == [
        *("target", "prompts", "num_hidden_layers", "verdict", "sentence", "best", "curve", "cost", "precision"),
        *("texts", "places", "evaluations", "seconds", "cpu_seconds"),
    ]
    assert list(told["curve"][0]) == [
        *("kept", "layers", "c", "agreement_searched", "agreement_held_out", "k", "given", "tokens_per_step"),
        *("speedup", "speedup_searched"),
    ]
