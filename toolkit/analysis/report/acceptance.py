"""The section on which draft tokens are kept: by position, by category, by length of the prompt."""

from collections.abc import Sequence
from functools import partial

from toolkit.analysis.acceptance import AcceptanceGroup, Position
from toolkit.analysis.crossover import ArmResult
from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.plots import positions_figure
from toolkit.analysis.report.page import NONE, Section, Table, number, percent, picture, sentence
from toolkit.analysis.run import RANDOM, ArmInfo, Run

BY_POSITION = ("position", "given", "unconditional", "reached", "drafts", "kept")
BY_GROUP = ("requests", "drafted", "accepted", "share", "acceptance length", "tok/pass")


def acceptance(run: Run, one: ArmResult, name: str, remark: str) -> Section:
    """All of it, over all levels; where it is unavailable, why."""
    info = next(info for info in run.info.arms if info.name == one.arm)
    stats = [stats for stats in level_stats(run) if (stats.arm, stats.side) == (one.arm, "arm")]
    positions = one.acceptance.by_position
    groups = {"category": one.acceptance.by_category, "length of prompt": one.acceptance.by_context}
    reason = _reason(run, info, stats)
    tables = [
        Table(f"By {what}", (what, *BY_GROUP), [_group_row(group) for group in members], frozenset({0}))
        for what, members in groups.items()
        if members
    ]
    if not positions and not tables:
        return Section(f"What {one.arm} accepts is unavailable", texts=[reason])
    if not positions:
        return Section(_heading(one.arm, stats, positions), tables=tables, remarks=[reason] if reason else [])
    rows = [_position_row(position) for position in positions]
    points = "; ".join(f"position {row[0]}: given {row[1]}, unconditional {row[2]}" for row in rows)
    return Section(
        heading=_heading(one.arm, stats, positions),
        picture=picture(
            partial(positions_figure, positions, "", remark),
            f"{name}-positions",
            f"Acceptance of {one.arm} by position in the draft. {points}.",
            "Given: of the steps that kept all positions before. Unconditional: of all drafts. All levels together.",
        ),
        tables=[Table("By position in the draft", BY_POSITION, rows), *tables],
        remarks=[reason] if reason else [],
    )


def _heading(arm: str, stats: Sequence[LevelStats], positions: Sequence[Position]) -> str:
    drafted, accepted = (sum(getattr(one, name) or 0 for one in stats) for name in ("drafted", "accepted"))
    parts = [f"{accepted / drafted:.0%} of the drafted tokens are kept"] if drafted else []
    shares = [position.unconditional for position in positions if position.unconditional is not None]
    if len(shares) > 1:
        parts.append(f"{shares[0]:.0%} of drafts keep their first, {shares[-1]:.0%} all {len(shares)}")
    return f"{arm}: {', '.join(parts) or 'what it accepts'}"


def _reason(run: Run, info: ArmInfo, stats: Sequence[LevelStats]) -> str:
    """Why there is not all of it; empty when there is."""
    if run.info.workload.random:
        return sentence(RANDOM)
    if info.speculates is False:
        return f"{info.name} does not speculate."
    if all(one.per_request for one in stats):
        return "" if any(one.drafted for one in stats) else "Not one token was drafted."
    flag = "vLLM tells it per request with --per-request-spec-decode-metrics detailed."
    if any(one.drafted is not None for one in stats):
        return f"Only the server's counters are known, warm-up included: there is no split by request. {flag}"
    return f"The server reports acceptance neither per request nor on /metrics. {flag}"


def _position_row(position: Position) -> tuple[str, ...]:
    reached = NONE if position.reached is None else str(position.reached)
    shares = (percent(position.given), percent(position.unconditional))
    return (str(position.position), *shares, reached, str(position.drafts), str(position.accepted))


def _group_row(group: AcceptanceGroup) -> tuple[str, ...]:
    counts = (str(group.requests), str(group.drafted), str(group.accepted))
    means = (number(group.acceptance_length), number(group.tokens_per_pass))
    return (group.name, *counts, percent(group.draft_acceptance_rate), *means)
