"""Layer skip inside the real vLLM on this CPU: it changes no token and takes no memory, whatever happens to the batch.

Two engines at once, asked the same: one without speculation, and one that drafts with layers of its own under all that
is hard for a cache that drafts share: so few KV blocks that requests are preempted, a beginning that all prompts have
in common so that prefixes are found in the cache, and passes of so few tokens that prompts are computed in chunks. Its
drafts are drawn with their probabilities (vLLM: draft_sample_method). Then the fallback, a cache of its own, for an
engine that lets a draft touch no other.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from harness import Toolkit
from test_lookup_on_the_engine import AT_ONCE, Served, judged, questions, served

from toolkit.analysis.audit.asking import Request
from toolkit.analysis.audit.replies import Reply

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

PORT, BASELINE_PORT = 8179, 8180
CROWDED = (
    "limits.max_model_len=1024",
    f"limits.max_num_seqs={AT_ONCE}",
    "limits.max_num_batched_tokens=96",
    "engine_args=['--num-gpu-blocks-override', '12']",  # blocks of 128 tokens
)
PROBABILISTIC = "speculation.options.draft_sample_method=probabilistic"
BEGINNING = "Answer every question briefly and to the point. " * 16  # more than a block: 145 tokens
SAMPLED_TOKENS = 1500


def asked() -> list[Request]:
    """The mixed load of the lookup's test, after a beginning that all have in common."""
    system = {"role": "system", "content": BEGINNING}
    return [replace(one, messages=(system, *one.messages)) for one in questions()]


@pytest.fixture(scope="module")
def baseline_server(toolkit: Toolkit) -> Iterator[Served]:
    with served(toolkit, "lab-baseline", "limits.kv_cache_gib=1", port=BASELINE_PORT) as server:
        yield server


@pytest.fixture(scope="module")
def baseline(baseline_server: Served) -> list[Reply]:
    """At the concurrency of the test, and some alone: how far its own shapes lie apart is the control."""
    return baseline_server.ask(asked()) + baseline_server.ask(asked()[:8], at_once=1)


@pytest.fixture(scope="module")
def crowded(toolkit: Toolkit, baseline: list[Reply]) -> Iterator[Served]:
    with served(toolkit, "lab-layer-skip", *CROWDED, PROBABILISTIC, port=PORT) as server:
        server.replies = server.ask(asked(), pause=0.01)
        server.preemptions = server.counted_preemptions()
        yield server


@pytest.fixture(scope="module")
def own(toolkit: Toolkit, crowded: Served, baseline: list[Reply]) -> Iterator[Served]:
    toolkit.run("stop", str(PORT))  # the other form was asked all that it is asked: see the order of the tests
    with served(toolkit, "lab-layer-skip", *CROWDED, "speculation.layer_cache=own", port=PORT) as server:
        server.replies = server.ask(asked()[:24], pause=0.01)
        yield server


def told(server: Served) -> str:
    """The line in which the worker says what drafts."""
    (line,) = [line for line in server.log.read_text().splitlines() if "layer skip drafts" in line]
    return line


class TestACrowdedSharedCache:
    def test_every_request_is_answered(self, crowded: Served) -> None:
        assert len(crowded.replies) == 64

    def test_requests_were_preempted(self, crowded: Served) -> None:
        assert crowded.preemptions > 0

    def test_prefixes_were_found_in_the_cache(self, crowded: Served) -> None:
        assert (counters(crowded).cached_tokens or 0) > 0

    def test_every_token_is_the_baselines(self, crowded: Served, baseline: list[Reply]) -> None:
        found = judged(crowded.replies, baseline)
        assert found.verdict == "lossless", (found.reason, found.examples)

    def test_drafts_are_kept(self, crowded: Served) -> None:
        assert rate(crowded.replies) > 0.4

    def test_the_worker_says_which_form_runs_and_why(self, crowded: Served) -> None:
        assert "Worker" in told(crowded)
        assert "It shares the target's KV cache: model runner V1 lets it." in told(crowded)

    def test_it_takes_less_than_5_mb(self, crowded: Served) -> None:
        """What it allocated is counted by its worker: tensors, and layers with a KV cache."""
        found = re.search(r"takes ([\d.]+) MB of tensors and a KV cache for (\d+) layers more", told(crowded))
        assert found is not None
        assert (float(found[1]) < 5, int(found[2])) == (True, 0)

    def test_sampled_tokens_are_the_models_own(
        self, toolkit: Toolkit, crowded: Served, baseline_server: Served
    ) -> None:
        """The audit at temperature 1, whose requests are seeded: their prompts, too, are computed in chunks."""
        folder = str(toolkit.folder / "audit-layer-skip")
        urls = ["--base-url", crowded.base_url, "--reference-url", baseline_server.base_url]
        done = toolkit.run("audit", *urls, "--tokens", str(SAMPLED_TOKENS), "--json", "--run", folder, timeout=900)
        assert done.stdout, done.stderr
        judgement = json.loads(done.stdout)
        levels = {level: judgement[level]["verdict"] for level in ("greedy", "distribution", "acceptance", "structure")}
        assert (done.returncode, judgement["verdict"]) == (0, "lossless"), judgement
        assert levels["distribution"] == "lossless", judgement


class TestACacheOfItsOwn:
    def test_every_token_is_the_baselines(self, own: Served, baseline: list[Reply]) -> None:
        found = judged(own.replies, [one for one in baseline if one.prompt < 24])
        assert found.verdict == "lossless", (found.reason, found.examples)

    def test_it_agrees_less_than_a_shared_one(self, own: Served, crowded: Served) -> None:
        assert 0 < rate(own.replies) < rate(crowded.replies[:24])

    def test_its_layers_have_caches_and_no_weights(self, own: Served) -> None:
        found = re.search(r"keeps a KV cache of its own: (.*)\. .* and a KV cache for (\d+) layers more", told(own))
        assert found is not None
        assert (found[1], int(found[2])) == ("it was asked for", 26)


def counters(server: Served) -> Any:
    page = httpx.get(server.endpoint.metrics_url, timeout=60, trust_env=False).raise_for_status().text
    return server.endpoint.counters(page)


def rate(replies: Sequence[Reply]) -> float:
    """The draft acceptance rate."""
    counts = [one.counts for one in replies if one.counts is not None]
    return sum(one.accepted for one in counts) / sum(one.drafted for one in counts)
