"""Transforms judged: departures of the size that `power` states are seen, rounding that both sides share is not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.audit.distribution import (
    BINS,
    ENOUGH,
    ENOUGH_DRAFTED,
    MOST,
    judge_transforms,
    power,
    total_variation,
)
from toolkit.analysis.audit.judgement import Findings, judge
from toolkit.analysis.audit.transform import BoolArray, FloatArray, Transformed

N = 3000
AUDITS = 100
SHARES = {
    # What a fault adds to the shares of the bins, before it is scaled to a total variation.
    "every other bin": np.tile([1.0, -1.0], BINS // 2),
    "likely tokens": np.repeat([1.0, -1.0], BINS // 2),
    "one bin": np.array([BINS - 1.0] + [-1.0] * (BINS - 1)),
}


def made(by_probability: FloatArray, by_guess: FloatArray | None = None, outside: int = 0) -> Transformed:
    """`outside` more tokens are impossible."""
    n = len(by_probability)
    lost = np.full(outside, np.nan)
    return Transformed(
        by_probability=np.concatenate([by_probability, lost]),
        by_guess=np.concatenate([np.linspace(0, 1, n) if by_guess is None else by_guess, lost]),
        index=np.arange(n + outside) % 2,
        repeats=np.arange(n + outside) % 3 == 0,
        outside=np.arange(n + outside) >= n,
        probability=np.full(n + outside, 0.5),
        tail=np.concatenate([np.ones(n), np.zeros(outside)]),
        unlisted=np.zeros(n + outside, dtype=bool),
        rest=np.zeros(n + outside),
        logprob=np.concatenate([np.full(n, -1.0), np.full(outside, -np.inf)]),
    )


def uniform(rng: np.random.Generator, n: int = N) -> Transformed:
    return made(rng.random(n), rng.random(n))


def departed(rng: np.random.Generator, shape: str, total_variation: float, n: int = N) -> FloatArray:
    """Transforms that lie off uniform by so much, in this shape."""
    off = SHARES[shape] * total_variation / (np.abs(SHARES[shape]).sum() / 2)
    bins = rng.choice(BINS, n, p=1 / BINS + off)
    draws: FloatArray = (bins + rng.random(n)) / BINS
    return draws


def some(n: int, marked: int) -> BoolArray:
    return np.arange(n) < marked


def is_lossy(found: Findings) -> bool:
    return judge({"distribution": found}).levels["distribution"].verdict == "lossy"


def judged(arm: Transformed, control: Transformed, drafted: int = 1000) -> Findings:
    return judge_transforms(arm, control, drafted)


def stated(found: Findings, n: int = N) -> float:
    value = power(n, n, sum(check.judged for check in found.tests))
    assert value is not None
    return value


class TestPower:
    @pytest.mark.parametrize("shape", SHARES)
    def test_a_departure_of_the_stated_size_is_seen_in_nine_of_ten_audits(self, shape: str) -> None:
        """85 of 100 at least: with a true chance of 0.9, fewer come once in 25 times, and the seed is fixed."""
        rng = np.random.default_rng(11)
        size = stated(judged(uniform(rng), uniform(rng)))
        lossy = sum(
            is_lossy(judged(made(departed(rng, shape, size), rng.random(N)), uniform(rng))) for _ in range(AUDITS)
        )
        assert lossy >= 0.85 * AUDITS

    def test_it_is_no_boast_for_the_shape_that_is_hardest_to_see(self) -> None:
        """At the stated size not nearly all are seen, so that the figure is no larger than it must be."""
        rng = np.random.default_rng(12)
        size = stated(judged(uniform(rng), uniform(rng)))
        seen = sum(
            is_lossy(judged(made(departed(rng, "every other bin", 0.6 * size), rng.random(N)), uniform(rng)))
            for _ in range(AUDITS)
        )
        assert seen <= 0.6 * AUDITS

    @given(st.integers(ENOUGH, 100_000), st.integers(1, 50))
    def test_more_tokens_and_fewer_tests_see_smaller_ones(self, n: int, tests: int) -> None:
        here, more, stricter = power(n, n, tests), power(2 * n, n, tests), power(n, n, tests + 1)
        assert here is not None
        assert more is not None
        assert stricter is not None
        assert more < here < stricter

    def test_it_never_promises_more_than_rounding_allows(self) -> None:
        assert power(10**9, 10**9, 20) == pytest.approx(power(MOST, MOST, 20) / np.sqrt(2), rel=1e-3)  # type: ignore[operator]

    @pytest.mark.parametrize(("n", "control"), [(ENOUGH - 1, N), (N, ENOUGH - 1)])
    def test_too_few_tokens_have_none(self, n: int, control: int) -> None:
        assert power(n, control, 20) is None


class TestJudge:
    def test_uniform_transforms_are_sound(self) -> None:
        found = judged(uniform(np.random.default_rng(1)), uniform(np.random.default_rng(2)))
        assert (is_lossy(found), found.gap) == (False, "")

    def test_a_departure_that_the_control_shares_is_not_the_arms(self) -> None:
        """A sampling default of the server moves both."""
        rng = np.random.default_rng(1)
        both = [made(departed(rng, "likely tokens", 0.1), rng.random(N)) for _ in range(2)]
        found = judged(*both)
        assert not is_lossy(found)
        assert all(not check.counted for check in found.tests if check.name.startswith("uniform, by probability"))

    def test_a_small_departure_of_many_tokens_is_rounding(self) -> None:
        """A total variation of 0.008 over 200,000 tokens: chance alone is far smaller, logits off by 0.1 do it."""
        rng = np.random.default_rng(1)
        arm = made(departed(rng, "likely tokens", 0.008, 200_000), rng.random(200_000))
        assert not is_lossy(judged(arm, uniform(rng)))

    def test_a_fault_at_one_index_of_the_steps_is_seen_there(self) -> None:
        rng = np.random.default_rng(1)
        arm = uniform(rng)
        moved = np.where(arm.index == 1, arm.by_probability**1.5, arm.by_probability)
        arm = replace(arm, by_probability=moved, index=np.where(arm.index == 1, 3, 0))
        found = judged(arm, uniform(rng))
        bad = [check for check in found.tests if check.judged and (check.p or 0.0) < 1e-9]
        assert any("token 4 of its step" in check.name for check in bad)

    def test_a_fault_where_lookups_draft_is_seen_there(self) -> None:
        """A third of the tokens; among all of them it shows less."""
        rng = np.random.default_rng(1)
        arm = uniform(rng)
        arm = replace(arm, by_probability=np.where(arm.repeats, arm.by_probability**1.25, arm.by_probability))
        found = judged(arm, uniform(rng))
        strongest = min((check for check in found.tests if check.judged), key=lambda check: check.p or 0.0)
        assert (is_lossy(found), strongest.n) == (True, N // 3)
        assert strongest.name.startswith("uniform, by probability, behind two tokens that stood so before")

    def test_tokens_at_an_index_that_hardly_occurs_are_not_tested_apart(self) -> None:
        rng = np.random.default_rng(1)
        arm = replace(uniform(rng), index=np.where(np.arange(N) < ENOUGH_DRAFTED - 1, 1, 0))
        assert not any("token 2" in check.name for check in judged(arm, uniform(rng)).tests)

    def test_impossible_tokens_are_a_fault(self) -> None:
        rng = np.random.default_rng(1)
        found = judged(made(rng.random(N), rng.random(N), outside=25), uniform(rng))
        assert (is_lossy(found), found.tests[0].name) == (True, "within the top k")

    def test_impossible_tokens_of_both_sides_are_the_servers_sampling(self) -> None:
        rng = np.random.default_rng(1)
        sides = [made(rng.random(N), rng.random(N), outside=25) for _ in range(2)]
        assert not is_lossy(judged(*sides))

    def test_tokens_of_the_far_tail_are_a_fault(self) -> None:
        """15 of 3,000 where 3 are to be expected; their transforms are a fifth of one bin of twenty."""
        rng = np.random.default_rng(1)
        tail = np.where(np.arange(N) < 15, 1e-5, 1.0)
        assert is_lossy(judged(replace(uniform(rng), tail=tail), uniform(rng)))

    def test_tokens_of_the_far_tail_on_both_sides_are_not_the_arms(self) -> None:
        rng = np.random.default_rng(1)
        tail = np.where(np.arange(N) < 15, 1e-5, 1.0)
        assert not is_lossy(judged(*(replace(uniform(rng), tail=tail) for _ in range(2))))

    def test_impossible_tokens_are_a_fault_where_all_may_be_drawn(self) -> None:
        """Seen on vLLM 0.32 on a CPU: 23 of 2,552 tokens had a probability under 1e-9 (p = 4e-26)."""
        rng, n = np.random.default_rng(1), 2552
        arm = replace(
            uniform(rng, n),
            logprob=np.where(np.arange(n) < 23, -21.0, -1.0),
            rest=np.full(n, 0.03),
            unlisted=some(n, 76),
        )
        found = judged(arm, replace(uniform(rng, n), rest=np.full(n, 0.03), unlisted=some(n, 76)))
        (check,) = [check for check in found.tests if check.name == "impossible tokens"]
        assert check.p == pytest.approx(4e-26, rel=0.5)
        assert (is_lossy(found), check.note) == (True, "23 of 2552 tokens have a probability under 1e-09 each")

    def test_impossible_tokens_of_both_sides_where_all_may_be_drawn_are_not_the_arms(self) -> None:
        """The reference is another model, or rounds to no probability what is drawn now and then."""
        rng, logprob = np.random.default_rng(1), np.where(np.arange(N) < 23, -21.0, -1.0)
        sides = [replace(uniform(rng), logprob=logprob, rest=np.full(N, 0.03), unlisted=some(N, 90)) for _ in range(2)]
        assert not is_lossy(judged(*sides))

    @pytest.mark.parametrize(("count", "expected"), [(90, "lossless"), (150, "lossy")])
    def test_more_tokens_beyond_the_best_than_can_be_are_a_fault(self, count: int, expected: str) -> None:
        """All may be drawn, and 3 % are expected to be none of the best: 90 of 3,000."""
        rng = np.random.default_rng(1)
        arm, control = (
            replace(uniform(rng), unlisted=some(N, number), rest=np.full(N, 0.03)) for number in (count, 90)
        )
        found = judged(arm, control)
        assert ("lossy" if is_lossy(found) else "lossless") == expected
        (check,) = [check for check in found.tests if check.name == "tokens beyond the model's best"]
        assert check.note.startswith(f"{count} of 3000 tokens are none of the model's best, where 90 are expected")

    def test_nothing_but_impossible_tokens_is_a_fault(self) -> None:
        assert is_lossy(judged(made(np.array([]), outside=N), uniform(np.random.default_rng(1))))

    def test_nothing_but_impossible_tokens_of_both_sides_is_inconclusive(self) -> None:
        """The reference is another model, or does not list the emitted token."""
        found = judged(made(np.array([]), outside=N), made(np.array([]), outside=N))
        assert (is_lossy(found), "0 tokens of the arm" in found.gap) == (False, True)

    def test_nothing_at_all_is_inconclusive(self) -> None:
        found = judged(made(np.array([])), made(np.array([])))
        assert (found.tests, "0 tokens of the arm" in found.gap) == ([], True)

    @pytest.mark.parametrize("shape", SHARES)
    @pytest.mark.parametrize("size", [0.0, 0.03, 0.1])
    def test_the_interval_of_the_total_variation_holds_the_true_one(self, shape: str, size: float) -> None:
        """In 95 %, of 100 audits 84 at least but once in 20,000 times (binomial)."""
        rng = np.random.default_rng(1)
        held = 0
        for _ in range(AUDITS):
            shown = total_variation(departed(rng, shape, size), rng.random(N))
            low, high = map(float, shown.note.removeprefix("95 % interval [").removesuffix("]").split(", "))
            held += low <= size <= high
        assert held >= 84

    def test_the_total_variation_is_about_the_true_one_and_not_judged(self) -> None:
        rng = np.random.default_rng(1)
        shown = [total_variation(departed(rng, "likely tokens", 0.1), rng.random(N)) for _ in range(100)]
        assert np.mean([check.statistic for check in shown]) == pytest.approx(0.1, abs=0.01)
        assert not any(check.judged for check in shown)

    def test_its_p_values_are_uniform_for_sound_servers(self) -> None:
        """Each kind of check rejects 5 % of 100 at a level of 5 %: at most 18 but once in a million (binomial)."""
        rng = np.random.default_rng(3)
        found = [judged(uniform(rng), uniform(rng)).tests for _ in range(100)]
        for checks in zip(*found, strict=True):
            if checks[0].p is not None and not checks[0].name.startswith(("within the top k", "unlikely tokens")):
                assert sum((check.p or 0.0) < 0.05 for check in checks) <= 18, checks[0].name


class TestGap:
    def gap(self, n: int = N, control: int = N, drafted: int = 1000) -> str:
        rng = np.random.default_rng(1)
        arm = replace(uniform(rng, n), index=np.zeros(n, dtype=np.int64)) if drafted < 0 else uniform(rng, n)
        return judged(arm, uniform(rng, control), drafted).gap

    def test_few_tokens_of_the_arm(self) -> None:
        assert self.gap(n=900).startswith("900 tokens of the arm and 3000 of the baseline")

    def test_few_tokens_of_the_baseline(self) -> None:
        assert "900 of the baseline" in self.gap(control=900)

    @pytest.mark.parametrize(("drafted", "said"), [(0, "no tokens were drafted"), (60, "60 tokens were drafted")])
    def test_hardly_a_draft(self, drafted: int, said: str) -> None:
        assert said in self.gap(drafted=drafted)

    def test_drafts_that_are_not_told_and_do_not_show_in_the_chunks(self) -> None:
        assert "does not say what it drafted" in self.gap(drafted=-1)

    def test_chunks_that_carry_two_tokens_show_drafts_that_are_not_told(self) -> None:
        rng = np.random.default_rng(1)
        assert judged(uniform(rng), uniform(rng), drafted=-1).gap == ""

    def test_a_fault_among_few_tokens_is_still_a_fault(self) -> None:
        rng = np.random.default_rng(1)
        found = judged(made(rng.random(900) ** 3, rng.random(900)), uniform(rng, 900))
        assert is_lossy(found)


@pytest.mark.parametrize("n", [1, 5, 100, 150])
def test_a_handful_of_tokens_raises_no_alarm(n: int) -> None:
    """More than 2 in 20 at a rate of 1 % come once in a thousand times; all would if a test broke down."""
    rng = np.random.default_rng(n)
    found = [judged(uniform(rng, n), uniform(rng, n)) for _ in range(20)]
    assert sum(map(is_lossy, found)) <= 2
    for check in (check for one in found for check in one.tests):
        assert np.isfinite(check.statistic)
        assert 0 <= (check.p or 0.0) <= 1


def test_fifty_thousand_tokens_are_judged_in_a_moment() -> None:
    rng = np.random.default_rng(1)
    assert not is_lossy(judged(uniform(rng, 50_000), uniform(rng, 50_000)))
