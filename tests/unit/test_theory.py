"""The closed forms against the printed values of the lessons, their own edges, and exact arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import theory

SHARES = st.floats(0, 1)
LENGTHS = st.integers(0, 12)
COSTS = st.floats(0, 2)
BELOW_0_OR_ABOVE_1 = [-0.01, 1.01, float("nan"), float("inf")]

# (c, alpha, best speedup as printed, its K), K up to 8: the table of the issue.
BEST = [
    *[(0.10, 0.4, "1.30", 2), (0.10, 0.5, "1.46", 2), (0.10, 0.6, "1.67", 3)],
    *[(0.10, 0.7, "1.98", 4), (0.10, 0.8, "2.47", 6), (0.10, 0.9, "3.40", 8)],
    *[(0.30, 0.4, "1.08", 1), (0.30, 0.5, "1.15", 1), (0.30, 0.6, "1.23", 1)],
    *[(0.30, 0.7, "1.37", 2), (0.30, 0.8, "1.55", 3), (0.30, 0.9, "1.87", 5)],
    *[(0.50, 0.4, "0.93", 1), (0.50, 0.5, "1.00", 1), (0.50, 0.6, "1.07", 1)],
    *[(0.50, 0.7, "1.13", 1), (0.50, 0.8, "1.22", 2), (0.50, 0.9, "1.38", 3)],
    *[(0.05, 0.7, "2.35", 6), (0.25, 0.7, "1.46", 2)],
]
# (c, K, speedup as printed) at alpha 0.4.
AT_ALPHA_04 = [
    *[(0.5, 1, "0.933"), (0.5, 2, "0.780"), (0.5, 4, "0.550"), (0.5, 6, "0.416"), (0.5, 8, "0.333")],
    *[(0.05, 1, "1.333"), (0.05, 2, "1.418"), (0.05, 4, "1.375"), (0.05, 6, "1.280"), (0.05, 8, "1.190")],
]


def exact_speedup(alpha: float, k: int, c: float) -> Fraction:
    a = Fraction(alpha)
    tokens = Fraction(k + 1) if a == 1 else (1 - a ** (k + 1)) / (1 - a)
    return tokens / (1 + k * Fraction(c))


@st.composite
def distributions(draw: st.DrawFn, size: int) -> list[float]:
    weights = draw(st.lists(st.floats(0.001, 1), min_size=size, max_size=size))
    return [weight / sum(weights) for weight in weights]


class TestPrintedValues:
    @pytest.mark.parametrize(("c", "alpha", "printed", "k"), BEST)
    def test_best_speedup(self, c: float, alpha: float, printed: str, k: int) -> None:
        assert f"{theory.best_k(alpha, c)[1]:.2f}" == printed

    @pytest.mark.parametrize(("c", "alpha", "printed", "k"), BEST)
    def test_the_k_at_which_it_is_reached(self, c: float, alpha: float, printed: str, k: int) -> None:
        assert theory.best_k(alpha, c)[0] == k

    @pytest.mark.parametrize(("c", "k", "printed"), AT_ALPHA_04)
    def test_speedup_at_a_given_k(self, c: float, k: int, printed: str) -> None:
        assert f"{theory.speedup(0.4, k, c):.3f}" == printed


class TestAcceptance:
    def test_sum_of_the_smaller_of_each_pair(self) -> None:
        assert theory.acceptance([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]) == pytest.approx(0.6)

    def test_nothing_in_common_is_never_kept(self) -> None:
        assert theory.acceptance([1.0, 0.0], [0.0, 1.0]) == 0.0

    def test_a_draft_that_equals_its_target_is_always_kept(self) -> None:
        assert theory.acceptance([0.25, 0.75], [0.25, 0.75]) == 1.0

    def test_sums_a_little_above_1_give_no_alpha_above_1(self) -> None:
        assert theory.acceptance([0.5, 0.5 + 9e-7], [0.5, 0.5 + 9e-7]) == 1.0

    @given(distributions(5), distributions(5))
    def test_one_less_half_of_their_distance(self, p: list[float], q: list[float]) -> None:
        """Leviathan et al., Lemma 3.3 and Theorem 3.5: the rest is the total variation distance."""
        distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        assert theory.acceptance(p, q) == pytest.approx(1 - distance)

    @given(distributions(5), distributions(5))
    def test_the_same_with_target_and_draft_exchanged(self, p: list[float], q: list[float]) -> None:
        assert theory.acceptance(p, q) == theory.acceptance(q, p)

    @pytest.mark.parametrize(
        ("p", "q", "said"),
        [
            ([0.5, 0.5], [1.0], "not 2 and 1 tokens"),
            ([1.5, -0.5], [0.5, 0.5], "p must not hold a negative"),
            ([0.5, 0.5], [1.5, -0.5], "q must not hold a negative"),
            ([0.5, 0.5 + 2e-6], [0.5, 0.5], "p must sum to 1"),
            ([0.5, 0.5], [0.5, 0.5 - 2e-6], "q must sum to 1"),
            ([float("nan"), 1.0], [0.5, 0.5], "p must not hold"),
            ([], [], "p must sum to 1"),
        ],
    )
    def test_what_is_no_pair_of_distributions_is_refused(self, p: list[float], q: list[float], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            theory.acceptance(p, q)


class TestExpectedTokens:
    @pytest.mark.parametrize("k", [0, 1, 8])
    def test_alpha_0_leaves_the_fix_token(self, k: int) -> None:
        assert theory.expected_tokens(0, k) == 1

    @pytest.mark.parametrize("k", [0, 1, 8])
    def test_alpha_1_keeps_all_and_adds_the_bonus(self, k: int) -> None:
        assert theory.expected_tokens(1, k) == k + 1

    @given(SHARES)
    def test_without_a_draft_it_is_one(self, alpha: float) -> None:
        assert theory.expected_tokens(alpha, 0) == 1

    @given(st.floats(0, 0.999), LENGTHS)
    def test_the_closed_form(self, alpha: float, k: int) -> None:
        assert theory.expected_tokens(alpha, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))

    @given(SHARES, SHARES, LENGTHS)
    def test_does_not_fall_with_alpha(self, one: float, other: float, k: int) -> None:
        low, high = sorted((one, other))
        assert theory.expected_tokens(low, k) <= theory.expected_tokens(high, k)

    @given(SHARES, LENGTHS)
    def test_does_not_fall_with_k(self, alpha: float, k: int) -> None:
        assert theory.expected_tokens(alpha, k) <= theory.expected_tokens(alpha, k + 1)

    @pytest.mark.parametrize("alpha", BELOW_0_OR_ABOVE_1)
    def test_alpha_outside_0_to_1_is_refused_at_any_k(self, alpha: float) -> None:
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            theory.expected_tokens(alpha, 0)

    def test_a_negative_k_is_refused(self) -> None:
        with pytest.raises(ValueError, match="K must be at least 0, not -1"):
            theory.expected_tokens(0.5, -1)


class TestSpeedup:
    @given(SHARES, LENGTHS)
    def test_a_free_draft_gives_all_its_tokens(self, alpha: float, k: int) -> None:
        assert theory.speedup(alpha, k, 0) == theory.expected_tokens(alpha, k)

    @given(SHARES, COSTS)
    def test_no_draft_neither_pays_nor_costs(self, alpha: float, c: float) -> None:
        assert theory.speedup(alpha, 0, c) == 1

    @given(SHARES, LENGTHS, COSTS)
    def test_equals_exact_arithmetic(self, alpha: float, k: int, c: float) -> None:
        assert theory.speedup(alpha, k, c) == pytest.approx(float(exact_speedup(alpha, k, c)))

    @pytest.mark.parametrize("c", [-0.1, float("nan"), float("inf")])
    def test_a_cost_that_cannot_be_is_refused(self, c: float) -> None:
        with pytest.raises(ValueError, match="c must be a finite number of at least 0"):
            theory.speedup(0.5, 1, c)


class TestBestK:
    @given(SHARES, COSTS, st.integers(1, 12))
    def test_none_is_better_and_no_smaller_one_as_good(self, alpha: float, c: float, most: int) -> None:
        best, value = theory.best_k(alpha, c, most)
        rounding = Fraction(1, 10**12)
        every = {k: exact_speedup(alpha, k, c) for k in range(1, most + 1)}
        assert max(every.values()) - every[best] <= rounding
        assert all(every[k] <= every[best] + rounding for k in range(1, best))
        assert value == pytest.approx(float(every[best]))

    def test_the_smaller_of_two_equal_ones(self) -> None:
        assert theory.speedup(0.5, 1, 0.2) == theory.speedup(0.5, 2, 0.2)
        assert theory.best_k(0.5, 0.2) == (1, 1.25)

    def test_drafts_that_are_never_kept_should_be_short(self) -> None:
        assert theory.best_k(0, 0) == (1, 1)

    def test_drafts_that_are_free_and_always_kept_should_be_long(self) -> None:
        assert theory.best_k(1, 0) == (8, 9)

    def test_no_longer_than_asked(self) -> None:
        assert theory.best_k(0.9, 0.1, most=3)[0] == 3

    def test_no_k_to_choose_from_is_refused(self) -> None:
        with pytest.raises(ValueError, match="highest K must be at least 1"):
            theory.best_k(0.5, 0.1, most=0)


class TestBreakEven:
    @given(st.integers(1, 12), st.floats(0, 1))
    def test_the_speedup_there_is_1(self, k: int, c: float) -> None:
        alpha = theory.break_even_alpha(k, c)
        assert alpha is not None
        assert theory.speedup(alpha, k, c) == pytest.approx(1, abs=1e-9)

    @given(st.integers(1, 12), st.floats(0.001, 1))
    def test_a_lower_alpha_costs(self, k: int, c: float) -> None:
        alpha = theory.break_even_alpha(k, c)
        assert alpha is not None
        assert theory.speedup(alpha * (1 - 1e-6), k, c) < 1

    @given(st.integers(1, 12), st.floats(1.001, 10))
    def test_none_where_a_draft_step_costs_more_than_a_target_step(self, k: int, c: float) -> None:
        assert theory.break_even_alpha(k, c) is None

    @given(st.floats(0, 1))
    def test_one_draft_token_must_be_kept_as_often_as_it_costs(self, c: float) -> None:
        """Leviathan et al., Corollary 3.9."""
        assert theory.break_even_alpha(1, c) == pytest.approx(c, abs=1e-12)

    @given(st.integers(1, 12), st.floats(0, 1))
    def test_a_longer_draft_needs_no_less(self, k: int, c: float) -> None:
        shorter, longer = theory.break_even_alpha(k, c), theory.break_even_alpha(k + 1, c)
        assert shorter is not None
        assert longer is not None
        assert longer >= shorter - 1e-12

    @pytest.mark.parametrize(("k", "c", "alpha"), [(0, 0.5, 0), (0, 3, 0), (4, 0, 0), (4, 1, 1)])
    def test_edges(self, k: int, c: float, alpha: float) -> None:
        assert theory.break_even_alpha(k, c) == alpha


class TestByPosition:
    def test_one_and_the_running_products(self) -> None:
        assert theory.expected_tokens_by_position([0.5, 0.8]) == pytest.approx(1 + 0.5 + 0.5 * 0.8)

    def test_no_draft_is_one_token(self) -> None:
        assert theory.expected_tokens_by_position([]) == 1

    def test_nothing_counts_behind_a_position_that_is_never_kept(self) -> None:
        assert theory.expected_tokens_by_position([0.5, 0.0, 1.0]) == 1.5

    @given(SHARES, LENGTHS, COSTS)
    def test_the_same_acceptance_everywhere_is_the_closed_form(self, alpha: float, k: int, c: float) -> None:
        tokens = Fraction(theory.speedup_by_position([alpha] * 12, k, c))
        assert float(tokens) == pytest.approx(theory.speedup(alpha, k, c))
        assert float(tokens) == pytest.approx(float(exact_speedup(alpha, k, c)))

    def test_only_the_positions_of_the_draft_count(self) -> None:
        assert theory.speedup_by_position([0.5, 0.9, 0.9], 1, 0.2) == 1.5 / 1.2

    def test_a_k_beyond_the_measured_positions_is_refused(self) -> None:
        with pytest.raises(ValueError, match="K = 3 lies beyond the 2 measured positions"):
            theory.speedup_by_position([0.5, 0.9], 3, 0.1)

    def test_a_negative_k_is_refused(self) -> None:
        with pytest.raises(ValueError, match="K must be at least 0"):
            theory.speedup_by_position([0.5, 0.9], -1, 0.1)

    @pytest.mark.parametrize("share", BELOW_0_OR_ABOVE_1)
    def test_acceptance_outside_0_to_1_is_refused(self, share: float) -> None:
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            theory.expected_tokens_by_position([0.5, share])

    @given(st.lists(SHARES, min_size=1, max_size=8), COSTS)
    def test_best_k_is_the_best_of_the_measured_ones(self, shares: list[float], c: float) -> None:
        kept, tokens, speedups = Fraction(1), Fraction(1), []
        for k, share in enumerate(shares, start=1):
            kept *= Fraction(share)
            tokens += kept
            speedups.append(tokens / (1 + k * Fraction(c)))
        best, value = theory.best_k_by_position(shares, c)
        assert max(speedups) - speedups[best - 1] <= Fraction(1, 10**12)
        assert value == pytest.approx(float(speedups[best - 1]))

    def test_best_k_is_the_smaller_of_two_equal_ones(self) -> None:
        assert theory.best_k_by_position([0.5, 0.5], 0.2) == (1, 1.25)

    def test_best_k_looks_no_further_than_was_measured(self) -> None:
        assert theory.best_k_by_position([0.9, 0.9], 0.05)[0] == 2

    def test_best_k_without_a_measured_position_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no position was measured"):
            theory.best_k_by_position([], 0.1)

    def test_two_kinds_of_text_keep_more_than_their_mean_alpha_says(self) -> None:
        """Half of the steps keep all of 4 drafts, half none: 3 tokens a step. Independent tokens at 0.5 make 1.94."""
        assert theory.expected_tokens_by_position([0.5, 1, 1, 1]) == 3
        assert theory.expected_tokens(0.5, 4) == 1.9375
