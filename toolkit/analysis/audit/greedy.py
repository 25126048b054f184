"""Level 1: at temperature 0, where do the arm's tokens leave the baseline's, and is rounding enough to explain it?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import Ranked, Reply

FLOOR = 0.002
"""Nats. The scale of rounding is never taken to be smaller, however still the control lay: kernels differ by shape."""
ENOUGH = 4
"""Prompts that must have been compared."""
ENDED = 99.0
"""Nats: the gap where one reply ended and the other did not say so with a token."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two replies differ. `gap` is in nats: the baseline's best log probability there less the
    other token's; None when the baseline did not give it, `ENDED` where a reply had ended: its token is None."""

    prompt: int
    position: int
    ours: int | None
    theirs: int | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class Rounding:
    """What the batch shape alone does to the gap between the two best log probabilities, from the baseline's control.

    Its tail is taken as exponential with the scale that the 95th percentile of |differences| gives (Laplace: heavier
    than the normal one that rounding would have).
    """

    scale: float
    positions: int
    divergences: int

    def p(self, gap: float, positions: int) -> float:
        """An upper bound of the chance that rounding turned a gap as wide as this at one of so many positions."""
        return min(1.0, positions * math.exp(-gap / self.scale))


def judge_greedy(replies: Sequence[Reply], drafts_per_step: int) -> Findings:
    """The arm at each concurrency against the baseline of the nearest shape; the baseline's own shapes are the control.

    A step that verifies K drafts rounds as a batch K + 1 times as large does, so `drafts_per_step` chooses the shape.
    """
    baseline = _by_shape(replies, "baseline")
    arm = _by_shape(replies, "arm")
    if not arm or not baseline:
        return Findings(gap="no greedy replies were compared")
    rounding = rounding_of(list(baseline.values()))
    tests: list[Check] = []
    examples: list[tuple[float, str]] = []
    unknown = 0
    for concurrency, ours in sorted(arm.items()):
        nearest = min(baseline, key=lambda n: (abs(math.log(n / (concurrency * (drafts_per_step + 1)))), n))
        theirs = baseline[nearest]
        found = divergences(ours, theirs)
        compared = sum(min(len(ours[i].token_ids), len(theirs[i].token_ids)) for i in ours.keys() & theirs.keys())
        unknown += sum(one.gap is None for one in found)
        widest = max((one.gap for one in found if one.gap is not None), default=0.0)
        faults = sum(rounding.p(one.gap, compared) < 0.01 for one in found if one.gap is not None)
        tests.append(
            Check(
                f"tokens at concurrency {concurrency}, baseline at {nearest}",
                widest,
                rounding.p(widest, compared) if widest else 1.0,
                compared,
                note=f"{len(found)} of {len(ours)} prompts diverge, {len(found) - faults} of them at a near tie; the "
                f"widest gap is {widest:.3g} nats where batch shape alone moves gaps by {rounding.scale:.2g}",
            )
        )
        tests += _endings(ours, theirs, concurrency)
        examples += [(one.gap or 0.0, _example(one, ours[one.prompt], theirs[one.prompt])) for one in found]
    tests += _stops(replies)
    examples.sort(key=lambda pair: -pair[0])
    return Findings(tests, _gap(arm, baseline, unknown), _proved(tests, rounding), [text for _, text in examples[:3]])


def rounding_of(shapes: Sequence[dict[int, Reply]]) -> Rounding:
    """The control: how far the gap of one and the same position lies apart between two batch shapes."""
    moved: list[float] = []
    diverged = 0
    for number, one in enumerate(shapes):
        for other in shapes[number + 1 :]:
            diverged += len(divergences(one, other))
            for prompt in one.keys() & other.keys():
                moved += _moved(one[prompt], other[prompt])
    scale = float(np.quantile(moved, 0.95)) / 3 if moved else 0.0  # of a Laplace distribution, q95 of |x| is 3.0 scales
    return Rounding(max(scale, FLOOR), len(moved), diverged)


def divergences(ours: dict[int, Reply], theirs: dict[int, Reply]) -> list[Divergence]:
    """The first divergence of each prompt that has one; tokens, not text, are compared."""
    found = []
    for prompt in sorted(ours.keys() & theirs.keys()):
        a, b = ours[prompt], theirs[prompt]
        for position, (x, y) in enumerate(zip_longest(a.token_ids, b.token_ids)):
            if x != y:
                found.append(Divergence(prompt, position, x, y, _gap_at(b, position, x)))
                break
    return found


def _moved(one: Reply, other: Reply) -> list[float]:
    if one.top is None or other.top is None:
        return []
    moved = []
    for x, y, a, b in zip(one.token_ids, other.token_ids, one.top, other.top, strict=False):
        first, second = _lead(a, x), _lead(b, x)
        if first is not None and second is not None:
            moved.append(abs(first - second))
        if x != y:
            break
    return moved


def _lead(top: Ranked, token: int) -> float | None:
    """How far `token` leads the best other one; negative when it trails."""
    mine = dict(top).get(token)
    rest = [logprob for one, logprob in top if one != token]
    return mine - max(rest) if mine is not None and rest else None


def _gap_at(baseline: Reply, position: int, token: int | None) -> float | None:
    if baseline.top is None or position >= len(baseline.top) or token is None:
        return ENDED if token is None or position >= len(baseline.token_ids) else None
    top = baseline.top[position]
    best = max(logprob for _, logprob in top)
    return best - dict(top).get(token, min(logprob for _, logprob in top))  # at least so much when it is not listed


def _endings(ours: dict[int, Reply], theirs: dict[int, Reply], concurrency: int) -> list[Check]:
    """Where the tokens agree, everything else must: the reason to finish, and the text, its tail included."""
    same = [i for i in ours.keys() & theirs.keys() if ours[i].token_ids == theirs[i].token_ids]
    tests = []
    for what, differ in (
        ("finish reasons", [i for i in same if ours[i].finish_reason != theirs[i].finish_reason]),
        ("texts of the same tokens", [i for i in same if ours[i].text != theirs[i].text]),
    ):
        note = f"{len(differ)} of {len(same)} differ though the tokens agree"
        name = f"{what} at concurrency {concurrency}"
        tests.append(Check(name, len(differ), 0.0 if differ else 1.0, len(same), note=note))
    return tests


def _stops(replies: Sequence[Reply]) -> list[Check]:
    """Under one stop string both sides end at the same place, where their tokens agree that far."""
    asked = {
        side: {one.prompt: one for one in replies if one.question == "stop" and one.side == side}
        for side in ("arm", "baseline")
    }
    both = asked["arm"].keys() & asked["baseline"].keys()
    if not both:
        return []
    pairs = [(asked["arm"][i], asked["baseline"][i]) for i in sorted(both)]
    kept = [(a, b) for a, b in pairs if a.token_ids == b.token_ids or _one_runs_on(a, b)]
    wrong = [a for a, b in kept if (a.text, a.finish_reason) != (b.text, b.finish_reason)]
    note = f"{len(wrong)} of {len(kept)} end elsewhere or otherwise under a stop string"
    return [Check("stop strings", len(wrong), 0.0 if wrong else 1.0, len(kept), note=note)]


def _one_runs_on(a: Reply, b: Reply) -> bool:
    short, long = sorted((a.token_ids, b.token_ids), key=len)
    return long[: len(short)] == short


def _by_shape(replies: Sequence[Reply], side: str) -> dict[int, dict[int, Reply]]:
    found: dict[int, dict[int, Reply]] = {}
    for reply in replies:
        if reply.question == "greedy" and reply.side == side:
            found.setdefault(reply.concurrency, {})[reply.prompt] = reply
    return found


def _example(one: Divergence, ours: Reply, theirs: Reply) -> str:
    shared = 0
    while shared < min(len(ours.text), len(theirs.text)) and ours.text[shared] == theirs.text[shared]:
        shared += 1
    gap = "unknown" if one.gap is None else f"{one.gap:.3g} nats"
    return (
        f"prompt {one.prompt}, token {one.position + 1}, gap {gap}: after {ours.text[max(0, shared - 40) : shared]!r} "
        f"the arm goes on {ours.text[shared : shared + 30]!r} (token {one.ours}), "
        f"the baseline {theirs.text[shared : shared + 30]!r} (token {one.theirs})"
    )


def _gap(arm: dict[int, dict[int, Reply]], baseline: dict[int, dict[int, Reply]], unknown: int) -> str:
    if min(len(found) for found in [*arm.values(), *baseline.values()]) < ENOUGH:
        return f"fewer than {ENOUGH} prompts were answered"
    if unknown:
        return f"{unknown} replies diverge and the server gives no log probabilities: a near tie, or a fault"
    if len(baseline) < 2 and unknown:
        return "the baseline was asked at one concurrency only: there is no control"
    return ""


def _proved(tests: Sequence[Check], rounding: Rounding) -> str:
    tokens = [test for test in tests if test.name.startswith("tokens")]
    compared = sum(test.n for test in tokens)
    return (
        f"{compared} tokens compared; {'; '.join(test.note.partition(';')[0] for test in tokens)}; the baseline leaves "
        f"itself {rounding.divergences} times when its batch changes"
    )
