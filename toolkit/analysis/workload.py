"""What is asked: a Workload gives the prompt of any index, from a seeded generator or from a file of prompts."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from toolkit.analysis.generators import GENERATOR_VERSION, WRITERS, write
from toolkit.errors import InputError

_ROLES = ("system", "developer", "user", "assistant", "tool")
_RIGHT_LINE = (
    'A right line is a string, "What is a monad?", or an object, {"prompt": "What is a monad?", "category": "chat"}'
    ' or {"messages": [{"role": "user", "content": "What is a monad?"}]}'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to complete: OpenAI chat messages (`role` and `content` each), and the kind of task it is."""

    messages: tuple[dict[str, str], ...]
    category: str

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the messages as canonical JSON. The category is no part of it."""
        canonical = json.dumps(self.messages, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Workload:
    """A numbered sequence of prompts.

    `digest` (64 hex digits) changes whenever any prompt could change. `size` is the number of prompts in a file;
    None is a generator, which never repeats one. `make` gives the prompt of an index below `size`.
    """

    name: str
    digest: str
    size: int | None
    make: Callable[[int], Prompt]

    def prompt(self, index: int) -> Prompt:
        """The prompt of `index` (0 or more; ValueError below), the same each time. A file starts again after `size`."""
        if index < 0:
            raise ValueError(f"a prompt index is 0 or more, not {index}")
        return self.make(index if self.size is None else index % self.size)


def load_workload(name_or_path: str, seed: int = 0) -> Workload:
    """A shipped workload by name (`seed` picks its prompts), or a .jsonl file by path (`seed` has no effect).

    Raises InputError: no such workload, a file that cannot be read or holds no prompt, a malformed line (`file:line`).
    """
    if name_or_path in WRITERS:
        name, identity = name_or_path, json.dumps([name_or_path, seed, GENERATOR_VERSION])
        return Workload(name, sha256(identity.encode()).hexdigest(), None, partial(_generated, name, seed))
    # os.path.exists, not Path.exists: the latter raises on a name too long for the file system.
    if name_or_path.endswith(".jsonl") or os.path.exists(name_or_path):
        return _load_file(Path(name_or_path))
    nearest = get_close_matches(name_or_path.lower(), WRITERS, n=1, cutoff=0.0)[0]
    raise InputError(
        f"no workload named {name_or_path!r}. Did you mean {nearest}? "
        f"The shipped workloads are {', '.join(WRITERS)}; a path to a .jsonl file of prompts works too"
    )


def _generated(name: str, seed: int, index: int) -> Prompt:
    text, category = write(name, seed, index)
    return Prompt(({"role": "user", "content": text},), category)


def _load_file(path: Path) -> Workload:
    try:
        content = path.read_bytes()
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a directory; a workload is one .jsonl file of prompts") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{path}: cannot read this workload file ({reason}). Check the path and its permissions"
        raise InputError(message) from error
    # Only \n ends a line: a JSON string may hold U+2028 and the like, at which str.splitlines would cut it.
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    prompts = [
        _parse_line(line, path.stem, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if not prompts:
        raise InputError(f"{path}: this workload file holds no prompt. Write one per line. {_RIGHT_LINE}")
    return Workload(path.stem, sha256(content).hexdigest(), len(prompts), partial(_stored, tuple(prompts)))


def _stored(prompts: tuple[Prompt, ...], index: int) -> Prompt:
    # A copy: a caller that edits the dicts it was given must not change what the next one gets.
    return Prompt(tuple(dict(message) for message in prompts[index].messages), prompts[index].category)


def _parse_line(line: bytes, stem: str, where: str) -> Prompt:
    try:
        value = json.loads(line.decode("utf-8"))
        return _parse_value(value, stem)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start + 1} of the line)"
    except json.JSONDecodeError as error:
        problem = f"is not JSON ({error.msg} at column {error.colno})"
    except _LineError as error:
        problem = str(error)
    except (ValueError, RecursionError) as error:  # A number of thousands of digits; brackets nested too deep.
        problem = f"is not JSON that can be read ({error})"
    raise InputError(f"{where}: this line {problem}. {_RIGHT_LINE}")


class _LineError(Exception):
    """What is wrong with a line, said as the rest of a sentence that begins "this line"."""


def _parse_value(value: Any, stem: str) -> Prompt:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise _LineError(f"holds {_kind(value)}, not a string or an object")
    if ("prompt" in value) == ("messages" in value):
        both = "both `prompt` and `messages`: keep one" if "prompt" in value else "neither `prompt` nor `messages`"
        raise _LineError(f"has {both}")
    category = value.get("category")
    if category is None:
        category = stem
    _check_text(category, "`category`")
    if "prompt" in value:
        _check_text(value["prompt"], "the prompt")
        return Prompt(({"role": "user", "content": value["prompt"]},), category)
    return Prompt(_parse_messages(value["messages"]), category)


def _parse_messages(messages: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise _LineError("has `messages` that is not a list of at least one message")
    for position, message in enumerate(messages):
        name = f"messages[{position}]"
        if not isinstance(message, dict):
            raise _LineError(f"has {_kind(message)} as {name}, not an object with `role` and `content`")
        if message.get("role") not in _ROLES:
            raise _LineError(f"has a `role` in {name} that is not one of {', '.join(_ROLES)}")
        _check_text(message.get("content"), f"`content` of {name}")
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise _LineError(f"has {_kind(value)} where {what} must be a string")
    if not value.strip():
        raise _LineError(f"has an empty string where {what} must have text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair, which no request can carry.
        raise _LineError(f"has half a character (a lone surrogate) in {what}") from error


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
