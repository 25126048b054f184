"""The scoreboard keeps what past runs gave: SCOREBOARD.jsonl holds it, a row per arm and load, SCOREBOARD.md shows it.

`Row` is the specification of the .jsonl. The .md is only ever appended to, so that notes written between its tables
stay; each of its rows ends in a comment with the row's id, by which a row that was lost is missed and put back.
"""

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from toolkit.analysis.crossover import Level, Verdict, crossover
from toolkit.analysis.escape import csv_cell, json_in_html, markdown, one_line
from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.records import SCHEMA, CellRecord, RequestRecord, Side
from toolkit.analysis.run import ArmInfo, Run
from toolkit.errors import InputError

Form = Literal["md", "csv", "json"]
Text = Annotated[str, BeforeValidator(lambda value: one_line(value) if isinstance(value, str) else value)]
_Record = TypeVar("_Record", CellRecord, RequestRecord)

UNAVAILABLE = "n/a"
_COLUMNS = [
    *("date", "target", "engine", "precision", "method", "K", "workload", "concurrency", "tok/s"),
    *("TTFT p50/p95 (ms)", "TPOT p50/p95 (ms)", "tokens per pass", "acceptance"),
    *("speedup (95 % interval), verdict", "change"),
]
_HEADER = f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}\n"
_TITLE = (
    "# Scoreboard\n\nOutput tokens per second of each run, and the speedup of speculation over its baseline (method "
    "none) at each concurrency; `toolkit scoreboard add` appends rows and leaves notes of your own alone.\n\n"
)
_SYNTHETIC = re.compile(r"rejection_sample_method\W+synthetic\b|--spec-synth")


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


def add(run: Run, change: str | None, board: Path = Path("SCOREBOARD.md")) -> int:
    """Append the rows of `run` that `board` lacks and return how many these were; rows that the .md lost are put back.

    A row per arm and concurrency, and before them one per concurrency for the baseline, over all cells that it served
    for any of the arms. `change` is by default the run's own. A run that was extended adds new rows, the same run
    nothing, whatever its `change`. Raises InputError: a run without finished cells or with synthetic acceptance, a
    malformed line, a disk that refuses.
    """
    rows, data = _rows(run, change), _data_of(board)
    with _alone(board):
        known, shown = _read(data), _bytes(board)
        ids = {row.id for row in known}
        new = [row for row in rows if row.id not in ids]
        if new:
            before = _bytes(data)
            end = b"" if before.endswith(b"\n") or not before else b"\n"
            lines = "".join(row.model_dump_json(by_alias=True) + "\n" for row in new)
            _replace(data, before + end + lines.encode())
        text = shown.decode("utf-8", "replace")
        lost = {row.id: row for row in [*known, *new] if f"<!-- {row.id} -->" not in text}
        if lost:
            lines = "".join(_markdown_row(row, f" <!-- {row.id} -->") + "\n" for row in lost.values())
            _replace(board, shown + (_before_rows(text) + lines).encode())
    return len(new)


def export(board: Path, form: Form) -> str:
    """The rows of `board` as a Markdown table, or as CSV or JSON with the fields of `Row`; it ends in a newline.

    In CSV, unavailable is empty, and a text that a spreadsheet would take for a formula starts with an apostrophe.
    JSON is `{"schema": 1, "rows": [...]}`. Raises InputError: no scoreboard, a malformed line.
    """
    data = _data_of(board)
    if not data.exists():
        raise InputError(f"{data}: no scoreboard here. `toolkit scoreboard add RUN` begins one.")
    rows = _read(data)
    if form == "md":
        return _HEADER + "".join(_markdown_row(row) + "\n" for row in rows)
    plain = [row.model_dump(mode="json", exclude={"schema_"}) for row in rows]
    if form == "json":
        return json_in_html({"schema": SCHEMA, "rows": plain}) + "\n"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(name for name in Row.model_fields if name != "schema_")
    writer.writerows([csv_cell(value) for value in row.values()] for row in plain)
    return out.getvalue()


def _rows(run: Run, change: str | None) -> list[Row]:
    baseline = run.info.baseline
    for info in [*run.info.arms, *([baseline] if baseline else [])]:
        simulated = any("SIMULATE_ACC" in name for name in info.env or {})  # SGLang's SGLANG_SIMULATE_ACC_LEN
        if simulated or _SYNTHETIC.search(" ".join(info.argv or [])):
            raise InputError(
                f"{run.folder}: {info.name} ran with synthetic acceptance: its drafts were accepted by lot. Its "
                "numbers show what a cost model needs and are no result; a scoreboard takes real acceptance only."
            )
    rows = [_row(run, baseline, stats, None, change) for stats in level_stats(_BaselineOnly(run))] if baseline else []
    served = level_stats(run)
    for arm, result in zip(run.info.arms, crossover(run).results, strict=True):
        levels = {level.concurrency: level for level in result.levels}
        mine = [stats for stats in served if (stats.arm, stats.side) == (arm.name, "arm")]
        rows += [_row(run, arm, stats, levels.get(stats.concurrency), change) for stats in mine]
    if not rows:
        raise InputError(f"{run.folder}: no cell of this run is finished. Repeat its sweep command to go on with it.")
    return rows


class _BaselineOnly(Run):
    """A Run seen as its baseline alone: the cells that it served for several arms count as one arm's."""

    def __init__(self, run: Run) -> None:
        self.folder, self.info, self._whole = run.folder, run.info, run

    def cells(self) -> list[CellRecord]:
        return self._merged(self._whole.cells())

    def requests(self, warmup: bool = False) -> list[RequestRecord]:
        return self._merged(self._whole.requests(warmup))

    def _merged(self, records: Sequence[_Record]) -> list[_Record]:
        return [
            record.model_copy(update={"cell": record.cell.model_copy(update={"arm": ""})})
            for record in records
            if record.cell.side == "baseline"
        ]


def _row(run: Run, info: ArmInfo, stats: LevelStats, level: Level | None, change: str | None) -> Row:
    try:
        created = datetime.fromisoformat(run.info.created).date()
    except ValueError:
        raise InputError(f"{run.folder / 'run.json'}: created: {run.info.created!r} is no date.") from None
    row = Row(
        date=created,
        target=run.info.target or info.model,
        engine=info.engine,
        engine_version=info.engine_version,
        precision=info.precision,
        method=info.method,
        num_speculative_tokens=info.num_speculative_tokens,
        workload=stats.workload,
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
        verdict=level.verdict if level else None,
        reason=level.reason if level else None,
        pairs=level.pairs if level else None,
        change=(run.info.change if change is None else change) or None,
        arm=info.name,
        side=stats.side,
        cells=stats.cells,
        run=run.info.key,
    )
    identity = json.dumps(row.model_dump(mode="json", exclude=_NOT_IDENTITY), sort_keys=True, separators=(",", ":"))
    return row.model_copy(update={"id": hashlib.sha256(identity.encode()).hexdigest()[:16]})


def _six(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _markdown_row(row: Row, mark: str = "") -> str:
    cells = [
        row.date.isoformat(),
        _shown(row.target),
        _shown(f"{row.engine} {row.engine_version or ''}"),
        _shown(row.precision),
        _shown(row.method),
        _number(row.num_speculative_tokens, "d"),
        _shown(row.workload),
        _number(row.concurrency, "d"),
        _number(row.tokens_per_second, ".1f"),
        f"{_number(row.ttft_p50_ms, '.1f')} / {_number(row.ttft_p95_ms, '.1f')}",
        f"{_number(row.tpot_p50_ms, '.2f')} / {_number(row.tpot_p95_ms, '.2f')}",
        _number(row.tokens_per_pass, ".2f"),
        _number(row.draft_acceptance_rate, ".3f"),
        _speedup(row),
        _shown(row.change) + mark,
    ]
    return f"| {' | '.join(cells)} |"


def _speedup(row: Row) -> str:
    interval = "" if row.speedup_low is None else f" ({row.speedup_low:.2f} to {_number(row.speedup_high, '.2f')})"
    ratio = UNAVAILABLE if row.speedup is None else f"{row.speedup:.2f}x{interval}"
    return f"{ratio}, {row.verdict}" if row.verdict else ratio


def _shown(text: str | None) -> str:
    return markdown(text or "") or UNAVAILABLE


def _number(value: float | None, form: str) -> str:
    return UNAVAILABLE if value is None else format(value, form)


def _before_rows(text: str) -> str:
    """What must stand between the text of the .md and further rows, so that these are part of a table of ours."""
    if not text:
        return _TITLE + _HEADER
    end = "" if text.endswith("\n") else "\n"
    *_, last_table = re.split(r"\n(?!\|)", "\n" + text.replace("\r\n", "\n").removesuffix("\n"))
    header = last_table.lstrip("\n").split("\n", 1)[0]
    ours = [cell.strip() for cell in header.split("|")[1:-1]] == _COLUMNS
    return end if ours else f"{end}\n{_HEADER}"


def _data_of(board: Path) -> Path:
    if board.suffix != ".md":
        raise InputError(f"{board}: a scoreboard is a Markdown file: give it a name that ends in .md.")
    return board.with_suffix(".jsonl")


def _read(data: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(_bytes(data).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            raise InputError(f"{data}:{number}: not a row of this version: {problem}. Mend or remove it.") from None
    return rows


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _replace(path: Path, content: bytes) -> None:
    """Write `path` in one step: after a crash or on a full disk it holds what it held."""
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        try:
            with temporary.open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _disk_error(path, error) from None


@contextmanager
def _alone(board: Path) -> Iterator[None]:
    """Wait until no other process adds to a scoreboard in this folder."""
    try:
        folder = os.open(board.parent, os.O_RDONLY)
    except OSError as error:
        raise _disk_error(board, error) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _disk_error(path: Path, error: OSError) -> InputError:
    what = "no space is left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return InputError(f"{path}: cannot be written: {what}. What is there stays; the same command adds what is missing.")
