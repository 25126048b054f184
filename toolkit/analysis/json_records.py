"""A file of JSON records of any size, one at a time: a record a line, or one array over any number of lines."""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 20  # bytes read at once from an array
LONGEST_LINE = 1 << 24  # bytes; a first line that is longer belongs to an array
_SPACE = re.compile(r"[ \t\r\n]*")
_CUT = 16  # characters from the end at which a value that is cut off fails at the earliest, but for a string


class RecordError(Exception):
    """What is wrong, as the rest of a sentence that begins "this line"; `line` where it is not the record's first."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def records(path: Path, is_part: Callable[[Any], bool]) -> Iterator[tuple[int, Any]]:
    """The records of a file, each with the number of the line on which it begins; blank lines are none.

    The elements of an array are the records, unless `is_part` says of the first that the whole array is one record.
    Raises RecordError, and OSError or ValueError for a path that cannot be read.
    """
    with path.open("rb") as handle:
        one_array = _is_one_array(handle, path.suffix)
        handle.seek(0)
        if not one_array:
            yield from _lines(handle)
            return
        elements = _Elements(handle)
        for line, value in elements:
            if elements.first and is_part(value):
                yield line, [value, *(other for _, other in elements)]
            else:
                yield line, value


def _is_one_array(handle: BinaryIO, suffix: str) -> bool:
    """Whether the file is one array, and not lists of messages, one a line.

    A file of one line could be both: a list of strings is a line of a .jsonl, which is none of our records.
    """
    first = b""
    while not first.strip():
        line = handle.readline(LONGEST_LINE)
        if not line:
            return False
        first = line.removeprefix(codecs.BOM_UTF8)
    if not first.lstrip().startswith(b"["):
        return False
    try:
        whole = json.loads(first)
    except (ValueError, RecursionError):
        return True
    if any(line.strip() for line in handle):
        return False
    return not (suffix == ".jsonl" and whole and isinstance(whole[0], str))


def _lines(handle: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The value of each line. Only \\n ends one: a JSON string may hold U+2028 and the like."""
    for number, line in enumerate(handle, start=1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            yield number, _decoded(text.rstrip(b"\n"), number)


def _decoded(line: bytes, number: int) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"is not UTF-8 (byte {error.start + 1} of the line)", number) from None
    except json.JSONDecodeError as error:
        raise RecordError(f"is not JSON ({error.msg} at column {error.colno})", number) from None
    except (ValueError, RecursionError) as error:  # A number of thousands of digits; brackets nested too deep.
        raise RecordError(f"is not JSON that can be read ({error})", number) from None


class _Elements:
    """The elements of one JSON array, however large: holds one of them, and what was read ahead."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0
        self._line = 1
        self._elements = self._parse()
        self.first = True
        """Whether the last one that was given was the first."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self._elements

    def _parse(self) -> Iterator[tuple[int, Any]]:
        self._skip_space()
        self._at += 1  # the opening bracket
        mark = self._skip_space()
        while mark != "]":
            line, value = self._line, self._value()
            yield line, value
            self.first = False
            mark = self._skip_space()
            if mark == ",":
                self._at += 1
                self._skip_space()
            elif mark != "]":
                found = f"{mark!r} stands" if mark else "the file ends"
                raise RecordError(f"is not JSON ({found} where ',' or ']' must follow)", self._line)
        self._at += 1
        if self._skip_space():
            raise RecordError("is not JSON (it follows the end of the array)", self._line)

    def _skip_space(self) -> str:
        """The next character that is no space, which stays; empty at the end of the file."""
        while True:
            end = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            self._line += self._text.count("\n", self._at, end)
            self._at = end
            if end < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos + _CUT > len(self._text)
                line = self._line + self._text.count("\n", self._at, error.pos)
                if cut and self._more():
                    continue
                raise RecordError(f"is not JSON ({error.msg})", line) from None
            except (ValueError, RecursionError) as error:
                raise RecordError(f"is not JSON that can be read ({error})", self._line) from None
            if end == len(self._text) and self._more():  # else half a number might pass for one
                continue
            self._line += self._text.count("\n", self._at, end)
            self._at = end
            return value

    def _more(self) -> bool:
        """Read on: at least as much as is waiting, so that a huge element is not tried too often."""
        waiting = self._text[self._at :]
        data = self._handle.read(max(CHUNK, len(waiting)))
        try:
            self._text, self._at = waiting + self._utf8.decode(data, final=not data), 0
        except UnicodeDecodeError as error:
            line = self._line + waiting.count("\n") + error.object[: error.start].count(b"\n")
            raise RecordError("is not UTF-8", line) from None
        return bool(data)
