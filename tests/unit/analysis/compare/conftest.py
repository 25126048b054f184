"""One contender with known counts, in a Run of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_run import write_run

from toolkit.analysis.records import RequestRecord
from toolkit.analysis.run import Run

PER_PROMPT = Callable[[int], Mapping[str, Any]]
LEVEL = 4


@pytest.fixture
def contender(tmp_path: Path) -> Callable[..., Run]:
    """`contender("a", lambda i: {"accepted": i}, arm={...})`: one arm at concurrency 4, 16 prompts, no baseline.

    `each` gives the fields that prompt i has instead of `write_run`'s (20 tokens in 8 passes, 6 drafted steps, 12 of 24
    draft tokens kept); further options are `write_run`'s, `level` in place of 4, and `folder` in place of
    the arm's name.
    """

    def write(
        name: str, each: PER_PROMPT = lambda _: {}, level: int = LEVEL, folder: str | None = None, **fields: Any
    ) -> Run:
        run = write_run(tmp_path / (folder or name), {(name, level): [(100.0, None)]}, baseline=None, **fields)
        records = [record.model_copy(update=each(record.prompt)) for record in run.requests()]
        checked = [RequestRecord.model_validate(record.model_dump(by_alias=True)) for record in records]
        text = "".join(record.model_dump_json(by_alias=True, exclude_none=True) + "\n" for record in checked)
        (run.folder / "requests.jsonl").write_text(text)
        return Run(run.folder)

    return write
