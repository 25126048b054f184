"""The scoreboard keeps what past runs gave: SCOREBOARD.jsonl holds it, a row per arm and load, SCOREBOARD.md shows it.

`rows.Row` is the specification of the .jsonl. The .md is only ever appended to, so that notes written between its
tables stay; each of its rows ends in a comment with the row's id, by which a lost row is missed and put back.
"""

import csv
import errno
import fcntl
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from toolkit.analysis.escape import csv_cell, json_in_html, markdown
from toolkit.analysis.records import SCHEMA
from toolkit.analysis.rows import Row, rows_of
from toolkit.analysis.run import Run
from toolkit.errors import InputError

Form = Literal["md", "csv", "json"]

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


def add(run: Run, change: str | None, board: Path = Path("SCOREBOARD.md")) -> int:
    """Append the rows of `run` that `board` lacks and return how many these were; rows that the .md lost are put back.

    A row per arm and concurrency, and before them one per concurrency for the baseline, over all cells that it served
    for any of the arms. `change` is by default the run's own. A run that was extended adds new rows, the same run
    nothing, whatever its `change`. Raises InputError: a run without finished cells or with synthetic acceptance, a
    malformed line, a disk that refuses.
    """
    rows, data = rows_of(run, change), _data_of(board)
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
