"""What the factors of a level imply, in words: which one turned the sign, and what that says of the machine.

A level is compared with the lowest one measured, each factor being a ratio, arm over baseline. Only a change beyond 5 %
and beyond the noise of both levels is spoken of, and the factor that pulled the speedup down most gives the conclusion.
That none was seen is no proof that there is none: "unchanged" is said only where the whole interval of the change lies
within the 10 % that a level should be able to see.
"""

import math
from dataclasses import dataclass

from toolkit.analysis.power import WORTH_SEEING
from toolkit.engines.contract import LOOKUPS

SMALL = math.log(1.05)
NO_CACHE_OF_ITS_OWN = LOOKUPS | {"medusa", "layer_skip"}  # drafts without keys and values of their own


@dataclass(frozen=True, slots=True)
class Factor:
    """A ratio at one level: the mean of its logarithm over the pairs, and half the length of that mean's interval."""

    log: float
    half: float

    @property
    def ratio(self) -> float:
        return math.exp(self.log)

    def change(self, since: "Factor") -> float:
        """By how much the log ratio moved; 0 when that is small, or within the noise."""
        moved = self.log - since.log
        return moved if abs(moved) > max(SMALL, self._noise(since)) else 0.0

    def unchanged(self, since: "Factor") -> bool:
        """Whether the whole interval of the change lies within WORTH_SEEING, up or down."""
        return abs(self.log - since.log) + self._noise(since) <= math.log(WORTH_SEEING)

    def _noise(self, since: "Factor") -> float:
        """Half the length of the interval of the change; the two levels were measured independently."""
        return math.hypot(self.half, since.half)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A level as its cause is judged by. Factors are arm over baseline; the rest is of the arm alone."""

    concurrency: int
    pairs: int
    speedup: Factor
    tokens_per_pass: Factor | None
    passes_per_iteration: Factor | None
    seconds_per_iteration: Factor | None
    passes_per_second: Factor | None
    arm_tokens_per_pass: float | None
    arm_seconds_per_iteration: float | None
    acceptance_length: float | None
    drafted: float | None
    preempted: float


def cause(here: Evidence, lowest: Evidence) -> str:
    """Which factor made the speedup of `here` what it is, compared with `lowest`; "" when none is known."""
    said = [_drafting(here, lowest), _running(here, lowest)]
    return "; ".join(filter(None, said))


def room(
    concurrency: int,
    running: float | None,
    baseline_running: float | None,
    fits: float | None,
    baseline_fits: float | None,
    method: str | None,
) -> str:
    """Why the arm runs fewer requests than asked while the baseline runs them all; "" when it is not so.

    `running` is the most requests that were seen to run at once, `fits` how many the KV cache holds.
    """
    ran, base_ran = (
        seen if seen is not None else held for seen, held in ((running, fits), (baseline_running, baseline_fits))
    )
    if ran is None or base_ran is None or not runs_few(ran, concurrency) or runs_few(base_ran, concurrency):
        return ""
    told = f"only {math.floor(ran)} of {concurrency} requests run"
    if fits is not None and fits >= concurrency:
        return f"{told}, and not for want of room: the KV cache holds {math.floor(fits)}"
    smaller = fits is not None and baseline_fits is not None and fits < baseline_fits
    if smaller and method is not None and method not in NO_CACHE_OF_ITS_OWN:
        return f"{told}: the draft's KV cache takes the room"
    return f"{told}, the baseline runs {math.floor(base_ran)}"


def runs_few(running: float, concurrency: int) -> bool:
    """Whether `running` is short of the asked concurrency: between two requests a slot is empty for a moment."""
    return running < 0.9 * concurrency


def _drafting(here: Evidence, lowest: Evidence) -> str:
    """What became of the drafts."""
    if here.drafted == 0:
        return "nothing is drafted"
    now, then, per_pass = here.tokens_per_pass, lowest.tokens_per_pass, here.arm_tokens_per_pass
    if now is None or then is None or per_pass is None:
        return ""
    if here is lowest:
        return f"each pass gives {per_pass:.2f} tokens"
    change = now.change(then)
    if not change:
        return "acceptance is unchanged" if now.unchanged(then) else "no change in acceptance was seen"
    numbers = f"{per_pass:.2f} tokens per pass, {lowest.arm_tokens_per_pass:.2f} at {lowest.concurrency}"
    if change > 0:
        return f"acceptance rose: {numbers}"
    was_kept, is_kept = lowest.acceptance_length, here.acceptance_length
    if was_kept is not None and is_kept is not None and math.log(is_kept / was_kept) > -SMALL:
        return f"fewer passes carry a draft: {numbers}"
    return f"acceptance itself fell: {numbers}"


def _running(here: Evidence, lowest: Evidence) -> str:
    """What became of the passes, and the conclusion where that is what pulled the speedup down.

    Where nothing was drafted, drafting is not why iterations take longer.
    """
    worst = _worst(here, lowest)
    by_drafting = worst == "seconds" and here.drafted != 0
    if here.seconds_per_iteration is None or lowest.seconds_per_iteration is None:
        return _passes_per_second(here, lowest)
    took = _longer(here.seconds_per_iteration.ratio)
    if here is lowest:
        costs = here.speedup.log + here.speedup.half < 0
        return f"{took}: drafting costs more than it saves" if costs and by_drafting else took
    if worst == "passes" and here.passes_per_iteration:
        few = f"{here.passes_per_iteration.ratio:.1f}x as many requests share an iteration as in the baseline"
        return f"{few}: {here.preempted:.0f} were preempted for want of KV cache" if here.preempted else few
    before = f"({_times(lowest.seconds_per_iteration.ratio)} at {lowest.concurrency})"
    return f"{took} {before}" + (": compute is saturated" if by_drafting and _grew(here, lowest) else "")


def _worst(here: Evidence, lowest: Evidence) -> str:
    """The factor that pulled the speedup down most: since the lowest level, or at it; "" when it is not down."""
    drops = {}
    for name, factor, before, sign in (
        ("tokens", here.tokens_per_pass, lowest.tokens_per_pass, 1),
        ("passes", here.passes_per_iteration, lowest.passes_per_iteration, 1),
        ("seconds", here.seconds_per_iteration, lowest.seconds_per_iteration, -1),
    ):
        if factor is None or before is None:
            return ""
        drops[name] = sign * (factor.log if here is lowest else factor.change(before))
    fell = here.speedup.log < 0 if here is lowest else here.speedup.change(lowest.speedup) < 0
    worst = min(drops, key=lambda name: drops[name])
    return worst if fell and drops[worst] < 0 else ""


def _grew(here: Evidence, lowest: Evidence) -> bool:
    """Whether iterations take longer than the baseline's, and longer than they did: else nothing is saturated."""
    now, then = here.arm_seconds_per_iteration, lowest.arm_seconds_per_iteration
    longer = here.seconds_per_iteration is not None and here.seconds_per_iteration.log > SMALL
    return longer and now is not None and then is not None and math.log(now / then) > SMALL


def _passes_per_second(here: Evidence, lowest: Evidence) -> str:
    now, then = here.passes_per_second, lowest.passes_per_second
    if now is None or then is None:
        return ""
    before = "" if here is lowest else f" ({_times(then.ratio)} at {lowest.concurrency})"
    return f"passes per second are {_times(now.ratio)} the baseline's{before}"


def _longer(ratio: float) -> str:
    if abs(math.log(ratio)) <= SMALL:
        return "each iteration takes as long as the baseline's"
    return f"each iteration takes {_times(ratio)} {'longer than' if ratio > 1 else 'the time of'} the baseline's"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x"
