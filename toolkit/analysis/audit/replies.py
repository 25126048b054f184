"""What the audit keeps of every reply, and the file that it reads back: `replies.jsonl` in the Run directory."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from toolkit.engines.contract import SpecCounts
from toolkit.errors import InputError

FILE = "replies.jsonl"
Side = Literal["arm", "baseline"]
Question = Literal["greedy", "stop", "sample", "structure"]
Ranked = list[tuple[int, float]]
"""Token ids with their natural log probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as its server gave it.

    `chunks` are the tokens of each streamed chunk. `top` has the server's own best log probabilities for each token,
    where it was asked for them. `scores` are the reference's for each token, raw: before temperature and top-k.
    `prompt` and `seed` tell which question it was.
    """

    question: Question
    side: Side
    concurrency: int
    prompt: int
    seed: int | None
    prompt_ids: list[int]
    token_ids: list[int]
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


def write_replies(folder: Path, replies: Iterable[Reply]) -> None:
    """Append to the folder's file, a line each."""
    with (folder / FILE).open("a", encoding="utf-8") as handle:
        for reply in replies:
            handle.write(json.dumps(asdict(reply), allow_nan=False) + "\n")


def read_replies(folder: Path) -> list[Reply]:
    """The replies of an audit's folder. Raises InputError for a file that is not one."""
    return list(_read(folder / FILE))


def _read(path: Path) -> Iterator[Reply]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as an audit's replies: {error}.") from None
    for number, line in enumerate(lines, start=1):
        try:
            yield _REPLY.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise InputError(f"{path}:{number}: not a reply of an audit: {first['msg']}.") from None
