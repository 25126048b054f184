"""Files of logged distributions: what a model said before each token of some texts. One file per model.

Rows are places, in the order of the text. Both files hold the same ones, over one vocabulary, in the same order.

JSONL, a row per line: `{"probs": [0.5, 0.25, 0.25], "token": 2, "sequence": "a", "position": 0}`.
`probs` are the probabilities of all V tokens. `token` is the id that followed: what the target emitted. `sequence`
names the text (a string or a number), and `position` counts its places; all but `probs` may be absent, which is one
text from the file's first row to its last. NumPy: `.npy` holds `probs` [n, V] alone, `.npz` the arrays `probs` [n, V]
and, as far as known, `token` (-1: unknown), `sequence`, `position` [n]. The rows of a text stand together, positions
going up by one.

Tokens may stand in either file. Log p and q as the engine uses them, after temperature, top-k and top-p, or log them
raw and let `--temperature`, `--top-k` and `--top-p` apply those to both.

Each row must sum to 1 within 1e-4, and is then scaled to do so exactly: float32 rows do, a list of the likeliest tokens
does not. Nothing is guessed from a row that does not.
"""

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.analysis.forecast.estimate import IntArray
from toolkit.analysis.forecast.rounds import UNKNOWN
from toolkit.errors import InputError
from toolkit.sampling import FloatArray

SUFFIXES = (".jsonl", ".npy", ".npz")
TOLERANCE = 1e-4
CHUNK = 32  # rows that are made float64 at a time: a vocabulary has 150,000 tokens


@dataclass(frozen=True, slots=True)
class Logged:
    """One file: `probs` [n, V] as stored, `tokens` [n] (UNKNOWN where absent), `sequences` [n] and `positions` [n]."""

    path: Path
    probs: npt.NDArray[np.floating[Any]]
    tokens: IntArray
    sequences: list[str]
    positions: IntArray

    def texts(self) -> list[slice]:
        """The rows of each text."""
        starts = [0, *(i for i in range(1, len(self.sequences)) if self.sequences[i] != self.sequences[i - 1])]
        return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(self.sequences)], strict=True)]

    def rows(self, where: slice) -> FloatArray:
        """Rows of `probs` in float64, each scaled to a sum of exactly 1."""
        rows = np.asarray(self.probs[where], dtype=np.float64)
        return np.asarray(rows / rows.sum(axis=1, keepdims=True), dtype=np.float64)


def is_logged(name: str) -> bool:
    """Whether `name` is that of a file of distributions, not of a model."""
    return name.endswith(SUFFIXES)


def read_logged(path: Path) -> Logged:
    """Read and check one file. Raises InputError naming file and row (counted from 1; in JSONL it is the line)."""
    try:
        columns = _jsonl(path) if path.suffix == ".jsonl" else _numpy(path)
    except OSError as error:
        raise InputError(f"{path}: cannot read this file of distributions ({error.strerror or error}).") from error
    logged = _logged(path, columns)
    _check_rows(logged)
    _check_order(logged)
    return logged


def matched(target: Logged, draft: Logged) -> IntArray:
    """The tokens [n] that both files know together. Raises InputError where they do not hold the same places."""
    both = f"{target.path} and {draft.path}"
    if len(target.probs) != len(draft.probs):
        raise InputError(
            f"{both} have {len(target.probs)} and {len(draft.probs)} rows: log both models at the same places."
        )
    if target.probs.shape[1] != draft.probs.shape[1]:
        raise InputError(
            f"{both} are over {target.probs.shape[1]} and {draft.probs.shape[1]} tokens: they need one vocabulary."
        )
    for row, (ours, theirs) in enumerate(zip(_keys(target), _keys(draft), strict=True), start=1):
        if ours != theirs:
            raise InputError(
                f"{draft.path}: row {row} is position {theirs[1]} of sequence {theirs[0]!r}, in {target.path} it is "
                f"position {ours[1]} of {ours[0]!r}: log both models at the same places, in the same order."
            )
    known = (target.tokens != UNKNOWN) & (draft.tokens != UNKNOWN)
    if len(differing := np.flatnonzero(known & (target.tokens != draft.tokens))):
        row = int(differing[0])
        raise InputError(
            f"{draft.path}: row {row + 1} is followed by token {draft.tokens[row]}, in {target.path} by "
            f"{target.tokens[row]}: the text must be the same."
        )
    return np.where(target.tokens != UNKNOWN, target.tokens, draft.tokens)


def chunks(where: slice) -> Iterator[slice]:
    """The rows of `where`, few enough at a time to hold them in float64."""
    return (slice(start, min(start + CHUNK, where.stop)) for start in range(where.start, where.stop, CHUNK))


@dataclass(slots=True)
class _Columns:
    """What stands in a file, unchecked; None where a column is absent."""

    probs: npt.NDArray[Any]
    token: Sequence[Any] | None
    sequence: Sequence[Any] | None
    position: Sequence[Any] | None


def _jsonl(path: Path) -> _Columns:
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").rstrip().split(b"\n")
    records = [_record(path, number, line) for number, line in enumerate(lines, start=1)]
    probs = [_numbers(path, number, record["probs"]) for number, record in enumerate(records, start=1)]
    for number, row in enumerate(probs, start=1):
        if len(row) != len(probs[0]):
            raise InputError(f"{path}: row {number} has {len(row)} probabilities and row 1 has {len(probs[0])}.")
    columns = [[record.get(name) for record in records] for name in ("token", "sequence", "position")]
    for name, column in zip(("sequence", "position"), columns[1:], strict=True):
        missing = next((i for i, value in enumerate(column, start=1) if (value is None) != (column[0] is None)), None)
        if missing is not None:
            raise InputError(f"{path}: row {missing} and row 1 differ in whether they have a `{name}`: all or none.")
    token, sequence, position = (None if all(value is None for value in column) else column for column in columns)
    return _Columns(np.array(probs), token, sequence, position)


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: row {number} is not JSON ({getattr(error, 'msg', error)}).") from None
    if not isinstance(record, dict) or not isinstance(record.get("probs"), list) or not record["probs"]:
        raise InputError(
            f'{path}: row {number} is not an object with a list of `probs`, like {{"probs": [0.5, 0.5], "token": 1}}.'
        )
    return record


def _numbers(path: Path, number: int, values: list[Any]) -> FloatArray:
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        raise InputError(f"{path}: row {number} has `probs` that are not all numbers.")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{path}: row {number} has a number too large for a probability.") from None


def _numpy(path: Path) -> _Columns:
    try:
        stored = np.load(path, allow_pickle=False, mmap_mode="r" if path.suffix == ".npy" else None)
        if isinstance(stored, np.ndarray):
            return _Columns(stored, None, None, None)
        with stored:
            if "probs" not in stored:
                raise InputError(f"{path}: has no array `probs`, but {', '.join(sorted(stored)) or 'nothing'}.")
            return _Columns(stored["probs"], *(stored.get(name) for name in ("token", "sequence", "position")))
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is not a NumPy file of plain numbers ({error}).") from None


def _logged(path: Path, columns: _Columns) -> Logged:
    probs = columns.probs
    if probs.ndim != 2 or 0 in probs.shape or not np.issubdtype(probs.dtype, np.floating):
        raise InputError(
            f"{path}: `probs` must be floating point numbers [rows, vocabulary], not {probs.dtype} {list(probs.shape)}."
        )
    count, size = probs.shape
    for name in ("token", "sequence", "position"):
        column = getattr(columns, name)
        if column is not None and np.shape(column) != (count,):
            raise InputError(f"{path}: `{name}` has the shape {list(np.shape(column))}, not one value a row [{count}].")
    tokens = _whole(path, "token", columns.token, np.full(count, UNKNOWN))
    for row in np.flatnonzero(tokens >= size)[:1]:
        raise InputError(f"{path}: row {row + 1} has token {tokens[row]}, outside the vocabulary of {size}.")
    sequences = [""] * count if columns.sequence is None else [str(one) for one in columns.sequence]
    counted = _places_of(sequences)
    return Logged(path, probs, tokens, sequences, _whole(path, "position", columns.position, counted))


def _whole(path: Path, name: str, column: Sequence[Any] | None, absent: IntArray) -> IntArray:
    """Whole numbers from 0, and UNKNOWN for a token that is; `absent` where the column is."""
    if column is None:
        return absent
    for row, value in enumerate(column, start=1):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < 2**31
        if not whole and not (name == "token" and value in (None, UNKNOWN)):
            raise InputError(f"{path}: row {row} has {name} {value}, not a whole number from 0.")
    return np.array([UNKNOWN if value is None else value for value in column], dtype=np.int64)


def _places_of(sequences: Sequence[str]) -> IntArray:
    counted = np.zeros(len(sequences), dtype=np.int64)
    for row in range(1, len(sequences)):
        counted[row] = counted[row - 1] + 1 if sequences[row] == sequences[row - 1] else 0
    return counted


def _check_rows(logged: Logged) -> None:
    for where in chunks(slice(0, len(logged.probs))):
        rows = np.asarray(logged.probs[where], dtype=np.float64)
        sums = rows.sum(axis=1)
        wrong = np.flatnonzero(~(np.abs(sums - 1) <= TOLERANCE) | (rows < 0).any(axis=1))
        for row in wrong[:1]:
            name = f"{logged.path}: row {where.start + row + 1}"
            if np.isnan(rows[row]).any():
                raise InputError(f"{name} holds NaN, which is no probability.")
            if (rows[row] < 0).any():
                raise InputError(f"{name} holds {rows[row].min():g}: a probability is not negative.")
            raise InputError(
                f"{name} sums to {sums[row]:.6g}, not to 1 within {TOLERANCE:g}. Log the probabilities of the whole "
                "vocabulary, in float32 or better: not logits, not the likeliest few."
            )


def _check_order(logged: Logged) -> None:
    seen: set[str] = set()
    for text in logged.texts():
        name = logged.sequences[text.start]
        if name in seen:
            row = text.start + 1
            raise InputError(f"{logged.path}: row {row} goes back to sequence {name!r}: keep its rows together.")
        seen.add(name)
        for row in text.start + 1 + np.flatnonzero(np.diff(logged.positions[text]) != 1)[:1]:
            raise InputError(
                f"{logged.path}: row {row + 1} is position {logged.positions[row]} after {logged.positions[row - 1]}: "
                "rounds step from each place to the next, so none may be missing."
            )


def _keys(logged: Logged) -> Iterator[tuple[str, int]]:
    return zip(logged.sequences, logged.positions.tolist(), strict=True)
