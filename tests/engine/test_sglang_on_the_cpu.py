"""The real SGLang server on this machine's CPU, one profile after another: `make lab-sglang`. About three minutes.

In fp32, where plain decoding and the verification of drafts round alike: what is compared are token ids.
"""

import asyncio
from dataclasses import dataclass

import psutil
import pytest
from harness import BOOT, session_members, wait_for

from toolkit.analysis.client import Answer, Client, Sampling
from toolkit.analysis.endpoint import Endpoint, find_endpoint
from toolkit.analysis.workload import Prompt, load_workload
from toolkit.engines.contract import Counters, SpecCounts
from toolkit.engines.sglang_python import LAB_MISSING, find_lab_python
from toolkit.launch.profile import load_profile
from toolkit.launch.server import free_port, launch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3 * BOOT)]

BASELINE, NGRAM, DRAFT = PROFILES = ("lab-sglang-baseline", "lab-sglang-ngram", "lab-sglang-draft")
SPECULATING = (NGRAM, DRAFT)
K = 4


@dataclass
class Served:
    """What one server answered, and its counters before, after the requests that came one by one, and at the end."""

    endpoint: Endpoint
    alone: list[Answer]
    at_once: list[Answer]
    pages: list[Counters]
    left: list[psutil.Process]
    """Processes of the server that lived on when it was stopped."""

    @property
    def answers(self) -> list[Answer]:
        return self.alone + self.at_once

    @property
    def counts(self) -> list[SpecCounts]:
        return [answer.counts for answer in self.answers if answer.counts is not None]


def prompts() -> tuple[list[Prompt], list[Prompt]]:
    """Asked alone, and asked at once. Texts that repeat themselves and texts that do not; one answer ends by itself.

    None twice: SGLang's trie of n-grams and its prefix cache are shared by all requests.
    """
    kinds = [load_workload(name, 7) for name in ("copy-list", "copy-code", "chat")]
    hello = Prompt(({"role": "user", "content": "Say hello in three words."},), "chat")
    alone, at_once = ([one.prompt(index) for one in kinds for index in pair] for pair in ((0,), (1, 2)))
    return [*alone, hello], at_once


async def ask(endpoint: Endpoint) -> tuple[list[Answer], list[Answer], list[Counters]]:
    alone, at_once = prompts()
    async with Client(endpoint, Sampling(max_tokens=40)) as client:
        pages = [await client.metrics()]
        answers = [await client.ask(prompt) for prompt in alone]
        pages.append(await client.metrics())
        together = await asyncio.gather(*(client.ask(prompt) for prompt in at_once))
        pages.append(await client.metrics())
    return answers, list(together), [page for page in pages if page is not None]


@pytest.fixture(scope="module")
def served() -> dict[str, Served]:
    if find_lab_python() is None:
        pytest.fail(LAB_MISSING)
    found = {}
    for name in PROFILES:
        with launch(load_profile(name, [f"server.port={free_port()}"]), boot_timeout=BOOT) as server:
            session = server.process.pid
            endpoint = find_endpoint(name, server.base_url)
            answered = asyncio.run(ask(endpoint))
        found[name] = Served(endpoint, *answered, session_members(session))
    return found


@pytest.mark.parametrize("name", PROFILES)
def test_every_request_is_answered(served: dict[str, Served], name: str) -> None:
    assert [answer.error for answer in served[name].answers] == [None] * sum(map(len, prompts()))


@pytest.mark.parametrize("name", PROFILES)
def test_every_answer_tells_all_its_ids(served: dict[str, Served], name: str) -> None:
    answers = served[name].answers
    assert [len(answer.answer_ids) for answer in answers] == [answer.completion_tokens for answer in answers]
    assert [len(answer.prompt_ids or []) for answer in answers] == [answer.prompt_tokens for answer in answers]


@pytest.mark.parametrize("name", SPECULATING)
def test_greedy_answers_are_those_of_plain_decoding(served: dict[str, Served], name: str) -> None:
    plain = [answer.answer_ids for answer in served[BASELINE].alone]
    assert [answer.answer_ids for answer in served[name].alone] == plain


@pytest.mark.parametrize("name", SPECULATING)
def test_so_are_those_of_several_requests_at_once(served: dict[str, Served], name: str) -> None:
    plain = [answer.answer_ids for answer in served[BASELINE].at_once]
    assert [answer.answer_ids for answer in served[name].at_once] == plain


@pytest.mark.parametrize("name", SPECULATING)
def test_the_prefill_the_passes_and_what_they_kept_make_up_the_answer(served: dict[str, Served], name: str) -> None:
    """More by at most K: what the end of an answer trimmed off its last pass."""
    assert len(served[name].counts) == len(served[name].answers)
    for answer in served[name].answers:
        assert answer.counts is not None
        assert answer.counts.steps is not None
        overshoot = 1 + answer.counts.steps + answer.counts.accepted - (answer.completion_tokens or 0)
        assert 0 <= overshoot <= K


@pytest.mark.parametrize("name", SPECULATING)
def test_a_histogram_counts_every_pass_and_every_kept_draft(served: dict[str, Served], name: str) -> None:
    for counts in served[name].counts:
        kept = counts.accepted_histogram
        assert kept is not None
        assert sum(kept) == counts.steps
        assert sum(number * passes for number, passes in enumerate(kept)) == counts.accepted


@pytest.mark.parametrize("name", SPECULATING)
def test_every_pass_verifies_k_drafts(served: dict[str, Served], name: str) -> None:
    assert [counts.drafted for counts in served[name].counts] == [
        K * (counts.steps or 0) for counts in served[name].counts
    ]


@pytest.mark.parametrize("name", SPECULATING)
def test_the_page_counts_the_same_passes(served: dict[str, Served], name: str) -> None:
    first, _, last = served[name].pages
    assert (last.drafts or 0) - (first.drafts or 0) == sum(counts.steps or 0 for counts in served[name].counts)


@pytest.mark.parametrize("name", PROFILES)
def test_one_request_at_a_time_an_iteration_is_a_pass(served: dict[str, Served], name: str) -> None:
    """But without speculation its scheduler runs ahead: where an answer ends by itself, one pass is thrown away."""
    one = served[name]
    bounds = [answer.passes(one.endpoint, name in SPECULATING) for answer in one.alone]
    ahead = sum(answer.finish_reason == "stop" for answer in one.alone) if name == BASELINE else 0
    first, then, _ = one.pages
    assert all(bound is not None and bound[0] == bound[1] for bound in bounds)
    assert (then.iterations or 0) - (first.iterations or 0) == sum(bound[0] for bound in bounds if bound) + ahead


def test_several_requests_share_their_iterations(served: dict[str, Served]) -> None:
    _, then, last = served[BASELINE].pages
    tokens = sum(answer.completion_tokens or 0 for answer in served[BASELINE].at_once)
    assert (last.iterations or 0) - (then.iterations or 0) < tokens / 2


def test_without_speculation_nothing_is_counted(served: dict[str, Served]) -> None:
    assert served[BASELINE].counts == []
    assert served[BASELINE].pages[-1].drafts is None


def test_a_lookup_keeps_something_of_texts_that_repeat(served: dict[str, Served]) -> None:
    assert sum(counts.accepted for counts in served[NGRAM].counts) > 0


def test_the_target_accepts_most_of_its_own_greedy_drafts(served: dict[str, Served]) -> None:
    """Not all: STANDALONE's draft is never given the first token of the prompt."""
    counts = served[DRAFT].counts
    assert sum(one.accepted for one in counts) > 0.5 * sum(one.drafted for one in counts)


@pytest.mark.parametrize("name", PROFILES)
def test_it_is_known_by_what_it_says_of_itself(served: dict[str, Served], name: str) -> None:
    assert (served[name].endpoint.engine.name, served[name].endpoint.version) == ("sglang", "0.5.23")


@pytest.mark.parametrize("name", PROFILES)
def test_stopped_means_that_none_of_its_processes_is_left(served: dict[str, Served], name: str) -> None:
    wait_for(lambda: not any(process.is_running() for process in served[name].left), 10, "end of all processes")
