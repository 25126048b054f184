"""What a run leaves on the scoreboard: one row per side and concurrency."""

import hashlib
import json
from datetime import date, datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from toolkit.analysis.crossover import Level, Verdict, crossover
from toolkit.analysis.escape import one_line
from toolkit.analysis.levels import LevelStats, baseline_stats, level_stats
from toolkit.analysis.records import SCHEMA, Side
from toolkit.analysis.run import ArmInfo, Run
from toolkit.errors import InputError

Text = Annotated[str, BeforeValidator(lambda value: one_line(value) if isinstance(value, str) else value)]


class Row(BaseModel):
    """One line of SCOREBOARD.jsonl: one side of an arm at one concurrency. Unavailable is None, never 0.

    Numbers keep six significant digits, so that another version of a numeric library makes the same row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    date: date
    target: Text
    engine: Text
    engine_version: Text | None = None
    precision: Text | None = None
    method: Text | None = Field(None, description="none without speculation; null when the server does not tell")
    num_speculative_tokens: int | None = None
    workload: Text
    concurrency: int
    tokens_per_second: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None
    tokens_per_pass: float | None = None
    draft_acceptance_rate: float | None = None
    speedup: float | None = Field(None, description="over the baseline; it and the next five are null for a baseline")
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict | None = None
    reason: Text | None = None
    pairs: int | None = None
    change: Text | None = None
    arm: Text = Field(description="profile or running server that was measured")
    side: Side
    cells: int
    run: Text = Field(description="resume key of the run")
    id: str = Field("", description="digest over run, side, arm, workload, concurrency and the measured numbers")


# What does not tell one row from another: words about the numbers, and what the run's resume key stands for.
_NOT_IDENTITY = {"date", "target", "engine", "engine_version", "precision", "method", "num_speculative_tokens"} | {
    *("verdict", "reason", "change", "id"),
}


def rows_of(run: Run, change: str | None) -> list[Row]:
    """One row per concurrency of the baseline, over all cells that it served for any of the arms, then of each arm.

    Over random prompts a row is labelled so and claims neither acceptance nor speedup.

    Raises InputError: a run without finished cells or with synthetic acceptance.
    """
    baseline = run.info.baseline
    for info in [*run.info.arms, *([baseline] if baseline else [])]:
        if info.synthetic:
            raise InputError(
                f"{run.folder}: {info.name} ran with synthetic acceptance: its drafts were accepted by lot. Its "
                "numbers show what a cost model needs and are no result; a scoreboard takes real acceptance only."
            )
    rows = [_row(run, baseline, stats, None, None) for stats in baseline_stats(run)] if baseline else []
    served = level_stats(run)
    for arm, result in zip(run.info.arms, crossover(run).results, strict=True):
        levels = {level.concurrency: level for level in result.levels}
        mine = [stats for stats in served if (stats.arm, stats.side) == (arm.name, "arm")]
        said = run.info.change if change is None else change
        rows += [_row(run, arm, stats, levels.get(stats.concurrency), said) for stats in mine]
    if not rows:
        raise InputError(f"{run.folder}: no cell of this run is finished. Repeat its sweep command to go on with it.")
    return rows


def _row(run: Run, info: ArmInfo, stats: LevelStats, level: Level | None, change: str | None) -> Row:
    try:
        created = datetime.fromisoformat(run.info.created).date()
    except ValueError:
        raise InputError(f"{run.folder / 'run.json'}: created: {run.info.created!r} is no date.") from None
    of = run.info.workload
    row = Row(
        date=created,
        target=run.info.target or info.model,
        engine=info.engine,
        engine_version=info.engine_version,
        precision=info.precision,
        method=info.method,
        num_speculative_tokens=info.num_speculative_tokens,
        workload=stats.workload + (" (reused)" if of.reuse else "") + (" (load only)" if of.random else ""),
        concurrency=stats.concurrency,
        tokens_per_second=_six(stats.tokens_per_second),
        ttft_p50_ms=_six(stats.ttft_ms.p50 if stats.ttft_ms else None),
        ttft_p95_ms=_six(stats.ttft_ms.p95 if stats.ttft_ms else None),
        tpot_p50_ms=_six(stats.tpot_ms.p50 if stats.tpot_ms else None),
        tpot_p95_ms=_six(stats.tpot_ms.p95 if stats.tpot_ms else None),
        tokens_per_pass=_six(stats.tokens_per_pass),
        draft_acceptance_rate=_six(stats.draft_acceptance_rate),
        speedup=_six(level.speedup if level else None),
        speedup_low=_six(level.low if level else None),
        speedup_high=_six(level.high if level else None),
        verdict=level.verdict if level and not of.random else None,
        reason=level.reason if level else None,
        pairs=level.pairs if level else None,
        change=change or None,
        arm=info.name,
        side=stats.side,
        cells=stats.cells,
        run=run.info.key,
    )
    identity = json.dumps(row.model_dump(mode="json", exclude=_NOT_IDENTITY), sort_keys=True, separators=(",", ":"))
    return row.model_copy(update={"id": hashlib.sha256(identity.encode()).hexdigest()[:16]})


def _six(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
