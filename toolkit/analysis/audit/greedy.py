"""Level 1: at temperature 0, where do the arm's tokens leave the baseline's, and is rounding enough to explain it?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest

import numpy as np

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import LOWEST, PROMPTS_DIFFER, Ranked, Reply, prompts_differ

FLOOR = 0.002
"""Nats. The scale of rounding is never taken to be smaller, however still the control lay: kernels differ by shape."""
COARSEST = 0.1
"""Nats. Of what lies between the two servers' log probabilities, so much may be rounding: a broken cache moves them
too, and must not excuse itself."""
ENOUGH = 4
"""Prompts that must have been compared."""
NEAR_TIE = 0.01
"""A divergence that rounding explains with a smaller chance is no near tie."""
ENDED = 99.0
"""Nats: the gap where one reply broke off."""
SHOWN = 3
"""Examples."""

ByPrompt = dict[int, Reply]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two replies differ, and both tokens; None where a reply has ended.

    `gap` is in nats: the baseline's best log probability there less that of the arm's token, or at least so much; None
    when it is not known, `ENDED` when a reply broke off.
    """

    prompt: int
    position: int
    ours: int | None
    theirs: int | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding does to the gap between two log probabilities: `scale` in nats, of an exponential tail.

    Such a tail is heavier than the normal one that rounding has.
    """

    scale: float

    def p(self, gap: float, positions: int) -> float:
        """An upper bound of the chance that rounding turned a gap as wide as this at one of so many positions."""
        return min(1.0, positions * math.exp(-gap / self.scale))


@dataclass(frozen=True, slots=True)
class Pair:
    """The arm's replies at one concurrency, and the baseline's of the nearest shape."""

    concurrency: int
    ours: ByPrompt
    nearest: int
    theirs: ByPrompt

    @property
    def prompts(self) -> list[int]:
        """Those that both answered."""
        return sorted(self.ours.keys() & self.theirs.keys())


def judge_greedy(replies: Sequence[Reply], drafts_per_step: int) -> Findings:
    """The arm at each concurrency against the baseline of the nearest shape; the baseline's own shapes are the control.

    A step that verifies K drafts rounds as a batch K + 1 times as large does, so `drafts_per_step` chooses the shape.
    """
    arm, shapes = _by_shape(replies, "arm"), _by_shape(replies, "baseline")
    if not arm or not shapes:
        return Findings(gap="no greedy replies were compared")
    if prompts_differ(replies):
        return Findings(gap=PROMPTS_DIFFER)
    pairs = [_paired(n, ours, shapes, drafts_per_step) for n, ours in sorted(arm.items())]
    control = rounding_scale(shapes)
    tokens: list[Check] = []
    found: list[tuple[Pair, Divergence]] = []
    for pair in pairs:
        differ = divergences(pair.ours, pair.theirs)
        found += [(pair, one) for one in differ]
        tokens.append(_tokens(pair, differ, Rounding(max(control, _between(pair)))))
    endings = [*(test for pair in pairs for test in _endings(pair)), *_stops(replies)]
    found.sort(key=lambda one: -(one[1].gap or 0.0))
    examples = [test.note for test in endings if test.p == 0.0] + [_example(pair, one) for pair, one in found]
    gap = _gap(pairs, shapes, [one for _, one in found])
    return Findings([*tokens, *endings], gap, _proved(tokens, shapes), examples[:SHOWN])


def rounding_scale(shapes: dict[int, ByPrompt]) -> float:
    """The control, in nats: how far the lead of one and the same token lies apart between the baseline's own shapes.

    By the 95th percentile of the differences, which is 3.0 scales of a Laplace distribution.
    """
    moved = [one for a, b in combinations(shapes.values(), 2) for one in _moved(a, b)]
    return max(float(np.quantile(moved, 0.95)) / 3 if moved else 0.0, FLOOR)


def _between(pair: Pair) -> float:
    """The same between arm and baseline: its kernels may differ where the baseline's shapes use one.

    By the median, which is log 2 scales, so that places that a fault moved do not count.
    """
    moved = list(_moved(pair.ours, pair.theirs))
    return min(float(np.median(moved)) / math.log(2), COARSEST) if moved else 0.0


def divergences(ours: ByPrompt, theirs: ByPrompt) -> list[Divergence]:
    """The first divergence of each prompt that has one; tokens, not text, are compared."""
    found = []
    for prompt in sorted(ours.keys() & theirs.keys()):
        a, b = ours[prompt], theirs[prompt]
        at = _first_difference(a, b)
        if at < max(len(a.token_ids), len(b.token_ids)):
            x, y = (one.token_ids[at] if at < len(one.token_ids) else None for one in (a, b))
            found.append(Divergence(prompt, at, x, y, _gap_at(a, b, at)))
    return found


def _first_difference(a: Reply, b: Reply) -> int:
    """The place from which the tokens differ; the length of both where they do not."""
    pairs = enumerate(zip_longest(a.token_ids, b.token_ids))
    return next((at for at, (x, y) in pairs if x != y), len(a.token_ids))


def _gap_at(ours: Reply, theirs: Reply, at: int) -> float | None:
    if at < min(len(ours.token_ids), len(theirs.token_ids)):
        if theirs.top is None:
            return None
        listed = dict(theirs.top[at])
        return max(listed.values()) - listed.get(ours.token_ids[at], min(listed.values()))
    short, long = (ours, theirs) if at == len(ours.token_ids) else (theirs, ours)
    if short.finish_reason != "stop" and short.chunks:
        return ENDED  # both were given the same number of tokens
    # An end of text that its server does not list: the rival of the best token, if it was one, is the second at best.
    best = sorted((logprob for _, logprob in long.top[at]), reverse=True) if long.top else []
    return best[0] - best[1] if len(best) > 1 else None


def _moved(ones: ByPrompt, others: ByPrompt) -> Iterator[float]:
    """How far the lead of the first reply's tokens lies apart between two replies, up to where they diverge."""
    for prompt in ones.keys() & others.keys():
        one, other = ones[prompt], others[prompt]
        alike = one.token_ids[: _first_difference(one, other) + 1]
        for token, a, b in zip(alike, one.top or [], other.top or [], strict=False):
            first, second = _lead(a, token), _lead(b, token)
            if first is not None and second is not None:
                yield abs(first - second)


def _lead(top: Ranked, token: int) -> float | None:
    """How far `token` leads the best other one; negative when it trails."""
    mine = dict(top).get(token)
    rest = [logprob for one, logprob in top if one != token and logprob > LOWEST]
    return mine - max(rest) if mine is not None and rest else None


def _by_shape(replies: Sequence[Reply], side: str) -> dict[int, ByPrompt]:
    found: dict[int, ByPrompt] = {}
    for reply in replies:
        if reply.question == "greedy" and reply.side == side:
            found.setdefault(reply.concurrency, {})[reply.prompt] = reply
    return found


def _paired(concurrency: int, ours: ByPrompt, shapes: dict[int, ByPrompt], drafts_per_step: int) -> Pair:
    rows = concurrency * (drafts_per_step + 1)
    nearest = min(shapes, key=lambda n: (abs(math.log(n / rows)), n))
    return Pair(concurrency, ours, nearest, shapes[nearest])


def _tokens(pair: Pair, differ: Sequence[Divergence], rounding: Rounding) -> Check:
    compared = sum(_first_difference(pair.ours[i], pair.theirs[i]) for i in pair.prompts) + len(differ)
    gaps = [one.gap for one in differ if one.gap is not None]
    near = sum(rounding.p(gap, compared) >= NEAR_TIE for gap in gaps)
    unknown = f", {len(differ) - len(gaps)} by an unknown gap" if len(gaps) < len(differ) else ""
    return Check(
        f"tokens at concurrency {pair.concurrency}, baseline at {pair.nearest}",
        max(gaps, default=0.0),
        rounding.p(max(gaps), compared) if gaps else 1.0,
        compared,
        note=f"{len(differ)} of {len(pair.prompts)} prompts diverge, {near} of them at a near tie{unknown}; the widest "
        f"gap is {max(gaps, default=0.0):.3g} nats where rounding moves gaps by {rounding.scale:.2g}",
    )


def _endings(pair: Pair) -> list[Check]:
    """Where the tokens agree, everything else must: the reason to finish, and the text, its tail included."""
    same = [i for i in pair.prompts if pair.ours[i].token_ids == pair.theirs[i].token_ids]
    tests = []
    for what, told in (("finish reasons", "finish_reason"), ("texts of the same tokens", "text")):
        differ = [i for i in same if getattr(pair.ours[i], told) != getattr(pair.theirs[i], told)]
        where = f", like prompt {differ[0]}" if differ else ""
        note = f"{what}: {len(differ)} of {len(same)} replies differ though the tokens agree{where}"
        name = f"{what} at concurrency {pair.concurrency}"
        tests.append(Check(name, len(differ), 0.0 if differ else 1.0, len(same), note=note))
    return tests


def _stops(replies: Sequence[Reply]) -> list[Check]:
    """Under one stop string both sides end at the same place, where their tokens agree that far."""
    ours, theirs = (
        {one.prompt: one for one in replies if one.question == "stop" and one.side == side}
        for side in ("arm", "baseline")
    )
    pairs = [(ours[i], theirs[i]) for i in sorted(ours.keys() & theirs.keys())]
    kept = [(a, b) for a, b in pairs if _first_difference(a, b) >= min(len(a.token_ids), len(b.token_ids))]
    if not kept:
        return []
    wrong = [a for a, b in kept if (a.text, a.finish_reason) != (b.text, b.finish_reason)]
    where = f", like prompt {wrong[0].prompt} at {wrong[0].stop!r}" if wrong else ""
    note = f"{len(wrong)} of {len(kept)} replies end elsewhere or otherwise under a stop string{where}"
    return [Check("stop strings", len(wrong), 0.0 if wrong else 1.0, len(kept), note=note)]


def _example(pair: Pair, one: Divergence) -> str:
    ours, theirs = pair.ours[one.prompt].text, pair.theirs[one.prompt].text
    shared = next((i for i, (x, y) in enumerate(zip_longest(ours, theirs)) if x != y), len(ours))
    gap = "unknown" if one.gap is None else f"{one.gap:.3g} nats"
    sides = (("the arm goes on", ours, one.ours), ("the baseline", theirs, one.theirs))
    said = ", ".join(f"{who} {text[shared : shared + 30]!r} (token {token})" for who, text, token in sides)
    where = f"prompt {one.prompt} at concurrency {pair.concurrency}, token {one.position + 1}, gap {gap}"
    return f"{where}: after {ours[max(0, shared - 40) : shared]!r} {said}"


def _gap(pairs: Sequence[Pair], shapes: dict[int, ByPrompt], found: Sequence[Divergence]) -> str:
    if min(len(pair.prompts) for pair in pairs) < ENOUGH:
        return f"fewer than {ENOUGH} prompts were answered by both sides"
    if unknown := sum(one.gap is None for one in found):
        return f"{unknown} replies diverge and the server gives no log probabilities: a near tie, or a fault"
    if found and len(shapes) < 2:
        return "replies diverge, and the baseline was asked at one concurrency only: there is no control"
    return ""


def _proved(tokens: Sequence[Check], shapes: dict[int, ByPrompt]) -> str:
    itself = sum(len(divergences(a, b)) for a, b in combinations(shapes.values(), 2))
    return (
        f"{sum(test.n for test in tokens)} tokens compared; "
        f"{'; '.join(test.note.partition(';')[0] for test in tokens)}; the baseline leaves itself {itself} times when "
        "its batch changes"
    )
