"""Level 3: can the acceptance that the server reports be true, and is it what the model's probabilities allow?"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.transform import BoolArray, FloatArray, Transformed, indices
from toolkit.engines.contract import Engine, SpecCounts

LIKELY = 0.05
"""Kept drafts with a smaller probability are left out of the sum: one of them would outweigh all others."""
ENOUGH = 100
"""Drafts that were tried."""
ROUNDING = 0.02
"""Relative. Logits that are off by 0.1 make the mean of 1 / p so much larger at most."""


def judge_rates(replies: Sequence[Reply], arm: Transformed, one_hot: bool, engine: Engine) -> Findings:
    """Counts that are impossible, and for one-hot drafts the acceptance against sum min(p, q).

    A one-hot draft d is kept with sum min(p, q) = p(d) (Leviathan et al. 2211.17192, sec. 2.3, with q(d) = 1). So
    1 / p(d), summed over the drafts that were kept, has the number of drafts that were tried as its expectation,
    whatever was drafted (Horvitz and Thompson, Journal of the American Statistical Association 47, 1952), and drafts
    that are kept too readily make it larger. Less is no fault: kept drafts that a stop or max_tokens trimmed, and
    unlikely ones, are missing from the sum. `arm` are the transforms of those of `replies` that have scores, `engine`
    is the arm's.
    """
    ours = [reply for reply in replies if reply.side == "arm"]
    counted = [(reply, reply.counts) for reply in ours if reply.counts is not None]
    if not counted:
        return Findings(gap="the server does not report acceptance per request")
    wrong = sum(not is_possible(reply, counts, engine) for reply, counts in counted)
    note = f"{wrong} of {len(counted)} requests report counts that no engine can have"
    checks = [Check("counts are possible", wrong, 0.0 if wrong else 1.0, len(counted), note=note)]
    accepted, drafted = (sum(getattr(one, name) for _, one in counted) for name in ("accepted", "drafted"))
    if wrong or not drafted:
        return Findings(checks, gap="" if wrong else "nothing was drafted")
    gap = "the drafts' own probabilities are not reported: only whether the counts are possible was checked"
    if one_hot:
        tried, chances = _tried_and_kept([reply for reply in ours if reply.scores is not None], arm, engine)
        gap = "" if tried >= ENOUGH else f"{tried} drafts were tried where a chunk can be read as a step"
        checks += [] if gap else [_sum_of_odds(tried, chances)]
    proved = f"{accepted} of {drafted} draft tokens were kept, no more often than the model's probabilities allow"
    return Findings(checks, gap, proved)


def is_possible(reply: Reply, counts: SpecCounts, engine: Engine) -> bool:
    """Whether an engine that emitted this reply can have such counts. A step is counted before a stop trims it."""
    if not (0 <= counts.accepted <= counts.drafted and 0 <= (counts.steps or 0) <= counts.drafted):
        return False
    drafted, accepted = counts.per_step_drafted, counts.per_step_accepted
    if drafted is not None and accepted is not None:
        most = counts.num_speculative_tokens or max(drafted, default=0)
        told = len(drafted) == len(accepted) == counts.steps
        sums = (sum(drafted), sum(accepted)) == (counts.drafted, counts.accepted)
        if not told or not sums or not all(0 <= a <= d <= most for a, d in zip(accepted, drafted, strict=True)):
            return False
    return not reply.chunks or engine.passes(len(reply.token_ids), reply.chunks, counts) is not None


def _tried_and_kept(replies: Sequence[Reply], arm: Transformed, engine: Engine) -> tuple[int, FloatArray]:
    """How many drafts met the rule, and the probabilities of those that were kept.

    Of replies whose chunks are one pass each: in a merged chunk, a token that is no draft would pass for a kept one.
    """
    tried, kept = 0, list[bool]()
    for reply in replies:
        flags = [False] * max(len(reply.token_ids) - 1, 0)
        counts = reply.counts
        if counts is not None and counts.per_step_drafted and counts.per_step_accepted:
            passes = engine.passes(len(reply.token_ids), reply.chunks, counts)
            if passes == (len(reply.chunks), len(reply.chunks)):
                tried += sum(_judged(counts))
                flags = [following > 0 for following in [*indices(reply)[2:], 0]][: len(flags)]
        kept += flags
    likely: BoolArray = np.array(kept, dtype=bool) & (arm.probability >= LIKELY)
    return tried, arm.probability[likely]


def _judged(counts: SpecCounts) -> Iterator[int]:
    """Drafts of each step that met the rule: those behind a rejected one never did."""
    for accepted, drafted in zip(counts.per_step_accepted or [], counts.per_step_drafted or [], strict=True):
        yield accepted + (accepted < drafted)


def _sum_of_odds(tried: int, chances: FloatArray) -> Check:
    total, spread = float((1 / chances).sum()), math.sqrt(float(((1 - chances) / chances**2).sum()) or 1.0)
    return Check(
        "kept drafts against sum min(p, q)",
        total / tried,
        float(stats.norm.sf((total - (1 + ROUNDING) * tried) / spread)),
        tried,
        note=f"kept drafts speak for {total:.0f} tried ones, {tried} were tried",
    )
