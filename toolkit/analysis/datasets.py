"""Files of prompts and what one record may be; its content tells which, not a name.

| record | the prompt | known from |
|---|---|---|
| a string, or `{"prompt": "..."}` | that text | `vllm bench serve --dataset-name custom` |
| a list of messages, or `{"messages": [...]}` | all; up to the first user turn if it ends in an answer | OpenAI |
| `{"question_id", "category", "turns": ["...", ...]}` | the first turn | Spec-Bench, MT-Bench, SPEED-Bench's hub |
| `{"question_id", "category", "messages": [...]}` | the first user turn | SPEED-Bench's prepare.py |
| `{"conversations": [{"from", "value"}, ...]}` | up to the first user turn | ShareGPT |
| a list of token ids, or `{"prompt": [1, 2, 3]}` | the numbers as words, for load only | `vllm bench serve` |

Of a dialogue only the first question is asked, with what stands before it (a system's turn): the later ones follow from
answers that another model gave. `category` is kept; the file's own name stands in where there is none. A ShareGPT
record without a user's turn is left out: the published file holds such.

Sources: hemingkx/Spec-Bench data/spec_bench/question.jsonl; the card of nvidia/SPEED-Bench, and NeMo-Skills
nemo_skills/dataset/speed-bench/prepare.py, which fills in its placeholders; ShareGPTDataset, SpecBench and SpeedBench
in vllm/benchmarks/datasets/datasets.py (0.32.0).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.analysis.json_records import RecordError, records
from toolkit.analysis.language import looks_random
from toolkit.errors import InputError

RANDOM_SHARE = 0.1  # of the prompts that look random, from which on the file is taken to be random
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SPEAKERS = {"human": "user", "user": "user", "system": "system"}  # ShareGPT; all others are kinds of answers
_FORMS = ("prompt", "messages", "turns", "conversations")
_UNFILLED = (
    "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"  # what SPEED-Bench's hub has for a third of its turns
)
_RIGHT_LINE = (
    'A right line is a string, "What is a monad?", or an object, {"prompt": "What is a monad?", "category": "chat"}'
    ' or {"messages": [{"role": "user", "content": "What is a monad?"}]}; Spec-Bench, SPEED-Bench and ShareGPT are '
    "read as they are"
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
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Dataset:
    """The prompts of a file in its order. `digest` is the SHA-256 of the file; `random`: they are no language."""

    prompts: tuple[Prompt, ...]
    digest: str
    random: bool


def read_dataset(path: Path) -> Dataset:
    """All prompts of a file. Raises InputError: not readable, no prompt in it, a malformed record (`file:line`)."""
    try:
        found = list(_prompts(path))
        with path.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a directory; a workload is one .jsonl file of prompts") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{path}: cannot read this workload file ({reason}). Check the path and its permissions"
        raise InputError(message) from error
    if not found:
        raise InputError(f"{path}: this workload file holds no prompt. Write one per line. {_RIGHT_LINE}")
    # A list of token ids is no text for certain; of texts that look so a few may be among any collected prompts.
    random = any(ids for _, ids in found) or (
        sum(looks_random(prompt.messages[-1]["content"]) for prompt, _ in found) >= RANDOM_SHARE * len(found)
    )
    return Dataset(tuple(prompt for prompt, _ in found), digest, random)


def _prompts(path: Path) -> Iterator[tuple[Prompt, bool]]:
    """The prompts, and of each whether it was a list of token ids."""
    line = 1
    try:
        for line, value in records(path, _is_part):  # noqa: B007 - said below
            prompt = _parse_record(value, path.stem)
            if prompt is not None:
                yield prompt
    except RecordError as error:
        raise InputError(f"{path}:{error.line or line}: this line {error}. {_RIGHT_LINE}") from None


def _is_part(value: Any) -> bool:
    """Whether an element belongs to the one record that a whole array is: a message, or a token id."""
    message = isinstance(value, dict) and "role" in value and not any(form in value for form in _FORMS)
    return message or _is_id(value)


def _parse_record(value: Any, stem: str) -> tuple[Prompt, bool] | None:
    """The prompt and whether it was a list of token ids; None where there is nothing to ask."""
    if isinstance(value, str) or _are_ids(value):
        value = {"prompt": value}
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise RecordError(f"holds {_kind(value)}, not a string or an object")
    forms = [form for form in _FORMS if form in value]
    if len(forms) != 1:
        both = f"both `{forms[0]}` and `{forms[1]}`: keep one" if forms else ""
        raise RecordError(f"has {both or 'neither `prompt` nor `messages`, `turns` or `conversations`'}")
    category = value.get("category")
    if category is None:
        category = stem
    _check_text(category, "`category`")
    what = value[forms[0]]
    if forms[0] == "prompt" and _are_ids(what):
        return Prompt(({"role": "user", "content": " ".join(map(str, what))},), category), True
    messages = {"prompt": _text, "messages": _messages, "turns": _turns, "conversations": _conversation}[forms[0]](what)
    if forms[0] == "conversations" or "question_id" in value or (messages and messages[-1]["role"] == "assistant"):
        messages = _to_first_question(messages)
    return (Prompt(messages, category), False) if messages else None


def _to_first_question(messages: tuple[dict[str, str], ...]) -> tuple[dict[str, str], ...]:
    """Up to the first user's turn; empty without one."""
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), -1)
    return messages[: first + 1]


def _text(value: Any) -> tuple[dict[str, str], ...]:
    _check_text(value, "the prompt")
    return ({"role": "user", "content": value},)


def _messages(messages: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise RecordError("has `messages` that is not a list of at least one message")
    for position, message in enumerate(messages):
        name = f"messages[{position}]"
        if not isinstance(message, dict):
            raise RecordError(f"has {_kind(message)} as {name}, not an object with `role` and `content`")
        if message.get("role") not in _ROLES:
            raise RecordError(f"has a `role` in {name} that is not one of {', '.join(_ROLES)}")
        _check_text(message.get("content"), f"`content` of {name}")
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def _turns(turns: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(turns, list) or not turns:
        raise RecordError("has `turns` that is not a list of at least one text")
    _check_text(turns[0], "turns[0]")
    return ({"role": "user", "content": turns[0]},)


def _conversation(turns: Any) -> tuple[dict[str, str], ...]:
    """ShareGPT's turns up to the first of a user, in OpenAI's words; those without text are left out."""
    if not isinstance(turns, list):
        raise RecordError("has `conversations` that is not a list of turns")
    messages: list[dict[str, str]] = []
    for position, turn in enumerate(turns):
        if (
            not isinstance(turn, dict)
            or not isinstance(turn.get("from"), str)
            or not isinstance(turn.get("value"), str)
        ):
            raise RecordError(f"has no text in `from` and `value` of conversations[{position}]")
        if turn["value"].strip():
            _check_text(turn["value"], f"`value` of conversations[{position}]")
            messages.append({"role": _SPEAKERS.get(turn["from"], "assistant"), "content": turn["value"]})
            if messages[-1]["role"] == "user":
                break
    return tuple(messages)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_id, value))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise RecordError(f"has {_kind(value)} where {what} must be a string")
    if not value.strip():
        raise RecordError(f"has an empty string where {what} must have text")
    if value.startswith(_UNFILLED):
        raise RecordError(
            f"has a placeholder where {what} must have text: SPEED-Bench's hub holds pointers to other datasets; its "
            "prepare.py (NeMo-Skills, nemo_skills/dataset/speed-bench) fetches them"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair, which no request can carry.
        raise RecordError(f"has half a character (a lone surrogate) in {what}") from error


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
