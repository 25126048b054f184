"""The Run directory: `run.json` says what was measured, `requests.jsonl` and `cells.jsonl` hold what came of it.

The .jsonl files are only ever appended to, a line at a time. A cell is begun once its line stands in `attempts.jsonl`
and counts once it stands in `cells.jsonl`; the requests of an interrupted cell stay on disk under their attempt number
and outside every analysis.
"""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolkit.analysis.records import SCHEMA, AttemptRecord, CellKey, CellRecord, RequestRecord
from toolkit.errors import InputError

Record = TypeVar("Record", RequestRecord, CellRecord, AttemptRecord)

SYNTHETIC = "synthetic acceptance: for sizing only"
RANDOM = "random prompts: for load only, acceptance and speedup are not claimed"
# vLLM: rejection_sample_method; llama.cpp: --spec-synth-*; SGLang: SGLANG_SIMULATE_ACC_LEN and its relatives.
_SYNTHETIC_ARGUMENT = re.compile(r"rejection[-_]sample[-_]method\W+synthetic\b|--spec[-_]synth")
_SYNTHETIC_VARIABLE = re.compile(r"SIMULATE_ACC|SPEC_SYNTH")


class ArmInfo(BaseModel):
    """Where an arm's numbers come from: everything that was launched, or what a running server says of itself."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    engine: str
    engine_version: str | None = None
    model: str
    model_identity: str | None = None
    precision: str | None = None
    method: str | None = Field(default=None, description="none without speculation; null when the server does not tell")
    num_speculative_tokens: int | None = None
    draft: str | None = Field(default=None, description="the draft model or head, where there is one")
    argv: list[str] | None = None
    env: dict[str, str] | None = None
    container: str | None = None
    base_url: str | None = None
    speculates: bool | None = None
    kv_tokens: float | None = None
    facts: dict[str, str] = Field(default_factory=dict)
    scheduling: str | None = None

    @property
    def synthetic(self) -> bool:
        """Whether drafts were accepted by lot and not by the target: such an arm's numbers are for sizing only."""
        by_argument = _SYNTHETIC_ARGUMENT.search(" ".join(self.argv or []))
        return bool(by_argument) or any(_SYNTHETIC_VARIABLE.search(name) for name in self.env or {})


class WorkloadInfo(BaseModel):
    """Which prompts."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    digest: str
    seed: int
    size: int | None
    reuse: bool = Field(False, description="prompts are served more than once: caches may answer")
    random: bool = Field(False, description="prompts without language: for load only, no claim about a draft")


class RunInfo(BaseModel):
    """`run.json`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    toolkit_version: str
    created: str
    target: str | None = None
    change: str | None = None
    arms: list[ArmInfo]
    baseline: ArmInfo | None
    workload: WorkloadInfo
    levels: list[int]
    requests: dict[int, int] = Field(description="measured requests per cell, by concurrency")
    rounds: int | None = Field(description="null when pairs are allocated until a budget ends")
    budget_seconds: float | None = None
    sampling: dict[str, Any]
    profiles: list[str] = Field(default_factory=list, description="--profile, as asked: names or paths")
    baseline_profile: str | None = Field(None, description="--baseline, as asked")
    changes: list[str] = Field(default_factory=list, description="--set KEY=VALUE, as asked")
    part_of: list[str] = Field(default_factory=list, description="the command this Run is a part of, if not a sweep")
    resident: bool | None = Field(None, description="all engines stay up and take turns; null for running servers")
    hardware: dict[str, Any]
    environment: dict[str, str]
    defaults: list[str] = Field(default_factory=list, description="what was not asked for but filled in")
    key_parts: dict[str, Any] = Field(description="everything that can change a number, as the resume key hashes it")
    key: str


def resume_key(parts: dict[str, Any]) -> str:
    """Hash of everything that can change a number."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class Run:
    """A Run directory as it is on disk now, read once, on first need.

    Raises InputError when it is not one, naming the file and line at fault.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "run.json"
        try:
            self.info = RunInfo.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{folder}: not a Run directory, it holds no run.json.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) + ": " if first["loc"] else ""
            raise InputError(f"{path}: not a run.json of this version: {where}{first['msg']}.") from None

    def cells(self) -> list[CellRecord]:
        """The finished cells, each key once, in the order they were measured."""
        return self._cells

    @cached_property
    def _cells(self) -> list[CellRecord]:
        unique: dict[CellKey, CellRecord] = {}
        for record in _read(self.folder / "cells.jsonl", CellRecord):
            unique.setdefault(record.cell, record)
        return list(unique.values())

    @cached_property
    def _requests(self) -> list[RequestRecord]:
        return list(_read(self.folder / "requests.jsonl", RequestRecord))

    def requests(self, warmup: bool = False) -> list[RequestRecord]:
        """The requests of finished cells, of no interrupted attempt; the warm-up's only when asked for."""
        finished = {record.cell: record.attempt for record in self.cells()}
        return [
            record
            for record in self._requests
            if (warmup or not record.warmup) and finished.get(record.cell) == record.attempt
        ]

    def check_whole(self) -> None:
        """Raises InputError when requests that a finished cell counted are not on disk."""
        there = Counter(record.cell for record in self.requests())
        for cell in self.cells():
            if there[cell.cell] != cell.requests:
                raise InputError(
                    f"{self.folder / 'requests.jsonl'}: the file is not whole: it holds {there[cell.cell]} requests of "
                    f"the cell {cell.cell}, which counted {cell.requests}."
                )

    def attempts(self) -> dict[CellKey, int]:
        """The highest attempt number on disk per cell, finished or not."""
        begun = [(record.cell, record.attempt) for record in _read(self.folder / "attempts.jsonl", AttemptRecord)]
        highest: dict[CellKey, int] = {}
        for cell, attempt in [*begun, *((record.cell, record.attempt) for record in self._requests)]:
            highest[cell] = max(attempt, highest.get(cell, 0))
        return highest


class Recorder:
    """Appends to a Run directory, which only one process at a time may do.

    Raises InputError when another sweep writes there, when the directory belongs to another measurement, or when the
    disk refuses. Use as a context.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.folder = folder
        self.info = info

    def __enter__(self) -> "Recorder":
        with ExitStack() as opened:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = opened.enter_context((self.folder / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{self.folder}: another sweep writes there now.") from None
            except OSError as error:
                raise _disk_error(self.folder, error) from None
            if (self.folder / "run.json").exists():
                there = Run(self.folder).info
                self._refuse_other(there)
                self.info = self.info.model_copy(update={"created": there.created})
            self.save_info(self.info)
            self._files = {kind: self._open(f"{kind}.jsonl") for kind in ("attempts", "requests", "cells")}
            for handle in self._files.values():
                opened.callback(os.close, handle)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def save_info(self, info: RunInfo) -> None:
        """Replace run.json in one step."""
        self.info = info
        temporary = self.folder / "run.json.tmp"
        try:
            temporary.write_text(info.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
            temporary.replace(self.folder / "run.json")
        except OSError as error:
            raise _disk_error(self.folder, error) from None

    def begin(self, cell: CellKey, attempt: int) -> None:
        """Write down that `cell` begins, before any of its prompts is served."""
        self._append("attempts", AttemptRecord(cell=cell, attempt=attempt))

    def request(self, record: RequestRecord) -> None:
        """Append one request."""
        self._append("requests", record)

    def cell(self, record: CellRecord) -> None:
        """Append one finished cell, its requests being on disk for certain."""
        try:
            os.fsync(self._files["requests"])
        except OSError as error:
            raise _disk_error(self.folder, error) from None
        self._append("cells", record)

    def _open(self, name: str) -> int:
        path = self.folder / name
        packed = path.with_name(name + ".gz")
        if packed.exists() and not path.exists():
            raise InputError(f"{packed} is packed: gunzip it to go on with this run.")
        try:
            _end_torn_line(path)
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise _disk_error(self.folder, error) from None

    def _append(self, kind: str, record: RequestRecord | CellRecord | AttemptRecord) -> None:
        line = record.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
        try:
            written = os.write(self._files[kind], line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _disk_error(self.folder, error) from None

    def _refuse_other(self, there: RunInfo) -> None:
        if there.key == self.info.key:
            return
        ours, theirs = self.info.key_parts, there.key_parts
        differing = [part for part in {**theirs, **ours} if ours.get(part) != theirs.get(part)]
        raise InputError(
            f"{self.folder} holds another measurement: {', '.join(differing) or 'its format'} differ. "
            "Choose another --run, or repeat its command to extend it."
        )


def find_unfinished(root: Path, key: str, is_finished: Callable[[Run], bool]) -> Path | None:
    """The newest Run directory under `root` with this resume key for which `is_finished(run)` is false."""
    for folder in sorted((path.parent for path in root.glob("*/run.json")), reverse=True):
        try:
            run = Run(folder)
            if run.info.key == key and not is_finished(run):
                return folder
        except InputError:
            continue
    return None


def _read(path: Path, model: type[Record]) -> Iterator[Record]:
    """Records of a .jsonl file, or of its .gz. A torn line (a kill, a full disk) lacks its newline or is marked so."""
    packed = path.with_name(path.name + ".gz")
    try:
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
        elif packed.exists():
            path = packed
            lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
        else:
            return
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n") or line.endswith(_TORN + b"\n"):
            continue
        try:
            yield model.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(f"{path}:{number}: not a record of this version: {where} {first['msg']}.") from None


_TORN = b"\x00torn"


def _end_torn_line(path: Path) -> None:
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b"\n":
            handle.write(_TORN + b"\n")


def _disk_error(folder: Path, error: OSError) -> InputError:
    what = "no space is left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return InputError(f"{folder}: cannot be written: {what}. What is there stays; the same command resumes.")
