"""The 24 cases from people who do this job, each a public report, with its right value. Inputs: tests/data/cases.

Case 17 goes as far as a unit test can: `toolkit doctor` asks a running worker.
"""

import asyncio
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_run import write_run
from rich.table import Table
from stub_server import StubServer

from toolkit import proposers
from toolkit.analysis.acceptance import Position, by_position
from toolkit.analysis.arms import describe, key_part
from toolkit.analysis.ask import Ask, arm_of
from toolkit.analysis.audit.greedy import judge_greedy
from toolkit.analysis.audit.judgement import judge
from toolkit.analysis.audit.questions import greedy, structures
from toolkit.analysis.audit.replies import Ranked, Reply
from toolkit.analysis.audit.structure import judge_structure
from toolkit.analysis.caveats import caveats
from toolkit.analysis.cell import tokens_inside, warmup_lengths
from toolkit.analysis.client import Answer, Client, Sampling
from toolkit.analysis.crossover import crossover
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.latency import latencies
from toolkit.analysis.levels import LevelStats, cross_check, level_stats, tpot
from toolkit.analysis.prepare import sweep
from toolkit.analysis.records import CellKey, CounterReading, RequestRecord
from toolkit.analysis.report import report
from toolkit.analysis.run import RANDOM, Run, resume_key
from toolkit.analysis.scoreboard import add, export
from toolkit.analysis.tuning.tune import TuneAsk, tune
from toolkit.analysis.workload import Prompt
from toolkit.engines import ENGINES
from toolkit.engines.contract import Command, Counters, Profile, Speculation
from toolkit.engines.sglang_speculation import speculative_arguments
from toolkit.engines.vllm import VLLM
from toolkit.errors import EngineError, InputError
from toolkit.launch import server as server_module
from toolkit.launch.check import check_profile
from toolkit.launch.profile import load_profile
from toolkit.launch.registry import state_folder
from toolkit.launch.server import free_port, launch
from toolkit.proposers import prompt_lookup
from toolkit.proposers.prompt_lookup import PromptLookupProposer, Totals, told
from toolkit.terminal import answer

DATA = Path(__file__).parents[1] / "data" / "cases"
FAKE_ENGINE = Path(__file__).parent / "launch" / "fake_engine.py"
PAYS = [(150.0, 100.0), (153.0, 100.0), (148.0, 100.0), (151.0, 100.0), (149.0, 100.0)]


class Quiet:
    def stage(self, text: str) -> None: ...

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


def page(name: str) -> Counters:
    return VLLM().counters((DATA / name).read_text())


def reading(counters: Counters, at: float) -> CounterReading:
    names = ("drafts", "drafted", "accepted", "accepted_per_position")
    return CounterReading(at=at, **{name: getattr(counters, name) for name in names})


def with_counters(folder: Path, before: Counters, after: Counters) -> Run:
    """A run of one arm whose requests tell nothing of their drafts: its counters alone do."""
    run = write_run(
        folder,
        {("vllm-ngram", 1): [(100.0, None)]},
        baseline=None,
        cell={"counters": [reading(before, 0.0), reading(after, 10.0)]},
    )
    path = folder / "requests.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for name in ("steps", "drafted", "accepted", "passes"):
            record.pop(name, None)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Run(run.folder)


def swept(folder: Path, arm: StubServer, base: StubServer | None = None, **fields: Any) -> Run:
    """A small sweep of running servers."""
    defaults: dict[str, Any] = {"workload": "chat", "concurrency": "1", "rounds": 1, "requests": 4, "max_tokens": 16}
    urls = {"base_url": arm.url, "baseline_url": base.url if base else None}
    return Run(sweep(Ask(**{**defaults, **urls, "run": folder, **fields}), Quiet()))


def said(run: Run) -> list[str]:
    """The sentences and the titles of tables that `toolkit crossover` prints, in order."""
    parts = answer(run, crossover(run), level_stats(run))
    return [str(part.title) if isinstance(part, Table) else part for part in parts]


def stats(arm: str, level: int, rate: float, length: float, drafted: float = 1000.0) -> LevelStats:
    """A level of an arm that keeps `rate` of its draft tokens at an acceptance length of `length`."""
    return LevelStats(
        arm=arm, side="arm", workload="w", concurrency=level, cells=6, requests=96, failed=0, tokens_per_second=1.0,
        ttft_ms=None, tpot_ms=None, tokens_per_pass=None, drafted=drafted, accepted=rate * drafted,
        steps=rate * drafted / (length - 1), mean_tokens_held=None, per_request=True,
    )  # fmt: skip


class TestCase01TwoEnginesOnOnePage:
    """speculators#1095."""

    def test_unconditional_acceptance_at_the_first_position_is_26_of_30(self, tmp_path: Path) -> None:
        zero = Counters(drafts=0, drafted=0, accepted=0, accepted_per_position=[0, 0])
        first, _ = by_position(with_counters(tmp_path, zero, page("speculators-1095.prom")), "vllm-ngram")
        assert (first, first.unconditional) == (Position(1, None, 30, 26), 26 / 30)


class TestCase02LabelsInAnyOrder:
    """Issue 92 of a Spark serving repository."""

    def test_the_windows_difference_counts_and_no_timestamp(self, tmp_path: Path) -> None:
        run = with_counters(tmp_path, page("spark-92-before.prom"), page("spark-92-after.prom"))
        assert by_position(run, "vllm-ngram") == [Position(1, None, 100, 70), Position(2, None, 100, 30)]


class TestCase03NamesOfAnotherEngine:
    """vime#84."""

    CHUNK = json.loads((DATA / "vime-84-vllm-response.json").read_text())

    @pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"vllm", "lab-reference"}))  # the lab's speaks vLLM's
    def test_no_other_adapter_finds_anything_in_vllms_response(self, engine: str) -> None:
        assert ENGINES[engine].spec_counts(self.CHUNK) is None

    def test_vllms_own_does(self) -> None:
        counts = VLLM().spec_counts(self.CHUNK)
        assert counts is not None
        assert (counts.steps, counts.drafted, counts.accepted) == (6, 24, 9)

    def test_then_acceptance_is_unavailable_with_the_reason_and_not_0(self, tmp_path: Path) -> None:
        with StubServer(owned_by="sglang", accepts=[2, 1], metrics=False) as server:
            run = swept(tmp_path, server)
        (level,) = level_stats(run)
        assert (level.draft_acceptance_rate, level.acceptance_length, level.tokens_per_pass) == (None, None, None)
        assert [line for line in said(run) if "acceptance and tokens per pass are unavailable" in line]


class TestCase04NoPerRequestFlag:
    """Issue 66 of a 3090 serving repository."""

    def test_the_counters_stand_in_labelled_as_an_aggregate_with_the_flag_that_gives_more(self, tmp_path: Path) -> None:
        with StubServer(accepts=[2, 1], per_request=False) as server:
            run = swept(tmp_path, server)
        (level,) = level_stats(run)
        assert (level.per_request, level.draft_acceptance_rate) == (False, pytest.approx(9 / 24, abs=0.1))
        (line,) = [line for line in said(run) if "aggregate" in line]
        assert "--per-request-spec-decode-metrics" in line


class TestCase05DepthsThatDiffer:
    """sglang#8228: steps 2 and draft tokens 2 against vLLM's K = 2."""

    def test_k_2_is_steps_2_and_draft_tokens_3_the_root_among_them(self) -> None:
        speculation = Speculation(method="eagle3", num_speculative_tokens=2, draft="a/head")
        argv = speculative_arguments(speculation, str)
        flags = dict(zip(argv[::2], argv[1::2], strict=True))
        steps, tokens = flags["--speculative-num-steps"], flags["--speculative-num-draft-tokens"]
        assert (steps, tokens) == ("2", "3")

    def test_draft_tokens_of_ones_own_are_refused(self) -> None:
        speculation = Speculation(
            method="eagle3", num_speculative_tokens=2, draft="a/head", options={"num_draft_tokens": 2}
        )
        with pytest.raises(InputError, match=r"num_draft_tokens repeats speculation\.num_speculative_tokens"):
            speculative_arguments(speculation, str)


class TestCase06OneDefinition:
    """vllm#42508: a mean of per-request ratios and a ratio of sums disagree on the same server."""

    def test_acceptance_comes_from_summed_counts(self, tmp_path: Path) -> None:
        """One request keeps 8 of 8 draft tokens in 2 steps, three keep none of 16 in 4: sums say 8 of 56, 0.143."""
        run = write_run(tmp_path, {("a", 1): [(100.0, None)]}, baseline=None)
        path = tmp_path / "requests.jsonl"
        counts = [(2, 8, 8), (4, 16, 0), (4, 16, 0), (4, 16, 0)]
        records = [RequestRecord.model_validate_json(line) for line in path.read_text().splitlines()]
        changed = [
            one.model_copy(update=dict(zip(("steps", "drafted", "accepted"), three, strict=True)))
            for one, three in zip(records, counts, strict=True)
        ]
        path.write_text("".join(one.model_dump_json(by_alias=True, exclude_none=True) + "\n" for one in changed))
        (level,) = level_stats(Run(run.folder))
        assert (level.draft_acceptance_rate, level.acceptance_length) == (8 / 56, 1 + 8 / 14)


RATE = 25.16  # tokens/s


def streamed(size: int, chunks: int = 50, told: bool = True) -> list[tuple[float, int | None]]:
    """Chunks of `size` tokens at 25.16 tokens/s."""
    return [(index * size / RATE, size if told else None) for index in range(chunks)]


sizes = pytest.mark.parametrize("size", [1, 2, 4, 8, 16])


def record_of(chunks: list[tuple[float, int | None]], size: int) -> RequestRecord:
    key = CellKey(arm="a", side="arm", workload="w", concurrency=1, round=1)
    return RequestRecord(
        cell=key, attempt=1, served_by="a", warmup=False, category="c", prompt=0, prompt_hash="h", sent=0.0, ttft=0.1,
        ended=9.0, chunks=chunks, completion_tokens=size * len(chunks), finish_reason="length",
    )  # fmt: skip


class TestCase07ChunksOfManyTokens:
    """llama-benchy#11: chunks of 2, 4, 8, 16 tokens each."""

    @sizes
    @pytest.mark.parametrize("told", [True, False], ids=["chunks tell their tokens", "usage alone"])
    def test_the_rate_is_that_of_tokens_and_not_of_chunks(self, size: int, told: bool) -> None:
        chunks = streamed(size, told=told)
        one = Answer(sent=0.0, chunks=chunks, completion_tokens=50 * size)
        assert tokens_inside(one, 0.0, chunks[-1][0]) / chunks[-1][0] == pytest.approx(RATE)


class TestCase08TimePerToken:
    """sglang#12064, vllm#42661: the same streams."""

    @sizes
    def test_tpot_is_a_tokens_time_whatever_a_chunk_carries(self, size: int) -> None:
        assert tpot(record_of(streamed(size), size)) == pytest.approx(1 / RATE)

    def test_without_the_size_of_the_first_chunk_it_is_unavailable(self) -> None:
        assert tpot(record_of(streamed(4, told=False), 4)) is None

    def test_the_gap_between_chunks_has_a_name_of_its_own(self, tmp_path: Path) -> None:
        with StubServer(chunk=8, gap=0.02) as server:
            run = swept(tmp_path, server, max_tokens=64)
        (level,) = latencies(run, run.info.arms[0].name)
        assert level.arm.itl is not None
        assert level.arm.tpot is not None
        assert level.arm.itl.p50 == pytest.approx(8 * level.arm.tpot.p50, rel=0.3)


def asked(server: StubServer) -> Answer:
    async def once() -> Answer:
        endpoint = Endpoint("stub", server.url, server.model, ENGINES["vllm"])
        async with Client(endpoint, Sampling(max_tokens=16), 5.0) as client:
            return await client.ask(Prompt(({"role": "user", "content": "hi"},), "chat"))

    return asyncio.run(once())


class TestCase09ReasoningBeforeContent:
    """llm_context_benchmarks#10."""

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "content"])
    def test_the_first_token_of_any_of_the_three_is_the_first_token(self, field: str) -> None:
        with StubServer(field_of=lambda index: field if index < 8 else "content", gap=0.01) as server:
            found = asked(server)
        assert found.first is not None
        assert (found.error, found.first, len(found.chunks)) == (None, found.chunks[0][0], 16)

    def test_tokens_without_any_text_are_an_error(self) -> None:
        with StubServer(fault=lambda number, body: "no text") as server:
            assert asked(server).error == "16 tokens by usage, but no text arrived"


@pytest.fixture(scope="module")
def on_random_prompts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Five pairs on random prompts at 1: on language this sweep would have a verdict."""
    folder = tmp_path_factory.mktemp("random")
    with (
        pytest.MonkeyPatch.context() as patch,
        StubServer(accepts=[3, 1], gap=0.002) as arm,
        StubServer(gap=0.002) as base,
    ):
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield swept(folder / "run", arm, base, workload="random", rounds=5)


class TestCase10RandomTokens:
    """vllm#33497, vllm#52536."""

    def test_no_acceptance_and_no_speedup_is_claimed(self, on_random_prompts: Run) -> None:
        (result,) = crossover(on_random_prompts).results
        (level,) = result.levels
        assert (level.speedup, level.low, level.verdict, level.reason) == (None, None, "inconclusive", RANDOM)
        assert (level.tokens_per_pass, level.draft_acceptance_rate, level.acceptance_length) == (None, None, None)
        assert (level.factors, result.acceptance.by_position, result.acceptance.by_category) == (None, [], [])

    def test_its_load_is_measured(self, on_random_prompts: Run) -> None:
        rates = [level.tokens_per_second for level in level_stats(on_random_prompts)]
        assert [rate is not None and rate > 0 for rate in rates] == [True, True]

    def test_the_terminal_says_so_before_any_number(self, on_random_prompts: Run) -> None:
        first, table, *rest = said(on_random_prompts)
        assert (first, "(load only)" in table) == (f"{RANDOM}.", True)
        assert not any("reports neither" in line or "aggregate" in line for line in rest)

    def test_the_json_says_so(self, on_random_prompts: Run) -> None:
        found = crossover(on_random_prompts).as_json()
        assert found["caveats"][0] == RANDOM
        assert found["results"][0]["answer"].endswith(RANDOM)

    def test_the_scoreboard_labels_the_load_and_claims_no_more(self, on_random_prompts: Run, tmp_path: Path) -> None:
        board = tmp_path / "SCOREBOARD.md"
        assert add(on_random_prompts, None, board) == 2
        rows = json.loads(export(board, "json"))["rows"]
        assert {row["workload"] for row in rows} == {"random (load only)"}
        claims = [row[name] for row in rows for name in ("speedup", "verdict", "draft_acceptance_rate")]
        assert (set(claims), all(row["tokens_per_second"] > 0 for row in rows)) == ({None}, True)

    def test_the_report_says_so(self, on_random_prompts: Run, tmp_path: Path) -> None:
        report([on_random_prompts], tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text().count(RANDOM) >= 3

    def test_a_file_of_token_ids_is_of_the_same_kind(self, tmp_path: Path, stub: StubServer) -> None:
        (tmp_path / "mine.jsonl").write_text("".join(f'{{"prompt": [{n}, 7, 40113]}}\n' for n in range(30)))
        run = swept(tmp_path / "run", stub, workload=str(tmp_path / "mine.jsonl"))
        assert (run.info.workload.random, crossover(run).caveats[0]) == (True, RANDOM)

    def test_a_schedule_is_not_tuned_on_them(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="for load only: a schedule depends on what is asked"):
            tune(TuneAsk("lab-ngram", workload="random", run=tmp_path), Quiet())


def ranked(token: int, gap: float) -> Ranked:
    """`token` leads by `gap` nats, its rival being the token 100 above it."""
    return [(token, -0.1), (token + 100, -0.1 - gap), (99, -9.0)]


def reply(side: str, concurrency: int, prompt: int, tokens: list[int], gaps: dict[int, float]) -> Reply:
    """`gaps`: the lead of the token at a place, 3 nats elsewhere."""
    top = [ranked(token, gaps.get(at, 3.0)) for at, token in enumerate(tokens)]
    text = " ".join(map(str, tokens))
    return Reply(
        "greedy", side, concurrency, prompt, 42, [1, 2], tokens, [1] * len(tokens), text, "length", top=top,
    )  # type: ignore[arg-type]  # fmt: skip


def greedy_replies(arm: list[int], gaps: dict[int, float]) -> list[Reply]:
    """Six prompts to both sides at 1 and 8; of the first the arm answers `arm`, all else is 11 to 16."""
    plain = [11, 12, 13, 14, 15, 16]
    return [
        reply(side, n, prompt, arm if (side, prompt) == ("arm", 0) else plain, gaps if prompt == 0 else {})
        for side in ("arm", "baseline")
        for n in (1, 8)
        for prompt in range(6)
    ]


class TestCase11ARepeatedWord:
    """vllm#41758: the baseline's own greedy output may depend on its batch."""

    def test_the_audit_asks_it(self) -> None:
        first = greedy(1)[0]
        text = first.messages[0]["content"]
        assert (text, first.max_tokens, first.seed) == (" ".join(["serving"] * 48), 32, 42)
        assert first.fields["temperature"] == 0

    def test_tokens_are_compared_with_the_baseline(self) -> None:
        """The same text of other tokens is a divergence."""
        replies = greedy_replies([11, 12, 13, 14, 115, 16], {})
        merged = [replace(one, text="11 12 13 14 15 16") for one in replies]
        assert judge({"greedy": judge_greedy(merged, 4)}).levels["greedy"].verdict == "lossy"

    def test_the_baseline_is_compared_with_itself(self) -> None:
        own = [
            replace(
                one,
                token_ids=[11, 112, 13, 14, 15, 16],
                top=[ranked(11, 3.0), ranked(112, 0.001), *(one.top or [])[2:]],
            )
            if (one.side, one.concurrency, one.prompt) == ("baseline", 8, 3)
            else one
            for one in greedy_replies([11, 12, 13, 14, 15, 16], {})
        ]
        assert "the baseline leaves itself 1 times when its batch changes" in judge_greedy(own, 0).proved


class TestCase12ANearTie:
    """vllm#54506."""

    @pytest.fixture
    def found(self) -> Any:
        return judge_greedy(greedy_replies([11, 12, 13, 114, 15, 16], {3: 0.0004}), 4)

    def test_it_is_no_fault(self, found: Any) -> None:
        assert judge({"greedy": found}).levels["greedy"].verdict == "lossless"

    def test_it_is_counted_as_a_near_tie(self, found: Any) -> None:
        notes = [test.note for test in found.tests if test.name.startswith("tokens")]
        assert ["1 of 6 prompts diverge, 1 of them at a near tie" in note for note in notes] == [True, True]

    def test_its_gap_and_position_are_shown(self, found: Any) -> None:
        assert [("token 4" in one, "gap 0.0004 nats" in one) for one in found.examples] == [(True, True)] * 2

    def test_the_same_divergence_with_a_wide_gap_is_a_fault(self) -> None:
        wide = judge_greedy(greedy_replies([11, 12, 13, 114, 15, 16], {}), 4)
        assert judge({"greedy": wide}).levels["greedy"].verdict == "lossy"


class TestCase13FieldsThatSpeculationRefuses:
    """vllm#42744."""

    @pytest.mark.parametrize("field", ["min_p=0.1", 'logit_bias={"50256": -100}'])
    def test_vllms_limit_is_named_before_anything_starts(self, tmp_path: Path, field: str) -> None:
        with pytest.raises(InputError, match=r"lab-ngram speculates, and vLLM refuses min_p and logit_bias under spec"):
            sweep(Ask(profiles=["lab-ngram"], baseline="lab-baseline", fields=[field], run=tmp_path / "run"), Quiet())
        assert not (tmp_path / "run").exists()

    def test_a_running_server_that_speculates_is_asked_nothing(self, tmp_path: Path) -> None:
        with StubServer(accepts=[2]) as server:
            with pytest.raises(InputError, match="vLLM refuses min_p"):
                swept(tmp_path / "run", server, fields=["min_p=0.1"])
            assert server.served == []

    def test_sglang_would_ignore_min_p(self) -> None:
        assert "ignores min_p" in ENGINES["sglang"].not_under_speculation["min_p"]

    def test_without_speculation_the_field_is_sent(self, tmp_path: Path, stub: StubServer) -> None:
        run = swept(tmp_path / "run", stub, fields=["min_p=0.1", "top_p=0.9", "user=me"])
        sent = [(body["min_p"], body["top_p"], body["user"]) for body in stub.bodies]
        assert (set(sent), run.info.sampling["fields"]["min_p"]) == ({(0.1, 0.9, "me")}, 0.1)

    def test_a_value_that_asks_for_nothing_is_let_through(self, tmp_path: Path) -> None:
        with StubServer(accepts=[2]) as server:
            swept(tmp_path / "run", server, fields=["min_p=0", "logit_bias={}"])
            assert {body["min_p"] for body in server.bodies} == {0}

    def test_a_server_of_which_that_is_not_known_ends_the_sweep_with_its_own_words(self, tmp_path: Path) -> None:
        said = (DATA / "vllm-42744-refusal.json").read_text()
        with StubServer(owned_by="someone", fault=lambda number, body: f"400 {said}") as server:
            with pytest.raises(EngineError, match="HTTP 400: The min_p and logit_bias sampling parameters are not yet"):
                swept(tmp_path / "run", server, fields=["min_p=0.1"])
            assert len(server.served) <= 3

    @pytest.mark.parametrize("field", ["n=2", "temperature=1", "stream=false", "model=x", "min_p", "=1"])
    def test_what_is_ours_to_say_is_refused(self, tmp_path: Path, stub: StubServer, field: str) -> None:
        with pytest.raises(InputError, match="--field"):
            swept(tmp_path / "run", stub, fields=[field])

    def test_a_default_of_the_profile_is_caught_too(self) -> None:
        changes = ["engine_args=[--override-generation-config, '{\"min_p\": 0.1}']"]
        profile = load_profile("ngram-8b", changes)
        with pytest.raises(InputError, match="--override-generation-config: profile ngram-8b speculates"):
            VLLM().command(profile, str)

    @pytest.mark.parametrize(("arguments", "refused"), [([], True), (["--generation-config", "vllm"], False)])
    def test_so_is_one_of_the_model_with_the_way_round(
        self, tmp_path: Path, arguments: list[str], refused: bool
    ) -> None:
        (tmp_path / "generation_config.json").write_text('{"min_p": 0.15, "temperature": 0.3}')
        profile = load_profile("ngram-8b").model_copy(update={"engine_args": arguments})
        if refused:
            with pytest.raises(InputError, match=r"engine_args: \[--generation-config, vllm\]"):
                VLLM().command(profile, lambda _: str(tmp_path))
        else:
            VLLM().command(profile, lambda _: str(tmp_path))

    def test_an_arm_without_speculation_may_have_it(self, tmp_path: Path) -> None:
        (tmp_path / "generation_config.json").write_text('{"min_p": 0.15}')
        VLLM().command(load_profile("baseline-8b"), lambda _: str(tmp_path))


class TestCase14StrictJson:
    """vllm#44993."""

    FRUIT = '{"color": "red", "size": "small", "ripe": true, "count": 3}'

    def judged(self, arm: list[str]) -> Any:
        both = {"arm": arm, "baseline": [self.FRUIT] * 8}
        return judge_structure(
            [
                replace(reply(side, 8, i, [1], {}), question="structure", text=text, finish_reason="stop")
                for side, texts in both.items()
                for i, text in enumerate(texts)
            ]
        )

    def test_it_is_asked_at_concurrency_8_with_a_schema(self) -> None:
        assert {(one.concurrency, one.fields["response_format"]["type"]) for one in structures()} == {
            (8, "json_schema")
        }

    def test_replies_that_all_parse_prove_it(self) -> None:
        assert "8 replies in strict JSON parse" in self.judged([self.FRUIT] * 8).proved

    def test_one_that_does_not_is_shown(self) -> None:
        found = self.judged([self.FRUIT] * 7 + [self.FRUIT + "}"])
        assert (found.tests[0].statistic, found.tests[0].p, len(found.examples)) == (1, 0.0, 1)


class TestCase15Collapse:
    """vllm#37150: 1.2 % where the twin keeps 70 %."""

    def test_it_is_flagged_with_both_schedulers(self, tmp_path: Path) -> None:
        run = write_run(tmp_path, {("async", 4): PAYS, ("sync", 4): PAYS})
        modes = {"async": "asynchronous", "sync": "synchronous"}
        arms = [arm.model_copy(update={"scheduling": modes[arm.name]}) for arm in run.info.arms]
        (tmp_path / "run.json").write_text(run.info.model_copy(update={"arms": arms}).model_dump_json(by_alias=True))
        (line,) = caveats(Run(tmp_path), [stats("async", 4, 0.012, 1.5), stats("sync", 4, 0.7, 3.0)])
        assert line.startswith("async at 4 (asynchronous) keeps 1.2% of its draft tokens where sync at 4 (synchronous)")

    @pytest.mark.parametrize(("profile", "mode"), [("ngram-8b", "synchronous"), ("draft-1b", "asynchronous")])
    def test_the_scheduling_mode_is_recorded(self, profile: str, mode: str) -> None:
        assert describe(arm_of(load_profile(profile)), None).scheduling == mode


class TestCase16AProposersOwnTime:
    """vllm#56732, vllm#16883: a lookup over 50k tokens of context that eats the step."""

    def test_it_is_shown_as_a_share_of_the_step(self) -> None:
        totals = Totals(1000, 1000, 4000, 3000, 1500, own=9.0, clean=1000, clean_seconds=30.0, clean_own=9.0)
        assert "own time where all only decode 9000 us, 30.00% of the step" in told(totals)


class TestCase17ThePluginInTheWorker:
    """vllm#27940."""

    @pytest.mark.parametrize(
        ("ran", "words"), [(True, "registered by the entry point"), (False, "the entry point did not run here")]
    )
    def test_the_first_line_that_the_worker_logs_tells_whether_the_plugin_ran_in_it(
        self, ran: bool, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The proposer is built by the worker, so it says so of that process and of no other."""
        monkeypatch.setattr(proposers, "registered", ran)
        monkeypatch.setattr(prompt_lookup, "_compile", lambda *_: None)  # seconds, and not what this is about
        model = SimpleNamespace(max_model_len=128)
        drafting = SimpleNamespace(
            num_speculative_tokens=2, num_speculative_tokens_per_batch_size=None, draft_model_config=model
        )
        with caplog.at_level(logging.INFO, "vllm.toolkit"):
            PromptLookupProposer(
                SimpleNamespace(
                    model_config=model,
                    scheduler_config=SimpleNamespace(max_num_seqs=2),
                    speculative_config=drafting,
                    additional_config={},
                )
            )
        assert f"in process {os.getpid()} ({words})" in caplog.text


class TestCase18ADraftThatDoesNothing:
    """SpecForge#310: acceptance length 1.04."""

    def test_it_is_said_before_any_speedup(self, tmp_path: Path) -> None:
        with StubServer(accepts=[0] * 24 + [1], tokens=27) as arm, StubServer(tokens=27) as base:
            run = swept(tmp_path, arm, base, max_tokens=27)
        (level,) = [one for one in level_stats(run) if one.side == "arm"]
        assert level.acceptance_length == pytest.approx(1.04)
        assert said(run)[0] == (
            f"{run.info.arms[0].name}: this draft does nothing here, its acceptance length is 1.04 at best."
        )


class TestCase19TheSameName:
    """sparkrun#232: two profiles of one name whose serving arguments differ."""

    def key(self, folder: Path, arguments: str) -> str:
        folder.mkdir()
        (folder / "mine.yaml").write_text(f"extends: ngram-8b\ncontainer: null\nengine_args: [{arguments}]\n")
        arm = arm_of(load_profile(str(folder / "mine.yaml")))
        return resume_key({"arms": [key_part(arm, describe(arm, None))]})

    def test_a_resume_does_not_mix_them(self, tmp_path: Path) -> None:
        assert self.key(tmp_path / "a", "--block-size=16") != self.key(tmp_path / "b", "--block-size=32")

    def test_the_same_profile_elsewhere_is_resumed(self, tmp_path: Path) -> None:
        assert self.key(tmp_path / "a", "--block-size=16") == self.key(tmp_path / "b", "--block-size=16")

    def test_a_run_directory_of_the_other_is_refused(self, tmp_path: Path, stub: StubServer) -> None:
        swept(tmp_path, stub, max_tokens=16)
        with pytest.raises(InputError, match="holds another measurement: sampling differ"):
            swept(tmp_path, stub, max_tokens=8)


class TestCase20CountsThatDisagree:
    """sglang#13754: the log says 4.00, the client's counts say 0."""

    def disagreeing(self, folder: Path, counted: int) -> list[str]:
        """Four answers of 20 tokens that report no accepted drafts; the counters moved by `counted`."""
        run = write_run(
            folder,
            {("a", 1): [(100.0, None)]},
            baseline=None,
            cell={
                "counters": [
                    CounterReading(at=0.0, drafts=0, drafted=0, accepted=0),
                    CounterReading(at=9.0, drafts=20, drafted=60, accepted=counted),
                ]
            },
        )
        path = folder / "requests.jsonl"
        path.write_text(path.read_text().replace('"accepted":12', '"accepted":0'))
        return cross_check(Run(run.folder))

    def test_it_is_reported(self, tmp_path: Path) -> None:
        (line,) = self.disagreeing(tmp_path, 60)
        assert line.startswith("a: its responses report 0 accepted draft tokens, its counters 60.")

    def test_so_are_tokens_that_came_too_fast_for_what_the_responses_count(self, tmp_path: Path) -> None:
        """Nothing of its drafts on /metrics, 0 accepted in the responses, and 4 tokens an iteration."""
        run = write_run(
            tmp_path,
            {("a", 1): [(100.0, None)]},
            baseline=None,
            cell={"counters": [CounterReading(at=0.0, iterations=0), CounterReading(at=9.0, iterations=20)]},
        )
        path = tmp_path / "requests.jsonl"
        path.write_text(path.read_text().replace('"accepted":12', '"accepted":0'))
        (line,) = cross_check(Run(run.folder))
        assert line.startswith("a: its 80 tokens came in 20 iterations, too few for the 0 accepted draft tokens")

    def test_counts_that_agree_say_nothing(self, tmp_path: Path) -> None:
        assert self.disagreeing(tmp_path, 0) == []

    def test_counts_that_cannot_make_the_tokens_that_came_give_no_passes(self) -> None:
        """33 tokens in the prefill and 8 verified passes that kept nothing: the counts are wrong, not the tokens."""
        counts = ENGINES["sglang"].spec_counts(
            {
                "sglext": {
                    "spec_tokens_details": {
                        "spec_verify_ct": 8,
                        "spec_num_proposed_drafts": 24,
                        "spec_num_correct_drafts": 0,
                    }
                }
            }
        )
        assert counts is not None
        assert ENGINES["sglang"].passes(33, [], counts) is None


class TestCase21Vocabularies:
    """The Qwen2.5 pair: 152064 against 151936."""

    CHANGES = ("target.model=Qwen/Qwen2.5-7B-Instruct", "speculation.draft=Qwen/Qwen2.5-0.5B-Instruct")

    def test_it_is_caught_from_the_two_config_files_with_the_way_round(self) -> None:
        (problem,) = check_profile("draft-qwen3-0.6b", self.CHANGES)
        assert [part for part in ("152064", "151936", "use_heterogeneous_vocab") if part not in problem] == []


class TestCase22Ready:
    """gpustack#6203: /v1/models answers before the warm-up ends."""

    @pytest.fixture
    def profile(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Profile]:
        """A profile of an engine whose /health and /v1/models answer at once."""
        monkeypatch.setattr(server_module, "POLL", 0.05)

        def profile(*behaviour: str) -> Profile:
            class Early(VLLM):
                name = "early"

                def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
                    port = str(profile.server.port)
                    return Command((sys.executable, str(FAKE_ENGINE), "--port", port, *behaviour), {})

            monkeypatch.setitem(ENGINES, "early", Early())
            values = {"name": "early", "engine": "early", "target": {"model": "org/model"}}
            return Profile.model_validate({**values, "server": {"port": free_port()}})

        return profile

    def test_it_is_ready_after_a_generation(self, profile: Callable[..., Profile]) -> None:
        with launch(profile(), boot_timeout=30):
            (log,) = state_folder().glob("*.log")
            assert "POST /v1/completions 200" in log.read_text()

    def test_one_that_does_not_generate_is_not_ready(self, profile: Callable[..., Profile]) -> None:
        with pytest.raises(EngineError, match="is healthy but its first generation failed"):
            launch(profile("--status", "503"), boot_timeout=30)


class TestCase23TooSmallACache:
    """chain-flow's benchmarking notes: a KV cache for 2.5 requests, "505 tok/s at concurrency 8" with 4 running."""

    def test_a_level_that_the_cache_cannot_hold_has_no_verdict(self, tmp_path: Path) -> None:
        """A request holds 120 tokens."""
        run = write_run(tmp_path, {("a", 8): PAYS}, arm={"kv_tokens": 2.5 * 120})
        (level,) = crossover(run).results[0].levels
        assert (level.verdict, level.reason) == ("inconclusive", "the KV cache of a holds about 2 of 8 requests")

    def test_one_of_which_half_ran_has_none_either(self, tmp_path: Path) -> None:
        run = write_run(tmp_path, {("a", 8): PAYS}, cell={"running_peak": 4.0})
        (level,) = crossover(run).results[0].levels
        assert (level.verdict, "never ran more than 4 of 8 requests" in level.reason) == ("inconclusive", True)

    def test_capacity_and_running_count_are_in_the_run(self, tmp_path: Path) -> None:
        with StubServer(kv_tokens=4242, gap=0.01) as server:
            run = swept(tmp_path, server, concurrency="4", requests=16)
        (cell,) = run.cells()
        assert (run.info.arms[0].kv_tokens, (cell.running_peak or 0) >= 1) == (4242, True)


class TestCase24FirstRequestsThatCompile:
    """chain-flow's notes, sglang-omni#1789: 70 s of compilation at a new batch size."""

    @pytest.mark.parametrize("concurrency", [1, 4, 64])
    def test_three_times_as_many_requests_warm_up_at_the_measured_concurrency(self, concurrency: int) -> None:
        assert len(warmup_lengths(concurrency, 128, first_time=True)) == 3 * concurrency

    def test_they_are_left_out_of_the_numbers(self, tmp_path: Path) -> None:
        """The first 6 of 14 requests take a second longer, the measured ones do not."""
        delays = iter([1.0] * 6)

        class Slow(StubServer):
            async def _stream(self, *arguments: Any) -> None:
                await asyncio.sleep(next(delays, 0.0))
                await super()._stream(*arguments)

        with Slow() as server:
            run = swept(tmp_path, server, concurrency="2", requests=8)
        assert max(record.ttft or math.inf for record in run.requests()) < 1.0
        assert sum((record.ttft or 0.0) >= 1.0 for record in run.requests(warmup=True)) == 6
        assert len(run.requests(warmup=True)) == 14
