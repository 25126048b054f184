"""What the audit keeps of every reply, and the file that it reads back: `replies.jsonl` in the Run directory."""

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from toolkit.engines.contract import SpecCounts
from toolkit.errors import InputError

FILE = "replies.jsonl"
Side = Literal["arm", "baseline"]
Question = Literal["greedy", "stop", "sample", "structure"]
MOST_IDS = 2**31
Id = Annotated[int, Field(ge=0, lt=MOST_IDS)]
Ranked = list[tuple[Id, Annotated[float, Field(allow_inf_nan=False)]]]
"""Token ids with their natural log probabilities, the likeliest first."""
LOWEST = -9999.0
"""What vLLM says for a log probability of minus infinity, which JSON cannot (clamp_prompt_logprobs)."""
PROMPTS_DIFFER = "the two servers make different tokens of the same messages: their chat templates differ"
_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as its server gave it.

    `token_ids` and `chunks`, the tokens of each streamed chunk, are empty where the server gives no ids. `top` has the
    server's own best log probabilities for each token, where it was asked for them. `scores` are the reference's for
    each token, raw: before temperature and top-k. `prompt` and `seed` tell which question it was.
    """

    question: Question
    side: Side
    concurrency: int
    prompt: int
    seed: int | None
    prompt_ids: list[Id]
    token_ids: list[Id]
    chunks: list[int]
    text: str
    finish_reason: str
    stop: str | None = None
    top: list[Ranked] | None = None
    counts: SpecCounts | None = None
    scores: list[Ranked] | None = None
    words: dict[int, str] = field(default_factory=dict)
    """What the tokens among `scores` read as, as far as the server said."""


_REPLY = TypeAdapter(Reply)


def reply_of(fields: Mapping[str, Any]) -> Reply:
    """A Reply of `fields`, which came from outside. Raises ValueError when they are not one."""
    try:
        return _REPLY.validate_python(fields)
    except ValidationError as error:
        raise ValueError(_first(error)) from None


def comparable(replies: Sequence[Reply]) -> list[Reply]:
    """`replies`, made comparable by tokens: where a server gave no ids, words stand for tokens, on both sides alike."""
    if all(reply.token_ids or not reply.text for reply in replies):
        return list(replies)
    return [replace(reply, token_ids=_words(reply.text), chunks=[], top=None) for reply in replies]


def _words(text: str) -> list[int]:
    """The words of `text` as numbers. Two texts have the same ones only if they are the same."""
    return [zlib.crc32(word.encode()) for word in _WORD.findall(text)]


def prompts_differ(replies: Sequence[Reply]) -> bool:
    """Whether the sides, asked the same, were given different prompt tokens; False as far as they do not tell."""
    given: dict[tuple[Question, int], set[tuple[int, ...]]] = {}
    for reply in replies:
        if reply.prompt_ids:
            given.setdefault((reply.question, reply.prompt), set()).add(tuple(reply.prompt_ids))
    return any(len(prompts) > 1 for prompts in given.values())


def write_replies(folder: Path, replies: Iterable[Reply]) -> None:
    """Append to the folder's file, a line each."""
    with (folder / FILE).open("ab") as handle:
        for reply in replies:
            handle.write(_REPLY.dump_json(reply) + b"\n")


def read_replies(folder: Path) -> list[Reply]:
    """The replies of an audit's folder. Raises InputError for a file that is not one."""
    return list(_read(folder / FILE))


def _read(path: Path) -> Iterator[Reply]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read as an audit's replies: {error.strerror}.") from None
    for number, line in enumerate(lines, start=1):
        try:
            yield _REPLY.validate_json(line)
        except ValidationError as error:
            raise InputError(f"{path}:{number}: not a reply of an audit: {_first(error)}.") from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
