"""Level 3: can the acceptance that the server reports be true, and is it what the model's probabilities allow?"""

import math
from collections.abc import Sequence

from scipy import stats

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.transform import Transformed, indices
from toolkit.engines.contract import SpecCounts

LIKELY = 0.05
"""Kept drafts with a smaller probability are left out of the sum: one of them would outweigh all others."""
ENOUGH = 100
"""Drafts that were tried."""


def judge_rates(replies: Sequence[Reply], arm: Transformed, one_hot: bool) -> Findings:
    """Counts that are impossible, and for one-hot drafts the acceptance against sum min(p, q).

    A one-hot draft d is kept with sum min(p, q) = p(d) (Leviathan et al. 2211.17192, sec. 2.3, with q(d) = 1). So
    1 / p(d), summed over the drafts that were kept, has the number of drafts that were tried as its expectation,
    whatever was drafted (Horvitz and Thompson, Journal of the American Statistical Association 47, 1952), and drafts
    that are kept too readily make it larger.
    """
    counted = [reply for reply in replies if reply.side == "arm" and reply.counts is not None]
    if not counted:
        return Findings(gap="the server does not report acceptance per request")
    counts = [reply.counts for reply in counted if reply.counts is not None]
    if not sum(one.drafted for one in counts):
        return Findings([_possible(counts)], gap="nothing was drafted")
    checks = [_possible(counts)]
    gap = "the drafts' own probabilities are not reported: only whether the counts are possible was checked"
    if one_hot:
        tried = sum(_tried(one) for one in counts if one.per_step_drafted is not None)
        judged = _one_hot(replies, arm, tried)
        if judged is None:
            gap = f"too few drafts were tried ({tried}), or which tokens were kept drafts is not known"
        else:
            checks.append(judged)
            gap = ""
    accepted, drafted = sum(one.accepted for one in counts), sum(one.drafted for one in counts)
    proved = f"{accepted} of {drafted} draft tokens were kept, no more often than the model's probabilities allow"
    return Findings(checks, gap, proved)


def _possible(counts: Sequence[SpecCounts]) -> Check:
    wrong = [one for one in counts if not _is_possible(one)]
    note = f"{len(wrong)} of {len(counts)} requests report counts that no engine can have"
    return Check("counts are possible", len(wrong), 0.0 if wrong else 1.0, len(counts), note=note)


def _is_possible(one: SpecCounts) -> bool:
    if not 0 <= one.accepted <= one.drafted or not 0 <= one.steps <= one.drafted:
        return False
    drafted, accepted = one.per_step_drafted, one.per_step_accepted
    if drafted is None or accepted is None:
        return True
    most = one.num_speculative_tokens or max(drafted, default=0)
    steps = len(drafted) == len(accepted) == one.steps
    sums = (sum(drafted), sum(accepted)) == (one.drafted, one.accepted)
    return steps and sums and all(0 <= a <= d <= most for a, d in zip(accepted, drafted, strict=True))


def _tried(one: SpecCounts) -> int:
    """Drafts that met the rule: those behind a rejected one never did."""
    pairs = zip(one.per_step_accepted or [], one.per_step_drafted or [], strict=True)
    return sum(accepted + (accepted < drafted) for accepted, drafted in pairs)


def _one_hot(replies: Sequence[Reply], arm: Transformed, tried: int) -> Check | None:
    scored = [reply for reply in replies if reply.side == "arm" and reply.scores is not None]
    kept = [is_kept for reply in scored for is_kept in _kept(reply)[1:]]
    if tried < ENOUGH or len(kept) != len(arm.probability):
        return None
    chances = [p for p, is_kept in zip(arm.probability, kept, strict=True) if is_kept and p >= LIKELY]
    total = math.fsum(1 / p for p in chances)
    spread = math.sqrt(math.fsum((1 - p) / p**2 for p in chances) or 1.0)
    z = (total - tried) / spread
    return Check(
        "kept drafts against sum min(p, q)",
        total / tried,
        float(stats.norm.sf(z)),
        tried,
        note=f"kept drafts speak for {total:.0f} tried ones, {tried} were tried",
    )


def _kept(reply: Reply) -> list[bool]:
    """Of each token, whether it was a kept draft: all of a chunk but its last. A trimmed last chunk is taken alike."""
    place = indices(reply)
    return [following > 0 for following in [*place[1:], 0]]
