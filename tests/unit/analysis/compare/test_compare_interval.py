"""Ratios of sums with jackknife intervals: against a plain loop, by simulation, and where they say nothing."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from toolkit.analysis.compare.interval import ENOUGH_PROMPTS, Estimate, Floats, Ratio, paired, single, unpaired

REPETITIONS = 400
PROMPTS = 24  # of one simulated contender
DRAFTED = st.integers(1, 40)
Counts = list[tuple[int, int, int, int]]  # a prompt: drafted and accepted of one contender, then of the other
PAIRS = st.lists(
    st.tuples(DRAFTED, DRAFTED, st.floats(0, 1), st.floats(0, 1)).map(
        lambda one: (one[0], round(one[0] * one[2]), one[1], round(one[1] * one[3]))
    ),
    min_size=2,
    max_size=12,
)


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def sides(counts: Counts) -> tuple[Ratio, Ratio]:
    columns = [floats(*column) for column in zip(*counts, strict=True)]
    return Ratio(columns[1], columns[0]), Ratio(columns[3], columns[2])


def looped(leave_out: Callable[[int], float], count: int) -> float:
    """The delete-one jackknife's variance, a prompt at a time (Cochran 1977, 6.17)."""
    each = [leave_out(i) for i in range(count)]
    mean = sum(each) / count
    return (count - 1) / count * sum((one - mean) ** 2 for one in each)


def rate_without(counts: Counts, side: int, left_out: int) -> float:
    rest = [one for number, one in enumerate(counts) if number != left_out]
    return sum(one[side + 1] for one in rest) / sum(one[side] for one in rest)


def half(found: Estimate | None) -> float:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return (found.high - found.low) / 2


def quantile(freedom: float) -> float:
    return float(stats.t.ppf(0.975, freedom))


class TestRatio:
    def test_it_is_of_the_sums_and_no_mean_of_ratios(self) -> None:
        assert Ratio(floats(1, 10), floats(1, 40)).value == 11 / 41

    def test_one_is_added_to_a_length(self) -> None:
        assert Ratio(floats(3, 5), floats(2, 2), plus_one=True).value == 3.0

    def test_it_has_no_value_where_nothing_was_drafted(self) -> None:
        assert Ratio(floats(0, 0), floats(0, 0)).value is None

    @pytest.mark.parametrize(
        ("of", "expected"), [(single, 11 / 41), (lambda one: paired(one, Ratio(floats(0, 5), floats(5, 5))), -19 / 82)]
    )
    def test_an_estimate_is_of_the_sums_too(self, of: Callable[[Ratio], Estimate | None], expected: float) -> None:
        found = of(Ratio(floats(1, 10), floats(1, 40)))
        assert found is not None
        assert found.value == pytest.approx(expected)


class TestAgainstAPlainLoop:
    @given(PAIRS)
    def test_one_ratio(self, counts: Counts) -> None:
        n = len(counts)
        expected = quantile(n - 1) * looped(lambda i: rate_without(counts, 0, i), n) ** 0.5
        assert half(single(sides(counts)[0])) == pytest.approx(expected, abs=1e-9)

    @given(PAIRS)
    def test_a_paired_difference_leaves_a_prompt_out_of_both(self, counts: Counts) -> None:
        n = len(counts)
        variance = looped(lambda i: rate_without(counts, 0, i) - rate_without(counts, 2, i), n)
        assert half(paired(*sides(counts))) == pytest.approx(quantile(n - 1) * variance**0.5, abs=1e-9)

    @given(PAIRS)
    def test_variances_of_an_unpaired_difference_add(self, counts: Counts) -> None:
        n = len(counts)
        ours, theirs = (looped(partial(rate_without, counts, side), n) for side in (0, 2))
        weights = (ours**2 + theirs**2) / (n - 1)
        freedom = (ours + theirs) ** 2 / weights if weights > 0 else n - 1
        expected = quantile(freedom) * (ours + theirs) ** 0.5
        assert half(unpaired(*sides(counts))) == pytest.approx(expected, rel=1e-6, abs=1e-9)

    @given(PAIRS, st.integers(0, 5))
    def test_prompts_without_a_draft_change_nothing(self, counts: Counts, idle: int) -> None:
        assert paired(*sides(counts + [(0, 0, 0, 0)] * idle)) == paired(*sides(counts))


class TestAnOrder:
    @given(PAIRS)
    def test_a_contender_against_itself_differs_by_0(self, counts: Counts) -> None:
        one = sides(counts)[0]
        found = paired(one, one)
        assert found is not None
        assert (found.value, found.low, found.high) == (0, 0, 0)

    def test_against_itself_no_difference_is_seen(self) -> None:
        one = Ratio(floats(*range(ENOUGH_PROMPTS)), floats(*[20] * ENOUGH_PROMPTS))
        found = paired(one, one)
        assert found is not None
        assert found.word == "no difference seen"

    @pytest.mark.parametrize("between", [paired, unpaired])
    @given(counts=PAIRS)
    def test_turned_around_the_sign_flips(
        self, between: Callable[[Ratio, Ratio], Estimate | None], counts: Counts
    ) -> None:
        one, other = sides(counts)
        there, back = between(one, other), between(other, one)
        assert there is not None
        assert back is not None
        assert back.value == pytest.approx(-there.value, abs=1e-12)
        assert half(back) == pytest.approx(half(there), abs=1e-12)

    @given(PAIRS)
    def test_the_plus_one_of_a_length_cancels(self, counts: Counts) -> None:
        plain = sides(counts)
        longer = [Ratio(one.y, one.x, plus_one=True) for one in plain]
        assert half(paired(*longer)) == pytest.approx(half(paired(*plain)), abs=1e-9)


class TestTheWord:
    @pytest.mark.parametrize(
        ("low", "high", "word"), [(0.1, 0.3, "more"), (-0.3, -0.1, "less"), (-0.1, 0.3, "no difference seen")]
    )
    def test_it_says_where_the_interval_lies(self, low: float, high: float, word: str) -> None:
        assert Estimate((low + high) / 2, low, high, ENOUGH_PROMPTS).word == word

    def test_too_few_prompts_are_inconclusive_however_clear(self) -> None:
        assert Estimate(0.2, 0.1, 0.3, ENOUGH_PROMPTS - 1).word == "inconclusive"

    def test_without_an_interval_it_is_inconclusive(self) -> None:
        assert Estimate(0.2, None, None, 100).word == "inconclusive"

    def test_prompts_in_which_neither_drafted_do_not_make_it_enough(self) -> None:
        told, idle = ENOUGH_PROMPTS - 1, 50
        one = Ratio(floats(*[9] * told, *[0] * idle), floats(*[10] * told, *[0] * idle))
        other = Ratio(floats(*[1] * told, *[0] * idle), floats(*[10] * told, *[0] * idle))
        found = paired(one, other)
        assert found is not None
        assert (found.prompts, found.word) == (told, "inconclusive")


class TestWhatCannotBeTold:
    SOME, NOTHING = Ratio(floats(3, 4), floats(5, 5)), Ratio(floats(0, 0), floats(0, 0))

    def test_a_ratio_of_nothing_is_none(self) -> None:
        assert single(self.NOTHING) is None

    @pytest.mark.parametrize("between", [paired, unpaired])
    @pytest.mark.parametrize(("one", "other"), [(SOME, NOTHING), (NOTHING, SOME), (NOTHING, NOTHING)])
    def test_a_difference_from_nothing_is_none(
        self, between: Callable[[Ratio, Ratio], Estimate | None], one: Ratio, other: Ratio
    ) -> None:
        assert between(one, other) is None

    def test_one_prompt_has_a_value_and_no_interval(self) -> None:
        assert single(Ratio(floats(3), floats(4))) == Estimate(0.75, None, None, 1)

    def test_one_prompt_of_each_has_a_difference_and_no_interval(self) -> None:
        assert unpaired(Ratio(floats(3), floats(4)), Ratio(floats(1), floats(4))) == Estimate(0.5, None, None, 1)

    def test_where_all_drafts_are_in_one_prompt_there_is_no_interval(self) -> None:
        one, other = Ratio(floats(4, 0, 0), floats(8, 0, 0)), Ratio(floats(2, 3, 4), floats(8, 8, 8))
        assert paired(one, other) == Estimate(0.5 - 9 / 24, None, None, 3)

    def test_the_smaller_number_of_prompts_is_told_of_an_unpaired_difference(self) -> None:
        found = unpaired(Ratio(floats(1, 2, 3), floats(5, 5, 5)), Ratio(floats(1, 2), floats(5, 5)))
        assert found is not None
        assert found.prompts == 2


def drawn(rng: np.random.Generator, easy: Floats, gain: float, share: float) -> Ratio:
    """Drafts of 4 tokens in 1 to 30 steps a prompt, kept at `easy` + `gain`; only a `share` of the prompts drafts."""
    drafted = 4 * rng.integers(1, 31, len(easy)) * (rng.random(len(easy)) < share)
    return Ratio(rng.binomial(drafted, easy + gain).astype(float), drafted.astype(float))


def coverage(truth: float, draw: Callable[[np.random.Generator], Estimate | None]) -> float:
    """Share of the intervals that hold `truth`, of those that are there."""
    rng = np.random.default_rng(20261201)
    held = []
    for _ in range(REPETITIONS):
        found = draw(rng)
        if found is not None and found.low is not None and found.high is not None:
            held.append(found.low <= truth <= found.high)
    assert len(held) > REPETITIONS / 2
    return sum(held) / len(held)


def prompts(rng: np.random.Generator) -> Floats:
    """How easy each prompt is for both: 0.1 to 0.8, 0.45 in the mean."""
    return 0.1 + 0.7 * rng.beta(2, 2, PROMPTS)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
class TestCoverage:
    """95 % intervals hold the truth about 95 times in 100, also of lookups, which draft in few of the prompts."""

    def test_of_one_ratio(self, share: float) -> None:
        assert 0.90 <= coverage(0.45, lambda rng: single(drawn(rng, prompts(rng), 0.0, share))) <= 0.99

    def test_of_a_paired_difference(self, share: float) -> None:
        def draw(rng: np.random.Generator) -> Estimate | None:
            easy = prompts(rng)
            return paired(drawn(rng, easy, 0.1, share), drawn(rng, easy, 0.0, share))

        assert 0.90 <= coverage(0.1, draw) <= 0.99

    def test_of_an_unpaired_difference(self, share: float) -> None:
        def draw(rng: np.random.Generator) -> Estimate | None:
            return unpaired(drawn(rng, prompts(rng), 0.1, share), drawn(rng, prompts(rng), 0.0, share))

        assert 0.90 <= coverage(0.1, draw) <= 0.99


def test_pairing_narrows_the_interval_of_prompts_that_are_easy_for_both() -> None:
    rng = np.random.default_rng(1)
    easy = prompts(rng)
    one, other = drawn(rng, easy, 0.1, 1.0), drawn(rng, easy, 0.0, 1.0)
    assert half(paired(one, other)) < half(unpaired(one, other))
