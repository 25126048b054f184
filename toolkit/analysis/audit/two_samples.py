"""The weaker check, for servers without log probabilities: do the arm's and the baseline's samples look alike?

The same prompts under many seeds, from both sides. Per prompt and place, the counts of each token are compared, and the
sum over all is judged by exchanging whole replies between the sides (a permutation test; Good, Permutation Tests,
2nd ed., ch. 2). Only the first tokens behind the prefill's are used: further on every reply is alone.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.transform import FloatArray

PLACES = range(1, 9)
"""Tokens of a reply that are compared; 0 is the prefill's."""
EXCHANGES = 4999
ENOUGH = 24
"""Replies of each side."""


def judge_samples(replies: Sequence[Reply], rng: np.random.Generator) -> Findings:
    """Findings of the distribution level, labelled as the weaker check that they are."""
    by_prompt: dict[int, list[Reply]] = defaultdict(list)
    for reply in replies:
        if reply.question == "sample":
            by_prompt[reply.prompt].append(reply)
    features, sides, blocks = _features(by_prompt)
    few = min(int(sides.sum()), len(sides) - int(sides.sum())) if len(sides) else 0
    if few < ENOUGH:
        return Findings(gap=f"{few} sampled replies of one side; {ENOUGH} of each are needed")
    seen = _statistic(features, sides)
    more = 1
    for _ in range(EXCHANGES):
        shuffled = sides.copy()
        for block in blocks:
            shuffled[block] = rng.permutation(sides[block])
        more += _statistic(features, shuffled) >= seen
    note = "the first tokens of the samples differ from the baseline's (the weaker check: no log probabilities)"
    check = Check("two samples, permutation", seen, more / (EXCHANGES + 1), len(sides), note=note)
    proved = (
        f"the first {len(PLACES)} tokens of {len(sides)} samples do not tell arm from baseline. This is the weaker "
        "check: the server gives no log probabilities"
    )
    return Findings([check], proved=proved)


def _features(by_prompt: dict[int, list[Reply]]) -> tuple[FloatArray, FloatArray, list[slice]]:
    """Indicators [replies, (prompt, place, token)], the side of each reply (1: arm), and the replies of each prompt."""
    columns: dict[tuple[int, int, int], int] = {}
    rows: list[list[int]] = []
    sides: list[float] = []
    blocks: list[slice] = []
    for prompt, found in sorted(by_prompt.items()):
        blocks.append(slice(len(rows), len(rows) + len(found)))
        for reply in found:
            keys = [(prompt, i, reply.token_ids[i]) for i in PLACES if i < len(reply.token_ids)]
            rows.append([columns.setdefault(key, len(columns)) for key in keys])
            sides.append(float(reply.side == "arm"))
    features = np.zeros((len(rows), len(columns)))
    for number, row in enumerate(rows):
        features[number, row] = 1.0
    return features, np.array(sides), blocks


def _statistic(features: FloatArray, sides: FloatArray) -> float:
    ours, theirs = sides @ features, (1 - sides) @ features
    return float(((ours - theirs) ** 2 / (ours + theirs)).sum())
