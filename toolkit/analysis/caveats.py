"""Reasons for doubt: what is said before any speedup, why a level has no verdict, what to know before believing one."""

from collections.abc import Iterator, Sequence

from toolkit.analysis.causes import runs_few
from toolkit.analysis.levels import LevelStats
from toolkit.analysis.pairs import ENOUGH_PAIRS, Pair
from toolkit.analysis.records import CellRecord, Side
from toolkit.analysis.run import RANDOM, SYNTHETIC, ArmInfo, Run

DOES_NOTHING = 1.1  # acceptance length
COLLAPSED = 0.1  # of the draft acceptance rate of a twin
ENOUGH_KEPT = 10  # draft tokens that the twin's rate would have kept: fewer may be missing by chance
TOO_MANY_FAILED = 0.01
HELD_BACK = (
    0.01  # share of a cell's slots x seconds that waited for a rate limit: above it the limit is what is measured
)
CLIENT_LIMIT = 0.8  # of a core: above it chunks wait for the client, whose one thread reads all streams
REQUESTS_PER_SLOT = 4
REUSED = "prompts were reused, caches may have answered"


def caveats(run: Run, stats: Sequence[LevelStats]) -> list[str]:
    """What is said before any speedup, most important first: one sentence each, without its full stop.

    Prompts that are no language, a draft that does nothing, drafts that were accepted by lot, acceptance that
    collapsed, prompts that were reused.
    """
    arms = {arm.name: arm for arm in run.info.arms}
    by_arm = {name: [one for one in stats if (one.arm, one.side) == (name, "arm")] for name in arms}
    said = [RANDOM] if run.info.workload.random else []
    said += [f"{name}: {idle}" for name in arms if (idle := does_nothing(arms[name], by_arm[name]))]
    baseline = [run.info.baseline] if run.info.baseline else []
    said += [
        f"{info.name}: {SYNTHETIC}, its drafts were accepted by lot"
        for info in [*arms.values(), *baseline]
        if info.synthetic
    ]
    said += _collapsed(arms, [one for levels in by_arm.values() for one in levels])
    return said + ([REUSED] if run.info.workload.reuse else [])


def no_verdict(
    run: Run,
    arm: ArmInfo,
    ours: LevelStats,
    theirs: LevelStats | None,
    pairs: Sequence[Pair],
    peaks: dict[Side, float],
    cells: Sequence[CellRecord] = (),
) -> str:
    """Why this level can have no verdict, or an empty string."""
    baseline, level = run.info.baseline, ours.concurrency
    if run.info.workload.random:
        return RANDOM
    limited = [one for one in cells if (one.held_back or 0.0) > HELD_BACK * level * one.seconds]
    if limited:
        return f"a rate limit of {_and_all(limited)} held requests back: the level measures the limit, not the engine"
    if baseline is None:
        return "no baseline was measured"
    failed = max(stats.failed_share for stats in (ours, theirs) if stats)
    if failed > TOO_MANY_FAILED:
        return f"{failed:.1%} of the requests failed"
    if run.info.requests.get(level, 0) < REQUESTS_PER_SLOT * level:
        return f"{run.info.requests.get(level, 0)} requests a cell are too few: 4 x {level} are needed"
    for info, stats in ((arm, ours), (baseline, theirs)):
        if info.kv_tokens and stats and stats.mean_tokens_held and info.kv_tokens < level * stats.mean_tokens_held:
            fit = int(info.kv_tokens / stats.mean_tokens_held)
            return f"the KV cache of {info.name} holds about {fit} of {level} requests"
    for side, peak in sorted(peaks.items()):
        if runs_few(peak, level):
            name = arm.name if side == "arm" else baseline.name
            return f"{name} never ran more than {peak:.0f} of {level} requests at once"
    without = sum(not pair.has_windows for pair in pairs)
    if without:
        return f"{_count(without, 'pair')} had no window in which all {level} requests ran"
    usable = sum(pair.log_ratio is not None for pair in pairs)
    if usable < ENOUGH_PAIRS:
        return f"{_count(usable, 'pair')} measured, {ENOUGH_PAIRS} are needed"
    return ""


def notes(run: Run, arm: ArmInfo, cells: Sequence[CellRecord]) -> list[str]:
    """What a reader must know before believing the numbers of a level."""
    said = []
    baseline = run.info.baseline
    if baseline is not None and baseline.speculates:
        said.append(f"the baseline {baseline.name} speculates too")
    if baseline is not None and arm.scheduling and baseline.scheduling and arm.scheduling != baseline.scheduling:
        said.append(
            f"{arm.name} schedules {arm.scheduling}ly, {baseline.name} {baseline.scheduling}ly: "
            "part of the difference is that"
        )
    if baseline is not None and run.info.resident is False:
        said.append("the engines took turns in memory, so the sides of a pair were minutes apart")
    if any(record.client_cpu > CLIENT_LIMIT for record in cells):
        said.append("the load client itself was near its limit")
    if held := [record for record in cells if record.rate_limited]:
        requests, seconds = sum(one.rate_limited or 0 for one in held), sum(one.held_back or 0.0 for one in held)
        said.append(
            f"a rate limit of {_and_all(held)} held back {_count(requests, 'request')} for {seconds:.0f} s in all"
        )
    if run.info.workload.reuse:
        said.append(REUSED)
    digests: dict[int, set[str]] = {}
    for record in cells:
        digests.setdefault(record.cell.round, set()).add(record.prompts_digest)
    if any(len(found) > 1 for found in digests.values()):
        said.append("a resumed pair had different prompts on its two sides")
    return said


def does_nothing(arm: ArmInfo, levels: Sequence[LevelStats]) -> str:
    """In what way the draft of an arm does nothing at these levels of it, or an empty string."""
    lengths = [one.acceptance_length for one in levels if one.acceptance_length is not None]
    if lengths and max(lengths) < DOES_NOTHING:
        return f"this draft does nothing here, its acceptance length is {max(lengths):.2f} at best"
    if arm.speculates and levels and all(one.drafted == 0 for one in levels):
        return "this draft does nothing here, not one token was drafted"
    return ""


def _collapsed(arms: dict[str, ArmInfo], stats: Sequence[LevelStats]) -> Iterator[str]:
    """Levels that keep a tiny share of what a twin keeps: another level of the arm, or an arm of the same method."""
    rated = [(one, one.draft_acceptance_rate) for one in stats if one.draft_acceptance_rate is not None]
    for one, rate in rated:
        arm = arms[one.arm]
        twins = [
            (other_rate, other)
            for other, other_rate in rated
            if other.arm == one.arm or (arm.method and arms[other.arm].method == arm.method)
        ]
        best, twin = max(twins, key=lambda pair: pair[0])
        if rate < COLLAPSED * best and best * (one.drafted or 0) >= ENOUGH_KEPT:
            yield (
                f"{_named(arm, one)} keeps {rate:.1%} of its draft tokens where {_named(arms[twin.arm], twin)} keeps "
                f"{best:.1%}: acceptance collapsed, which is a fault more often than a property of the draft"
            )


def _named(arm: ArmInfo, level: LevelStats) -> str:
    return f"{arm.name} at {level.concurrency}" + (f" ({arm.scheduling})" if arm.scheduling else "")


def _and_all(cells: Sequence[CellRecord]) -> str:
    return " and ".join(sorted({one.served_by for one in cells}))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
