"""llama.cpp for real: the three lab profiles on a llama-server, one at a time. About a minute.

Where no llama-server is found every test here is skipped, and says so: `make lab-llamacpp` builds one.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import BOOT, Toolkit

from toolkit.analysis.acceptance import by_position, positions
from toolkit.analysis.client import Answer, Client, Sampling
from toolkit.analysis.endpoint import Endpoint, find_endpoint
from toolkit.analysis.levels import cross_check, level_stats
from toolkit.analysis.run import Run
from toolkit.analysis.workload import Prompt, load_workload
from toolkit.engines.contract import Counters
from toolkit.engines.llamacpp import LlamaCpp, find_server
from toolkit.launch.check import check_profile
from toolkit.launch.profile import load_profile
from toolkit.launch.server import free_port, launch

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(2 * BOOT),
    pytest.mark.skipif(find_server() is None, reason="no llama-server is here: `make lab-llamacpp` builds one"),
]

PROFILES = ("lab-llamacpp-baseline", "lab-llamacpp-ngram", "lab-llamacpp-draft")
SPECULATING = PROFILES[1:]
K = 4


@dataclass
class Served:
    """What one server answered, one request at a time, and its counters before and after."""

    endpoint: Endpoint
    answers: list[Answer]
    texts: list[str]
    before: Counters
    after: Counters

    def gained(self, name: str) -> float:
        return float(getattr(self.after, name) - getattr(self.before, name))


def prompts() -> list[Prompt]:
    """Texts that repeat themselves, where lookups find something, and texts that do not; one answer ends by itself."""
    kinds = [load_workload(name, 7) for name in ("copy-list", "copy-code", "chat")]
    hello = Prompt(({"role": "user", "content": "Say hello in three words."},), "chat")
    return [workload.prompt(index) for workload in kinds for index in range(2)] + [hello]


async def ask(endpoint: Endpoint) -> tuple[list[Answer], list[str], Counters, Counters]:
    texts: list[str] = []

    class Keeping(LlamaCpp):
        """Keeps the text as well, which a load client has no use for."""

        def spec_counts(self, chunk):  # type: ignore[no-untyped-def]
            for choice in chunk.get("choices") or []:
                texts[-1] += (choice.get("delta") or {}).get("content") or ""
            return super().spec_counts(chunk)

    kept = Endpoint(endpoint.name, endpoint.base_url, endpoint.model, Keeping())
    async with Client(kept, Sampling(max_tokens=64)) as client:
        before, answers = await client.metrics(), []
        for prompt in prompts():
            texts.append("")
            answers.append(await client.ask(prompt))
        after = await client.metrics()
    assert before is not None
    assert after is not None
    return answers, texts, before, after


@pytest.fixture(scope="module")
def served() -> dict[str, Served]:
    found = {}
    for name in PROFILES:
        profile = load_profile(name, [f"server.port={free_port()}"])
        with launch(profile, boot_timeout=BOOT) as server:
            endpoint = find_endpoint(name, server.base_url)
            found[name] = Served(endpoint, *asyncio.run(ask(endpoint)))
    return found


@pytest.mark.parametrize("name", PROFILES)
def test_every_request_is_answered(served: dict[str, Served], name: str) -> None:
    assert [answer.error for answer in served[name].answers] == [None] * len(prompts())


@pytest.mark.parametrize("name", SPECULATING)
def test_greedy_answers_are_those_of_plain_decoding(served: dict[str, Served], name: str) -> None:
    assert served[name].texts == served["lab-llamacpp-baseline"].texts


@pytest.mark.parametrize("name", SPECULATING)
def test_the_responses_counts_add_up_to_the_pages(served: dict[str, Served], name: str) -> None:
    one = served[name]
    counts = [answer.counts for answer in one.answers if answer.counts is not None]
    assert sum(count.drafted for count in counts) == one.gained("drafted") > 0
    assert sum(count.accepted for count in counts) == one.gained("accepted")
    assert sum(count.steps or 0 for count in counts) == one.gained("drafts")


@pytest.mark.parametrize("name", PROFILES)
def test_passes_are_the_decodes_that_the_page_counts(served: dict[str, Served], name: str) -> None:
    """One request at a time, each prompt in one batch: a decode is a pass."""
    one = served[name]
    bounds = [answer.passes(one.endpoint, name in SPECULATING) for answer in one.answers]
    assert all(bound is not None and bound[0] == bound[1] for bound in bounds)
    assert sum(bound[0] for bound in bounds if bound) == one.gained("iterations")


@pytest.mark.parametrize("name", SPECULATING)
def test_positions_by_steps_are_those_of_the_page(served: dict[str, Served], name: str) -> None:
    one = served[name]
    steps = [
        step
        for answer in one.answers
        if answer.counts
        for step in zip(answer.counts.per_step_drafted or [], answer.counts.per_step_accepted or [], strict=True)
    ]
    before = one.before.accepted_per_position or [0.0] * K
    gained = [high - low for low, high in zip(before, one.after.accepted_per_position, strict=True)]
    assert [place.accepted for place in positions(steps)] == gained


@pytest.mark.parametrize("name", PROFILES)
def test_chunks_carry_the_tokens_of_the_usage(served: dict[str, Served], name: str) -> None:
    answers = served[name].answers
    assert [sum(size or 0 for _, size in answer.chunks) for answer in answers] == [
        answer.completion_tokens for answer in answers
    ]


def test_a_draft_model_drafts_k_tokens_unless_the_answer_ends(served: dict[str, Served]) -> None:
    lengths = [answer.counts.per_step_drafted or [] for answer in served[PROFILES[2]].answers if answer.counts]
    assert all(set(steps[:-1]) <= {K} and steps[-1] <= K for steps in lengths if steps)


def test_the_target_accepts_its_own_greedy_drafts(served: dict[str, Served]) -> None:
    one = served["lab-llamacpp-draft"]
    assert one.gained("accepted") >= 0.9 * one.gained("drafted")


def test_a_lookup_keeps_something_of_texts_that_repeat(served: dict[str, Served]) -> None:
    one = served["lab-llamacpp-ngram"]
    assert 0 < one.gained("accepted") <= one.gained("drafted")


@pytest.mark.parametrize("name", PROFILES)
def test_it_is_known_by_what_it_says_of_itself(served: dict[str, Served], name: str) -> None:
    endpoint = served[name].endpoint
    assert (endpoint.engine.name, endpoint.version) == ("llamacpp", LlamaCpp().installed_version())


def test_a_plain_servers_page_does_not_say_that_it_drafts(served: dict[str, Served]) -> None:
    assert served["lab-llamacpp-baseline"].after.speculates is None


@pytest.mark.parametrize("name", PROFILES)
def test_its_own_parser_takes_the_shipped_profiles(name: str) -> None:
    assert check_profile(name) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('engine_args=["--spec-nonsense", "1"]', "invalid argument: --spec-nonsense"),
        ("speculation.options={spec_draft_sampling: sometimes}", "--spec-draft-sampling"),
    ],
)
def test_its_own_parser_finds_what_it_does_not_take(change: str, said: str) -> None:
    (problem,) = check_profile("lab-llamacpp-draft", [change])
    assert said in problem


@pytest.fixture(scope="module")
def swept(toolkit: Toolkit) -> Run:
    folder = toolkit.folder / "llamacpp"
    done = toolkit.run(
        *("sweep", "--profile", "lab-llamacpp-ngram", "--profile", "lab-llamacpp-draft"),
        *("--baseline", "lab-llamacpp-baseline", "--workload", "copy-list", "--concurrency", "1,2", "--rounds", "1"),
        *("--max-tokens", "32", "--run", str(folder)),
    )
    assert done.returncode == 0, done.stderr
    return Run(folder)


def test_a_sweep_measures_every_cell(swept: Run) -> None:
    cells = {(cell.cell.arm, cell.cell.side, cell.cell.concurrency) for cell in swept.cells()}
    assert cells == {(arm, side, n) for arm in SPECULATING for side in ("arm", "baseline") for n in (1, 2)}
    assert sum(cell.failed for cell in swept.cells()) == 0


def test_a_sweep_writes_down_what_was_served(swept: Run) -> None:
    baseline = swept.info.baseline
    assert baseline is not None
    assert (baseline.precision, baseline.model_identity) == ("Q4_1", "sha256:b179c9523d0e6a0f")
    assert baseline.engine_version == LlamaCpp().installed_version()


def test_a_sweep_knows_acceptance_and_passes_per_request(swept: Run) -> None:
    arms = [one for one in level_stats(swept) if one.side == "arm"]
    assert all(one.per_request and one.tokens_per_pass and one.acceptance_length for one in arms)
    assert all(place.reached is not None for arm in SPECULATING for place in by_position(swept, arm))


def test_a_sweeps_responses_and_pages_agree(swept: Run) -> None:
    assert cross_check(swept) == []


def test_a_sweep_can_be_read_as_json(swept: Run, toolkit: Toolkit) -> None:
    done = toolkit.run("crossover", str(Path(swept.folder)), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
