"""A server that counts draft tokens and no steps: the acceptance rate is known, the acceptance length unavailable."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from stub_server import StubServer

from toolkit.analysis.cell import CellPlan, Job, measure
from toolkit.analysis.client import Client, Sampling
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.records import CellKey, RequestRecord
from toolkit.analysis.run import Run
from toolkit.analysis.workload import Prompt
from toolkit.engines import ENGINES

LM_STUDIO = {"total_draft_tokens_count": 12, "accepted_draft_tokens_count": 8, "ignored_draft_tokens_count": 2}


@pytest.fixture
def level(make_run: Callable[..., Run], tmp_path: Path) -> LevelStats:
    """An arm whose requests drafted 24 tokens and kept 12, in steps that nobody tells."""
    make_run(tmp_path, {("a", 4): [(150.0, 100.0)]})
    path = tmp_path / "requests.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    untold = [{name: value for name, value in one.items() if name not in ("steps", "passes")} for one in records]
    path.write_text("".join(json.dumps(one) + "\n" for one in untold))
    return next(one for one in level_stats(Run(tmp_path)) if one.side == "arm")


def test_the_rate_is_of_the_summed_counts(level: LevelStats) -> None:
    assert (level.drafted, level.accepted, level.draft_acceptance_rate) == (16 * 24, 16 * 12, 0.5)


def test_the_length_and_the_tokens_per_pass_are_unavailable(level: LevelStats) -> None:
    assert (level.steps, level.acceptance_length, level.tokens_per_pass) == (None, None, None)


def test_what_lm_studio_tells_is_recorded_request_by_request(stub: StubServer) -> None:
    told = json.dumps(LM_STUDIO).encode()[1:]
    stub.token_ids = False
    stub.segments = lambda events: [event.replace(b'"usage": {', b'"usage": {' + told[:-1] + b", ") for event in events]
    written: list[RequestRecord] = []
    key = CellKey(arm="a", side="arm", workload="w", concurrency=1, round=1)
    job = Job(0, Prompt(({"role": "user", "content": "hi"},), "chat"))

    async def once() -> None:
        async with Client(Endpoint("a", stub.url, stub.model, ENGINES["openai"]), Sampling(), 5.0) as client:
            await measure(client, CellPlan(key, 1, 0, "a", [job], None), written.append)

    asyncio.run(once())
    (record,) = written
    assert (record.error, record.completion_tokens) == (None, 16)
    assert (record.steps, record.drafted, record.accepted, record.passes) == (None, 10, 8, None)
