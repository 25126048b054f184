"""Our prompt lookup inside the real vLLM on this CPU: it changes no token, whatever happens to the batch.

Three engines, one after another: without speculation, with the lookup, and with the lookup and a KV cache so small that
requests are preempted. All are asked the same 64 questions, arriving at random, 16 at once. What is token-identical is
judged as the audit judges it: a divergence must be a near tie, by the baseline's own spread between batch shapes.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Toolkit, wait_for

from toolkit.analysis.audit.asking import TOP, Asking, Request
from toolkit.analysis.audit.greedy import judge_greedy
from toolkit.analysis.audit.judgement import Level, judge
from toolkit.analysis.audit.replies import Reply, Side
from toolkit.analysis.audit.structure import RESPONSE_FORMAT, fits
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.workload import load_workload
from toolkit.engines import ENGINES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

AT_ONCE = 16
K = 16
PORT = 8178
SMALL = ("limits.max_model_len=1024", "engine_args=['--num-gpu-blocks-override', '12']")  # blocks of 128 tokens
JSON = 'Describe {} in JSON of this shape: {{"color": "red", "size": "small", "ripe": true, "count": 3}}.'


def questions() -> list[Request]:
    """Chat, copies and strict JSON in turn; 16 to 96 tokens each."""
    rng = random.Random(5)
    fields = {"temperature": 0, "logprobs": True, "top_logprobs": TOP, "return_tokens_as_token_ids": True}
    chat, copies, lists = (load_workload(name, 3) for name in ("chat", "copy-code", "copy-list"))
    found = []
    for i in range(64):
        if i % 4 == 3:
            messages: Sequence[Any] = ({"role": "user", "content": JSON.format(f"fruit number {i}")},)
            found.append(Request("greedy", AT_ONCE, i, messages, 64, 1, {**fields, "response_format": RESPONSE_FORMAT}))
        else:
            messages = (chat, copies, lists)[i % 4].prompt(i).messages
            found.append(Request("greedy", AT_ONCE, i, messages, rng.randint(16, 96), 1, fields))
    return found


@dataclass
class Served:
    """A server and what came of asking it."""

    base_url: str
    model: str
    log: Path
    side: Side
    replies: list[Reply] = field(default_factory=list)
    preemptions: float = 0.0

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.side, self.base_url, self.model, ENGINES["vllm"])

    def ask(self, requests: Sequence[Request], at_once: int = AT_ONCE, pause: float = 0.05) -> list[Reply]:
        """`requests` as they arrive at random, `pause` seconds apart on average, `at_once` of them served."""
        return asyncio.run(self._ask(requests, at_once, pause))

    async def _ask(self, requests: Sequence[Request], at_once: int, pause: float) -> list[Reply]:
        rng, gate = random.Random(7), asyncio.Semaphore(at_once)

        async def one(request: Request, delay: float) -> Reply:
            await asyncio.sleep(delay)
            async with gate:
                return (await asking.generate([replace(request, concurrency=at_once)]))[0]

        arrivals, now = [], 0.0
        for request in requests:
            now += rng.expovariate(1 / pause)
            arrivals.append((request, now))
        async with Asking(self.side, self.endpoint) as asking:
            return list(await asyncio.gather(*(one(*arrival) for arrival in arrivals)))

    def counted_preemptions(self) -> float:
        page = httpx.get(self.endpoint.metrics_url, timeout=60, trust_env=False).raise_for_status().text
        counters = self.endpoint.counters(page)
        assert counters is not None
        assert counters.preemptions is not None
        return counters.preemptions

    def complete(self, **body: Any) -> dict[str, Any]:
        answer = httpx.post(
            f"{self.base_url}/completions", json={"model": self.model, **body}, timeout=600, trust_env=False
        )
        return dict(answer.raise_for_status().json())


@contextmanager
def served(toolkit: Toolkit, profile: str, *changes: str, port: int = PORT) -> Iterator[Served]:
    arguments = [part for change in changes for part in ("--set", change)]
    started = toolkit.run("launch", "--profile", profile, "--port", str(port), "--detach", "--json", *arguments)
    assert started.returncode == 0, started.stderr
    told = json.loads(started.stdout)
    side: Side = "baseline" if profile == "lab-baseline" else "arm"
    try:
        yield Served(told["base_url"], told["model"], Path(told["log"]), side)
    finally:
        toolkit.run("stop", str(port))


@pytest.fixture(scope="module")
def baseline(toolkit: Toolkit) -> list[Reply]:
    """At the concurrency of the test, and some alone: how far its own shapes lie apart is the control."""
    with served(toolkit, "lab-baseline") as server:
        return server.ask(questions()) + server.ask(questions()[:12], at_once=1)


@pytest.fixture(scope="module")
def lookup(toolkit: Toolkit, baseline: list[Reply]) -> Iterator[Served]:
    with served(toolkit, "lab-lookup") as server:
        server.replies = server.ask(questions())
        yield server


@pytest.fixture(scope="module")
def crowded(toolkit: Toolkit, baseline: list[Reply], lookup: Served) -> Iterator[Served]:
    toolkit.run("stop", str(PORT))  # the lookup was asked all that it is asked: see the order of the tests
    with served(toolkit, "lab-lookup", *SMALL) as server:
        server.replies = server.ask(questions(), pause=0.01)
        server.preemptions = server.counted_preemptions()
        yield server


def judged(arm: Sequence[Reply], baseline: Sequence[Reply]) -> Level:
    return judge({"greedy": judge_greedy([*arm, *baseline], K)}).levels["greedy"]


class TestAMixedLoad:
    def test_every_request_is_answered(self, lookup: Served) -> None:
        assert len(lookup.replies) == 64

    def test_every_token_is_the_baselines(self, lookup: Served, baseline: list[Reply]) -> None:
        found = judged(lookup.replies, baseline)
        assert found.verdict == "lossless", (found.reason, found.examples)

    def test_strict_json_is_kept_to(self, lookup: Served) -> None:
        complete = [one for one in lookup.replies if one.prompt % 4 == 3 and one.finish_reason == "stop"]
        assert complete
        assert [one.text for one in complete if not fits(one.text)] == []

    def test_drafts_of_copies_are_kept(self, lookup: Served) -> None:
        counts = [one.counts for one in lookup.replies if one.prompt % 4 in (1, 2) and one.counts is not None]
        drafted, accepted = sum(one.drafted for one in counts), sum(one.accepted for one in counts)
        assert drafted > 0
        assert accepted / drafted > 0.3

    def test_several_answers_to_one_prompt_are_each_their_own(self, lookup: Served) -> None:
        body = {"prompt": "The cat and the dog. The cat and", "n": 3, "temperature": 1.0, "seed": 3, "max_tokens": 40}
        choices = lookup.complete(**body, ignore_eos=True, return_token_ids=True)["choices"]
        tokens = {tuple(choice["token_ids"]) for choice in choices}
        assert ({len(one) for one in tokens}, len(tokens)) == ({40}, 3)

    def test_a_sequence_is_drafted_to_the_models_last_position(self, lookup: Served) -> None:
        """Within K tokens of it vLLM would ask no proposer and verify zeros for every request."""
        prompt = "one two three four five six seven eight nine ten " * 150
        answer = lookup.complete(
            prompt=prompt, max_tokens=2000, temperature=0, ignore_eos=True, truncate_prompt_tokens=1900
        )
        told = answer["metrics"]["speculative_decoding"]
        assert answer["usage"]["total_tokens"] == 2048
        assert told["num_accepted_draft_tokens"] > 100

    def test_the_worker_says_that_it_drafts(self, lookup: Served) -> None:
        (line,) = [line for line in lookup.log.read_text().splitlines() if "prompt lookup drafts up to 16" in line]
        assert "Worker" in line
        assert "registered by the entry point" in line

    def test_it_says_now_and_then_what_it_does_and_takes(self, lookup: Served) -> None:
        def said() -> bool:
            lookup.complete(prompt="a b c a b c a b", max_tokens=50, temperature=0, ignore_eos=True)
            return "own time where all only decode" in lookup.log.read_text()

        wait_for(said, 120, "report of the lookup in the log")

    def test_it_never_failed(self, lookup: Served) -> None:
        assert "drafts no more" not in lookup.log.read_text()


class TestACrowdedCache:
    def test_requests_were_preempted(self, crowded: Served) -> None:
        assert crowded.preemptions > 0

    def test_every_token_is_the_baselines(self, crowded: Served, baseline: list[Reply]) -> None:
        found = judged(crowded.replies, baseline)
        assert found.verdict == "lossless", (found.reason, found.examples)

    def test_it_never_failed(self, crowded: Served) -> None:
        assert "drafts no more" not in crowded.log.read_text()
