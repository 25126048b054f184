"""Samples of both sides compared without log probabilities: p is uniform for equal ones, coarse faults are seen."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from simulated_servers import reply

from toolkit.analysis.audit import two_samples
from toolkit.analysis.audit.judgement import Findings, judge
from toolkit.analysis.audit.replies import PROMPTS_DIFFER, Reply
from toolkit.analysis.audit.two_samples import ENOUGH, PLACES, judge_samples

WHY = "reference does not score tokens"


def samples(
    rng: np.random.Generator, arm: Sequence[float], baseline: Sequence[float], prompts: int = 8, each: int = 8
) -> list[Reply]:
    """Replies of ten tokens of an alphabet each, drawn from these probabilities, shifted by prompt and place."""
    found = []
    for side, p in (("arm", arm), ("baseline", baseline)):
        for prompt in range(prompts):
            for seed in range(each):
                tokens = (rng.choice(len(p), 10, p=p) + prompt + np.arange(10)).tolist()
                found.append(reply("sample", side, prompt, tokens, seed=seed))  # type: ignore[arg-type]
    return found


EVEN = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
SHARPER = EVEN**2 / (EVEN**2).sum()


def judged(replies: Sequence[Reply]) -> Findings:
    return judge_samples(replies, WHY, np.random.default_rng(0))


def is_lossy(found: Findings) -> bool:
    return judge({"distribution": found}).levels["distribution"].verdict == "lossy"


class TestPermutation:
    def test_p_is_uniform_for_sides_that_draw_alike(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """200 audits; KS, which would fail once in a million times."""
        monkeypatch.setattr(two_samples, "EXCHANGES", 199)
        rng = np.random.default_rng(3)
        found = [judged(samples(rng, EVEN, EVEN)).tests[0].p for _ in range(200)]
        assert stats.kstest(found, "uniform").pvalue > 1e-6

    def test_a_coarse_fault_is_seen(self) -> None:
        """Drawn at half the temperature: in 10 of 10 audits."""
        assert all(is_lossy(judged(samples(np.random.default_rng(i), SHARPER, EVEN))) for i in range(10))

    def test_sides_that_draw_alike_are_lossless(self) -> None:
        assert not any(is_lossy(judged(samples(np.random.default_rng(i), EVEN, EVEN))) for i in range(10))

    def test_equal_replies_are_as_like_as_can_be(self) -> None:
        """The same seeds on both sides, where the arm did not draft."""
        ours = samples(np.random.default_rng(1), EVEN, EVEN)[:64]
        both = [*ours, *(reply("sample", "baseline", one.prompt, one.token_ids, seed=one.seed) for one in ours)]
        assert judged(both).tests[0].p == 1.0

    def test_a_fault_before_or_behind_the_compared_places_is_not_seen(self) -> None:
        """The prefill's token is never speculative; further on every reply is alone."""
        ours = samples(np.random.default_rng(1), EVEN, EVEN)
        moved = [
            reply("sample", one.side, one.prompt, [99, *one.token_ids[1 : PLACES.stop], 99])
            if one.side == "arm"
            else one
            for one in ours
        ]
        assert judged(moved).tests[0].p == judged(ours).tests[0].p

    def test_sides_of_different_size_are_exchanged_as_they_are(self) -> None:
        ours = samples(np.random.default_rng(1), EVEN, EVEN, each=16)
        fewer = [one for one in ours if one.side == "arm" or (one.seed or 0) < 4]
        assert not is_lossy(judged(fewer))

    def test_the_same_replies_give_the_same_p(self) -> None:
        ours = samples(np.random.default_rng(1), EVEN, EVEN)
        assert judged(ours) == judged(ours)


class TestGap:
    def test_few_replies(self) -> None:
        few = samples(np.random.default_rng(1), EVEN, EVEN, prompts=2)
        assert judged(few).gap.startswith(f"16 sampled replies of one side to prompts that both had; {ENOUGH} are")

    def test_prompts_that_one_side_did_not_have_do_not_count(self) -> None:
        ours = samples(np.random.default_rng(1), EVEN, EVEN, prompts=16)
        apart = [one for one in ours if (one.side == "arm") == (one.prompt < 8)]
        assert judged(apart).gap.startswith("0 sampled replies")

    def test_no_replies(self) -> None:
        assert judged([]).gap.startswith("0 sampled replies")

    def test_replies_that_end_with_their_first_token(self) -> None:
        ours = samples(np.random.default_rng(1), EVEN, EVEN)
        ended = [reply("sample", one.side, one.prompt, [1]) for one in ours]
        assert judged(ended).gap == "every sampled reply ended with its first token"

    def test_other_prompt_tokens_of_the_same_messages(self) -> None:
        ours = samples(np.random.default_rng(1), EVEN, EVEN)
        other = [*ours[:-1], reply("sample", "baseline", 7, [1, 2, 3], prompt_ids=[9, 9])]
        assert judged(other) == Findings(gap=PROMPTS_DIFFER)

    def test_greedy_replies_are_no_samples(self) -> None:
        assert judged([reply("greedy", "arm", 0, [1, 2])] * 30).gap.startswith("0 sampled replies")


class TestSaid:
    def test_a_lossless_one_is_labelled_as_the_weaker_check(self) -> None:
        proved = judged(samples(np.random.default_rng(1), EVEN, EVEN)).proved
        assert proved.endswith(f"This is the weaker check: {WHY}")

    def test_a_lossy_one_is_too(self) -> None:
        found = judged(samples(np.random.default_rng(1), SHARPER, EVEN))
        assert found.tests[0].note.endswith(f"This is the weaker check: {WHY}")


def test_a_thousand_replies_of_each_side_fit_into_memory_and_seconds() -> None:
    """What 50,000 tokens are: a dense matrix of their tokens would have 130 million numbers."""
    rng = np.random.default_rng(1)
    many = np.full(2000, 1 / 2000)
    assert not is_lossy(judged(samples(rng, many, many, prompts=130)))
