"""The rule against the lesson's vector, its own closed form, and the law of what it emits.

Counts that come from chance are drawn with a fixed seed and judged so that a sound rule fails less than once in a
million seeds; there are so many draws that a rule which draws the fix from p (total variation 0.04) does fail.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from toolkit import theory
from toolkit.sampling import FloatArray, Verified, accept_or_fix, adjust, draw, one_hot, residual, verify

P = np.array([0.38, 0.22, 0.16, 0.12, 0.08, 0.04])
Q = np.array([0.30, 0.20, 0.20, 0.10, 0.14, 0.06])
ALPHA = 0.88
K = 4
STEPS = 15_000
NEVER = 1e-6  # chance that a sound rule fails a statistical test


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def steps(declared: Callable[[int], FloatArray], seed: int) -> list[Verified]:
    """STEPS steps of K drafts from Q, `declared` giving the q of each; p and q the same at every position."""
    random = rng(seed)
    p = np.tile(P, (K + 1, 1))
    q = np.stack([declared(token) for token in range(len(Q))])
    guesses = random.choice(len(Q), (STEPS, K), p=Q)
    return [verify(p, q[drafts], drafts.tolist(), random) for drafts in guesses]


@pytest.fixture(scope="module")
def sampled() -> list[Verified]:
    return steps(lambda _: Q, seed=1)


@pytest.fixture(scope="module")
def certain() -> list[Verified]:
    """Drafts drawn from Q, each declared to be the only one possible, as prompt lookup does."""
    return steps(lambda token: one_hot(token, len(Q)), seed=2)


def counts_at(done: list[Verified], position: int) -> FloatArray:
    emitted = [step.tokens[position] for step in done if len(step.tokens) > position]
    return np.bincount(emitted, minlength=len(P)).astype(np.float64)


class TestTheLessonsVector:
    def test_alpha(self) -> None:
        assert np.minimum(P, Q).sum() == pytest.approx(ALPHA)

    def test_tokens_per_pass_in_closed_form(self) -> None:
        assert f"{theory.expected_tokens(theory.acceptance(list(P), list(Q)), K):.4f}" == "3.9356"

    def test_tokens_per_pass_of_the_rule(self, sampled: list[Verified]) -> None:
        lengths = [len(step.tokens) for step in sampled]
        error = np.std(lengths) / np.sqrt(STEPS)
        assert abs(np.mean(lengths) - 3.9356) < stats.norm.isf(NEVER / 2) * error

    def test_share_of_first_drafts_kept(self, sampled: list[Verified]) -> None:
        kept = sum(step.accepted > 0 for step in sampled)
        assert stats.binomtest(kept, STEPS, ALPHA).pvalue > NEVER

    @pytest.mark.parametrize("position", range(K + 1))
    def test_what_is_emitted_follows_p(self, sampled: list[Verified], position: int) -> None:
        counts = counts_at(sampled, position)
        assert stats.chisquare(counts, P * counts.sum()).pvalue > NEVER

    @pytest.mark.parametrize("position", range(K + 1))
    def test_total_variation_to_p_is_that_of_chance(self, sampled: list[Verified], position: int) -> None:
        """By McDiarmid's inequality it passes its mean, at most sqrt(V / n) / 2, by t with chance exp(-2 n t^2)."""
        counts = counts_at(sampled, position)
        n = counts.sum()
        bound = np.sqrt(len(P) / n) / 2 + np.sqrt(np.log(1 / NEVER) / (2 * n))
        assert np.abs(counts / n - P).sum() / 2 < bound

    def test_the_chi_square_sees_a_fix_drawn_from_p(self) -> None:
        """The power of the test above: the wrong rule's closed form, at the same number of draws."""
        wrong = np.minimum(P, Q) + (1 - ALPHA) * P
        counts = rng(3).multinomial(STEPS, wrong)
        assert stats.chisquare(counts, P * STEPS).pvalue < NEVER


class TestOneHotDrafts:
    @pytest.mark.parametrize("position", range(K + 1))
    def test_what_is_emitted_follows_p(self, certain: list[Verified], position: int) -> None:
        counts = counts_at(certain, position)
        assert stats.chisquare(counts, P * counts.sum()).pvalue > NEVER

    def test_kept_with_the_chance_that_p_gives(self, certain: list[Verified]) -> None:
        """Drawn from Q and certain of itself, a draft is kept with chance sum of p q."""
        kept = sum(step.accepted > 0 for step in certain)
        assert stats.binomtest(kept, STEPS, float(P @ Q)).pvalue > NEVER

    def test_the_fix_is_never_the_rejected_token(self) -> None:
        random = rng()
        answers = [accept_or_fix(P, one_hot(0, 6), 0, random) for _ in range(500)]
        assert {token for token, accepted in answers if not accepted} == {1, 2, 3, 4, 5}


@st.composite
def distributions(draw: st.DrawFn, size: int = 5) -> FloatArray:
    """With exact zeros among the entries."""
    weights = draw(arrays(np.float64, size, elements=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 1.0, 3.0])))
    assume(weights.sum() > 0)
    return weights / weights.sum()


class Scripted:
    """A random stream whose next numbers are given."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


class TestClosedForm:
    @given(distributions(), distributions())
    def test_kept_mass_and_residual_make_p(self, p: FloatArray, q: FloatArray) -> None:
        kept = np.minimum(p, q)
        np.testing.assert_allclose(kept + (1 - kept.sum()) * residual(p, q), p, atol=1e-12)

    @given(distributions(), distributions())
    def test_residual_is_a_distribution(self, p: FloatArray, q: FloatArray) -> None:
        assert residual(p, q).sum() == pytest.approx(1)

    @given(distributions(), distributions())
    def test_residual_gives_nothing_where_the_draft_gives_more(self, p: FloatArray, q: FloatArray) -> None:
        assume(not np.array_equal(p, q))
        assert residual(p, q)[q >= p].sum() == 0

    def test_residual_of_equals_is_p(self) -> None:
        np.testing.assert_array_equal(residual(P, P), P)

    @given(distributions(), distributions(), st.data())
    def test_accepts_with_chance_p_over_q(self, p: FloatArray, q: FloatArray, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from([int(i) for i in np.flatnonzero(q)]))
        chance = min(1.0, p[token] / q[token])
        number = data.draw(st.sampled_from([0.0, chance * (1 - 1e-9), min(chance * (1 + 1e-9), 1 - 1e-9)]))
        accepted = accept_or_fix(p, q, token, Scripted(number, 0.5))[1]  # type: ignore[arg-type]
        assert accepted == (number < chance)

    @given(distributions(), st.floats(0, 1, exclude_max=True))
    def test_draws_the_token_whose_share_of_the_mass_holds_the_number(self, p: FloatArray, number: float) -> None:
        token = draw(p, Scripted(number))  # type: ignore[arg-type]
        assert p[:token].sum() <= number * p.sum() + 1e-12
        assert p[: token + 1].sum() >= number * p.sum() - 1e-12

    @given(distributions(), st.sampled_from([0.0, 0.5, np.nextafter(1, 0)]))
    def test_never_draws_what_has_no_chance(self, p: FloatArray, number: float) -> None:
        assert p[draw(p, Scripted(number))] > 0  # type: ignore[arg-type]


class TestStep:
    def test_without_drafts_it_is_one_token_of_the_target(self) -> None:
        assert verify(one_hot([3], 6), np.empty((0, 6)), [], rng()) == Verified((3,), 0)

    def test_what_stands_behind_a_rejected_draft_is_dropped(self) -> None:
        assert verify(one_hot([1, 2, 3, 4], 6), one_hot([1, 5, 3], 6), [1, 5, 3], rng()) == Verified((1, 2), 1)

    def test_the_bonus_is_of_the_row_behind_the_drafts(self) -> None:
        assert verify(one_hot([1, 2, 3], 6), one_hot([1, 2], 6), [1, 2], rng()) == Verified((1, 2, 3), 2)

    @given(arrays(np.float64, (4, 5), elements=st.floats(-3, 3)), st.lists(st.integers(0, 4), min_size=3, max_size=3))
    def test_greedy_keeps_the_argmax_chain(self, logits: FloatArray, drafts: list[int]) -> None:
        chain = [int(row.argmax()) for row in logits]
        same = [draft == best for draft, best in zip(drafts, chain, strict=False)]
        kept = [*same, False].index(False)
        step = verify(adjust(logits, 0), one_hot(drafts, 5), drafts, rng())
        assert step == Verified(tuple(chain[: kept + 1]), kept)

    @pytest.mark.parametrize(("rows", "declared"), [(2, 2), (4, 2), (3, 1)])
    def test_rows_that_do_not_fit_the_drafts_are_refused(self, rows: int, declared: int) -> None:
        with pytest.raises(ValueError, match="rows"):
            verify(np.tile(P, (rows, 1)), np.tile(Q, (declared, 1)), [0, 1], rng())

    def test_two_vocabularies_are_refused(self) -> None:
        with pytest.raises(ValueError, match="one vocabulary"):
            verify(np.tile(P, (2, 1)), np.array([[0.5, 0.5]]), [0], rng())

    def test_a_draft_that_its_q_cannot_give_is_refused(self) -> None:
        with pytest.raises(ValueError, match="token 1"):
            verify(np.tile(P, (2, 1)), one_hot([0], 6), [1], rng())


LOGITS = np.log([0.4, 0.25, 0.25, 0.1])


class TestAdjust:
    def test_softmax_by_default(self) -> None:
        np.testing.assert_allclose(adjust(LOGITS), [0.4, 0.25, 0.25, 0.1])

    def test_temperature_is_a_power_of_the_probabilities(self) -> None:
        squares = np.array([0.16, 0.0625, 0.0625, 0.01])
        np.testing.assert_allclose(adjust(LOGITS, 0.5), squares / squares.sum())

    def test_temperature_0_is_the_first_of_the_highest(self) -> None:
        np.testing.assert_array_equal(adjust([1.0, 7.0, 7.0], 0), [0, 1, 0])

    def test_a_temperature_near_0_is_nearly_that(self) -> None:
        np.testing.assert_array_equal(adjust([1.0, 7.0, 6.0], 1e-308), [0, 1, 0])

    def test_top_k_keeps_the_k_likeliest(self) -> None:
        np.testing.assert_allclose(adjust(LOGITS, top_k=1), [1, 0, 0, 0])

    def test_top_k_keeps_all_that_tie_with_the_last(self) -> None:
        np.testing.assert_allclose(adjust(LOGITS, top_k=2), np.array([0.4, 0.25, 0.25, 0]) / 0.9)

    def test_top_k_of_the_whole_vocabulary_keeps_all(self) -> None:
        np.testing.assert_array_equal(adjust(LOGITS, top_k=9), adjust(LOGITS))

    def test_top_p_keeps_the_token_that_crosses(self) -> None:
        np.testing.assert_allclose(adjust(LOGITS, top_p=0.5), np.array([0.4, 0.25, 0, 0]) / 0.65)

    def test_top_p_reached_exactly_needs_no_more(self) -> None:
        np.testing.assert_allclose(adjust(np.log([0.5, 0.25, 0.25]), top_p=0.5), [1, 0, 0])

    def test_of_equals_top_p_keeps_those_of_lower_id(self) -> None:
        """30 of 60 have 0.0244 each."""
        kept = np.flatnonzero(adjust(np.tile([0.0, 1.0], 30), top_p=0.24))
        np.testing.assert_array_equal(kept, range(1, 20, 2))

    def test_a_small_top_p_keeps_the_likeliest(self) -> None:
        np.testing.assert_allclose(adjust(LOGITS, top_p=1e-9), [1, 0, 0, 0])

    def test_top_p_of_1_keeps_all(self) -> None:
        np.testing.assert_array_equal(adjust(LOGITS, top_p=1.0), adjust(LOGITS))

    def test_top_p_counts_what_top_k_left(self) -> None:
        """0.4 of the 0.9 that top-k leaves is under 0.45; it would reach 0.4 of all."""
        np.testing.assert_allclose(adjust(LOGITS, top_k=2, top_p=0.45), np.array([0.4, 0.25, 0, 0]) / 0.65)

    def test_top_p_counts_at_the_temperature(self) -> None:
        """At 0.5 the first token alone has 0.54."""
        np.testing.assert_allclose(adjust(LOGITS, 0.5, top_p=0.5), [1, 0, 0, 0])

    def test_a_token_that_is_ruled_out_stays_out(self) -> None:
        np.testing.assert_allclose(adjust([0.0, -np.inf, 0.0]), [0.5, 0, 0.5])

    @given(
        arrays(np.float64, (3, 6), elements=st.floats(-1e6, 1e6)),
        st.sampled_from([0.0, 1e-3, 0.7, 1.0, 5.0]),
        st.sampled_from([None, 1, 3, 6]),
        st.sampled_from([None, 0.1, 0.9, 1.0]),
    )
    def test_rows_are_distributions_of_their_own(
        self, logits: FloatArray, temperature: float, top_k: int | None, top_p: float | None
    ) -> None:
        together = adjust(logits, temperature, top_k, top_p)
        np.testing.assert_allclose(together.sum(axis=-1), 1)
        np.testing.assert_array_equal(together, [adjust(row, temperature, top_k, top_p) for row in logits])

    @given(arrays(np.float64, 6, elements=st.floats(-3, 3)), st.integers(1, 6), st.floats(0.01, 1))
    def test_what_is_kept_is_likelier_than_what_is_not(self, logits: FloatArray, top_k: int, top_p: float) -> None:
        kept = adjust(logits, 1.0, top_k, top_p) > 0
        p = adjust(logits)
        assert p[kept].min() >= p[~kept].max(initial=0)

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ((-0.1,), "temperature"),
            ((np.inf,), "temperature"),
            ((np.nan,), "temperature"),
            ((1.0, 0), "top_k"),
            ((1.0, None, 0.0), "top_p"),
            ((1.0, None, 1.1), "top_p"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, arguments: tuple[float, ...], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            adjust(LOGITS, *arguments)  # type: ignore[arg-type]

    @pytest.mark.parametrize("logits", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf], [], 1.0])
    def test_logits_without_a_finite_highest_are_refused(self, logits: object) -> None:
        with pytest.raises(ValueError, match="logits"):
            adjust(logits)  # type: ignore[arg-type]

    def test_one_hot_refuses_a_token_outside(self) -> None:
        with pytest.raises(ValueError, match="vocabulary of 6"):
            one_hot(6, 6)
