"""Token traces: recorded prompts and answers as token ids, a request per line of JSONL (docs/traces.md)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.errors import InputError

Tokens = npt.NDArray[np.int32]
LARGEST = int(np.iinfo(np.int32).max)
_RIGHT_LINE = 'A right line is {"kind": "chat", "prompt": [1, 2, 3], "output": [4, 5]}'


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked and what was answered, token ids [length] each, neither empty; and its class of traffic."""

    kind: str
    prompt: Tokens
    output: Tokens

    @property
    def length(self) -> int:
        """Tokens of prompt and output together."""
        return len(self.prompt) + len(self.output)


def read_traces(path: Path) -> dict[str, list[Request]]:
    """The requests of each class, classes and requests in the file's order.

    Raises InputError: a file that cannot be read or holds no request, a line that is none (`file:line`).
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot read this trace ({error.strerror or error}).") from error
    classes: dict[str, list[Request]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            request = _request(line, path.stem, f"{path}:{number}")
            classes.setdefault(request.kind, []).append(request)
    if not classes:
        raise InputError(f"{path}: this trace holds no request. Write one per line. {_RIGHT_LINE}.")
    return classes


def _request(line: bytes, stem: str, where: str) -> Request:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8 (byte {error.start + 1} of the line).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON ({error}). {_RIGHT_LINE}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{where}: is not a JSON object. {_RIGHT_LINE}.")
    kind = value.get("kind", stem)
    if not isinstance(kind, str) or not kind:
        raise InputError(f"{where}: `kind` names the class of traffic, a string, not {json.dumps(kind)[:40]}.")
    return Request(kind, _tokens(value, "prompt", where), _tokens(value, "output", where))


def _tokens(value: dict[str, Any], key: str, where: str) -> Tokens:
    found = value.get(key)
    if not isinstance(found, list) or not found:
        raise InputError(f"{where}: `{key}` is a list of at least one token id. {_RIGHT_LINE}.")
    for token in found:
        if type(token) is not int or not 0 <= token <= LARGEST:  # bool is an int to isinstance
            raise InputError(f"{where}: `{key}` holds {json.dumps(token)[:40]}; a token id is from 0 to {LARGEST}.")
    return np.array(found, dtype=np.int32)
