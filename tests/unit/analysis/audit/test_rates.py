"""Acceptance that can be, and acceptance that the model's probabilities allow."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from simulated_servers import reply

from toolkit.analysis.audit.judgement import Check, Findings, judge
from toolkit.analysis.audit.rates import ENOUGH, LIKELY, is_possible, judge_rates
from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.transform import FloatArray, Transformed
from toolkit.engines import engine
from toolkit.engines.contract import SpecCounts
from toolkit.sampling import Verified, one_hot, verify

VLLM = engine("vllm")
K, SIZE, LENGTH = 4, 6, 48
Rule = Callable[[FloatArray, FloatArray, Sequence[int], np.random.Generator], Verified]


def over_accepting(p: FloatArray, q: FloatArray, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
    """A rule that keeps a draft with 1.3 times its chance."""
    eager = p.copy()
    eager[np.arange(len(drafts)), list(drafts)] *= 1.3
    return verify(eager, q, drafts, rng)


# Distributions [500, 6], no token below `LIKELY`.
ROWS = LIKELY + (1 - SIZE * LIKELY) * np.random.default_rng(1).dirichlet(np.full(SIZE, 0.4), 500)


def served(rule: Rule, replies: int, seed: int, merged: float = 0.0) -> tuple[list[Reply], Transformed]:
    """Replies of a server that looks drafts up, three steps in four, and the probability of each emitted token.

    The share `merged` of the steps reaches the client in one chunk with the step before.
    """
    rng = np.random.default_rng(seed)
    found, chances = [], list[float]()
    for number in range(replies):
        tokens, chunks, accepted = [0], [1], list[int]()
        while len(tokens) < LENGTH:
            drafts = rng.integers(SIZE, size=K * (rng.random() < 0.75)).tolist()
            p = ROWS[rng.integers(len(ROWS), size=len(drafts) + 1)]
            step = rule(p, one_hot(drafts, SIZE), drafts, rng)
            if drafts:
                accepted.append(step.accepted)
            emitted = step.tokens[: LENGTH - len(tokens)]
            tokens += emitted
            chances += p[np.arange(len(emitted)), list(emitted)].tolist()
            if len(chunks) > 1 and rng.random() < merged:
                chunks[-1] += len(emitted)
            else:
                chunks.append(len(emitted))
        steps = len(accepted)
        counts = SpecCounts(steps, K * steps, sum(accepted), K, [K] * steps, accepted)
        found.append(reply("sample", "arm", number, tokens, chunks=chunks, counts=counts, scores=[]))
    return found, known(chances)


def known(chances: Sequence[float]) -> Transformed:
    n = len(chances)
    u, none = np.linspace(0, 1, n), np.zeros(n, dtype=bool)
    return Transformed(u, u, none.astype(np.int64), none, none, np.array(chances), u, none, np.zeros(n), u)


def judged(replies: list[Reply], arm: Transformed, one_hot: bool = True) -> Findings:
    return judge_rates(replies, arm, one_hot, VLLM)


def sum_of_odds(found: Findings) -> Check:
    (check,) = [check for check in found.tests if check.name == "kept drafts against sum min(p, q)"]
    return check


def is_lossy(found: Findings) -> bool:
    return judge({"acceptance": found}).levels["acceptance"].verdict == "lossy"


def one(counts: SpecCounts, chunks: list[int]) -> Reply:
    return reply("sample", "arm", 0, [7] * sum(chunks), chunks=chunks, counts=counts, scores=[])


class TestSumOfOdds:
    def test_it_is_the_number_of_tried_drafts_for_the_exact_rule(self) -> None:
        """Unbiased, but for kept drafts that the end of a reply hides: 1 % here. Its sd is 0.036 at most, with 9,000
        tried drafts whose 1 / p has a variance of up to 12 times their number.
        """
        check = sum_of_odds(judged(*served(verify, 250, seed=3)))
        assert check.n > 9_000
        assert check.statistic == pytest.approx(0.99, abs=0.17)

    def test_the_exact_rule_is_lossless(self) -> None:
        for seed in range(4):
            assert not is_lossy(judged(*served(verify, 48, seed)))

    def test_a_rule_that_keeps_too_much_is_lossy(self) -> None:
        assert is_lossy(judged(*served(over_accepting, 150, seed=3)))

    def test_steps_that_were_merged_into_one_chunk_pass_for_no_kept_drafts(self) -> None:
        """A token that is no draft would stand in the middle of the chunk, and count 1 / p."""
        found = judged(*served(verify, 120, seed=3, merged=0.02))
        assert not is_lossy(found)
        assert sum_of_odds(found).statistic == pytest.approx(1.0, abs=0.25)

    def test_an_unlikely_kept_draft_does_not_outweigh_the_others(self) -> None:
        replies, arm = served(verify, 64, seed=3)
        lucky = arm.probability.copy()
        lucky[:20] = 1e-6
        assert not is_lossy(judged(replies, replace(arm, probability=lucky)))

    def test_drafts_that_are_not_certain_are_not_judged_by_it(self) -> None:
        found = judged(*served(verify, 64, seed=3), one_hot=False)
        assert [check.name for check in found.tests] == ["counts are possible"]
        assert "drafts' own probabilities are not reported" in found.gap

    def test_too_few_tried_drafts_are_inconclusive(self) -> None:
        found = judged(*served(verify, 1, seed=3))
        assert (len(found.tests), "drafts were tried" in found.gap) == (1, True)
        assert ENOUGH > 40

    def test_a_server_that_tells_sums_alone_is_inconclusive(self) -> None:
        replies, arm = served(verify, 64, seed=3)
        sums = [replace(r, counts=replace(r.counts, per_step_drafted=None, per_step_accepted=None)) for r in replies]  # type: ignore[type-var]
        assert "0 drafts were tried" in judged(sums, arm).gap

    def test_replies_without_scores_are_no_part_of_it(self) -> None:
        """One that the reference could not score, and one without tokens."""
        replies, arm = served(verify, 64, seed=3)
        other = [reply("sample", "arm", 99, [5, 6]), reply("sample", "arm", 98, [], scores=[])]
        assert sum_of_odds(judged([*replies, *other], arm)) == sum_of_odds(judged(replies, arm))


class TestPossible:
    @pytest.mark.parametrize(
        ("counts", "chunks"),
        [
            (SpecCounts(2, 8, 3, 4, [4, 4], [2, 1]), [1, 3, 2, 1]),
            (SpecCounts(2, 8, 6, 4, [4, 4], [2, 4]), [1, 3, 2]),
            (SpecCounts(2, 8, 3), [1, 3, 2, 1]),
            (SpecCounts(0, 0, 0, 4, [], []), [1, 1, 1]),
            (SpecCounts(2, 5, 3, 4, [4, 1], [2, 1]), [1, 3, 2, 1]),
            (SpecCounts(2, 8, 3, 4, [4, 4], [2, 1]), []),
        ],
        ids=["plain", "trimmed last step", "sums alone", "no draft", "a schedule of K", "no token ids"],
    )
    def test_what_an_engine_reports(self, counts: SpecCounts, chunks: list[int]) -> None:
        assert is_possible(one(counts, chunks), counts, VLLM)

    @pytest.mark.parametrize(
        ("counts", "chunks"),
        [
            (SpecCounts(2, 8, 9), [1, 3, 2, 1]),
            (SpecCounts(2, 8, -1), [1, 3, 2, 1]),
            (SpecCounts(9, 8, 3), [1, 3, 2, 1]),
            (SpecCounts(2, 8, 3, 4, [4, 4], [2, 2]), [1, 3, 2, 1]),
            (SpecCounts(2, 8, 3, 4, [4, 4, 4], [2, 1, 0]), [1, 3, 2, 1]),
            (SpecCounts(2, 8, 3, 4, [4, 4], [2, 1, 0]), [1, 3, 2, 1]),
            (SpecCounts(2, 8, 5, 4, [2, 6], [0, 5]), [1, 1, 6]),
            (SpecCounts(2, 8, 5, 5, [4, 4], [0, 5]), [1, 1, 6]),
            (SpecCounts(3, 12, 12, 4, [4, 4, 4], [4, 4, 4]), [1, 1, 1]),
        ],
        ids=[
            "more kept than drafted",
            "negative",
            "more steps than drafts",
            "sums that do not add up",
            "more steps than were told",
            "lists of different length",
            "a step above K",
            "more kept than the step drafted",
            "more kept than the answer has tokens",
        ],
    )
    def test_what_no_engine_can_have(self, counts: SpecCounts, chunks: list[int]) -> None:
        assert not is_possible(one(counts, chunks), counts, VLLM)

    def test_one_impossible_request_is_lossy(self) -> None:
        replies, arm = served(verify, 20, seed=3)
        wrong = [replace(replies[0], counts=SpecCounts(2, 8, 9)), *replies[1:]]
        found = judged(wrong, arm)
        assert (is_lossy(found), "1 of 20 requests report counts that no engine can have" in found.tests[0].note) == (
            True,
            True,
        )


class TestGap:
    def test_a_server_that_reports_nothing(self) -> None:
        assert judged([reply("sample", "arm", 0, [1, 2])], known([])).gap == (
            "the server does not report acceptance per request"
        )

    def test_the_baselines_counts_are_not_the_arms(self) -> None:
        theirs = reply("sample", "baseline", 0, [1, 2], counts=SpecCounts(1, 4, 9))
        assert judged([theirs], known([])).tests == []

    def test_nothing_drafted(self) -> None:
        assert judged([one(SpecCounts(0, 0, 0, 4, [], []), [1, 1])], known([0.5])).gap == "nothing was drafted"
