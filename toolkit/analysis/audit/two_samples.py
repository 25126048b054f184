"""The weaker check, for servers without log probabilities: do the arm's and the baseline's samples look alike?

The same prompts under many seeds, from both sides. Per prompt and place, the counts of each token are compared, and the
sum over all is judged by exchanging whole replies between the sides (a permutation test; Good, Permutation Tests,
2nd ed., ch. 2). Only the first tokens behind the prefill's are used: further on every reply is alone.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import PROMPTS_DIFFER, Reply, prompts_differ
from toolkit.analysis.audit.transform import FloatArray

PLACES = range(1, 9)
"""Tokens of a reply that are compared; 0 is the prefill's."""
EXCHANGES = 4999
AT_ONCE = 100
"""Exchanges that are computed together."""
ENOUGH = 24
"""Replies of each side."""


def judge_samples(replies: Sequence[Reply], why: str, rng: np.random.Generator) -> Findings:
    """Findings of the distribution level, labelled as the weaker check that they are. `why`: what the better lacks."""
    if prompts_differ(replies):
        return Findings(gap=PROMPTS_DIFFER)
    by_prompt: dict[int, list[Reply]] = defaultdict(list)
    for reply in replies:
        if reply.question == "sample":
            by_prompt[reply.prompt].append(reply)
    asked = [found for _, found in sorted(by_prompt.items()) if len({reply.side for reply in found}) == 2]
    sides = np.array([float(reply.side == "arm") for found in asked for reply in found])
    few = min(int(sides.sum()), len(sides) - int(sides.sum()))
    if few < ENOUGH:
        return Findings(gap=f"{few} sampled replies of one side to prompts that both had; {ENOUGH} are needed")
    features = _features(asked)
    if not features.nnz:
        return Findings(gap="every sampled reply ended with its first token")
    seen = float(_statistics(features, sides[None])[0])
    more = 1
    for start in range(0, EXCHANGES, AT_ONCE):
        exchanged = _exchanged(asked, sides, min(AT_ONCE, EXCHANGES - start), rng)
        more += int((_statistics(features, exchanged) >= seen * (1 - 1e-9)).sum())
    weaker = f"This is the weaker check: {why}"
    note = f"the first tokens of the samples differ from the baseline's. {weaker}"
    check = Check("two samples, permutation", seen, more / (EXCHANGES + 1), len(sides), note=note)
    proved = f"the first {len(PLACES)} tokens of {len(sides)} samples do not tell arm from baseline. {weaker}"
    return Findings([check], proved=proved)


def _features(asked: Sequence[Sequence[Reply]]) -> Any:
    """Indicators [replies, (prompt, place, token)], the replies in the order of `asked`; a sparse matrix."""
    columns: dict[tuple[int, int, int], int] = {}
    places: list[tuple[int, int]] = []
    row = 0
    for found in asked:
        for reply in found:
            keys = [(reply.prompt, i, reply.token_ids[i]) for i in PLACES if i < len(reply.token_ids)]
            places += [(row, columns.setdefault(key, len(columns))) for key in keys]
            row += 1
    rows, cols = zip(*places, strict=True) if places else ((), ())
    return sparse.csr_array((np.ones(len(rows)), (rows, cols)), shape=(row, max(len(columns), 1)))


def _exchanged(asked: Sequence[Sequence[Reply]], sides: FloatArray, times: int, rng: np.random.Generator) -> FloatArray:
    """`sides` [times, replies] with the replies to each prompt exchanged at random."""
    shuffled = np.tile(sides, (times, 1))
    start = 0
    for found in asked:
        block = shuffled[:, start : start + len(found)]
        rng.permuted(block, axis=1, out=block)
        start += len(found)
    return shuffled


def _statistics(features: Any, sides: FloatArray) -> FloatArray:
    """For each row of `sides` [times, replies]: sum of (ours - theirs)^2 / (ours + theirs) over the columns."""
    both = features.sum(axis=0)
    ours = (features.T @ sides.T).T
    statistics: FloatArray = ((2 * ours - both) ** 2 / np.maximum(both, 1.0)).sum(axis=1)
    return statistics
