"""vLLM's dialect: argv and environment of a profile, acceptance per request, target passes, boot failures."""

import json
import random
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.engines import vllm
from toolkit.engines.contract import Command, SpecCounts, Speculation
from toolkit.engines.vllm import VLLM, computes_bfloat16, speculative_config
from toolkit.errors import InputError
from toolkit.launch.profile import load_profile

STREAM = Path(__file__).parents[2] / "data" / "vllm" / "stream.jsonl"
ENGINE = VLLM()


def same(name: str) -> str:
    return name


def command(profile: str, *changes: str) -> Command:
    return ENGINE.command(load_profile(profile, changes), same)


def value(argv: Sequence[str], flag: str) -> str:
    assert argv.count(flag) == 1, f"{flag} in {argv}"
    return argv[argv.index(flag) + 1]


def config_of(profile: str) -> dict[str, Any]:
    return dict(json.loads(value(command(profile).argv, "--speculative-config")))


def config(**values: Any) -> dict[str, Any]:
    return speculative_config(Speculation.model_validate(values), same)


class TestArgv:
    def test_the_lab_runs_the_server_module_in_this_python(self) -> None:
        assert command("lab-ngram").argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")

    def test_a_container_brings_its_own_python(self) -> None:
        assert command("draft-1b").argv[0] == "python3"

    def test_the_container_travels_with_the_command(self) -> None:
        container = command("draft-1b").container
        assert container is not None
        assert container.reference == "vllm/vllm-openai:v0.32.0"

    @pytest.mark.parametrize("profile", ["lab-ngram", "lab-baseline", "draft-1b", "eagle3-8b", "baseline-8b"])
    def test_it_listens_on_the_loopback_interface(self, profile: str) -> None:
        assert value(command(profile).argv, "--host") == "127.0.0.1"

    def test_the_port_is_the_profiles(self) -> None:
        assert value(command("lab-ngram", "server.port=8123").argv, "--port") == "8123"

    def test_the_target_is_resolved(self) -> None:
        argv = ENGINE.command(load_profile("lab-ngram"), lambda name: f"/models/{name}").argv
        assert value(argv, "--model") == "/models/lab/SmolLM2-135M-Instruct"

    def test_the_model_is_served_under_its_name_not_its_folder(self) -> None:
        argv = ENGINE.command(load_profile("lab-ngram"), lambda name: f"/models/{name}").argv
        assert value(argv, "--served-model-name") == "lab/SmolLM2-135M-Instruct"

    def test_a_served_name_of_its_own_wins(self) -> None:
        assert value(command("lab-ngram", "target.served_name=mine").argv, "--served-model-name") == "mine"

    def test_limits_of_the_lab_become_flags(self) -> None:
        argv = command("lab-ngram", "target.dtype=bfloat16").argv
        assert (value(argv, "--max-model-len"), value(argv, "--max-num-seqs"), value(argv, "--dtype")) == (
            "2048",
            "64",
            "bfloat16",
        )

    @pytest.mark.parametrize(
        ("line", "native"),
        [
            ("flags\t\t: fpu avx2 fma", False),
            ("flags\t\t: fpu avx512f avx512_bf16", True),
            ("flags\t\t: fpu amx_bf16 amx_tile", True),
            ("Features\t: fp asimd bf16 i8mm", True),
            ("Features\t: fp asimd", False),
            ("BogoMIPS\t: 100", True),
        ],
    )
    def test_a_cpu_says_whether_it_computes_bfloat16(self, tmp_path: Path, line: str, native: bool) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
        assert computes_bfloat16(tmp_path / "cpuinfo") is native

    def test_a_cpu_that_tells_nothing_is_trusted(self, tmp_path: Path) -> None:
        assert computes_bfloat16(tmp_path / "absent")

    @pytest.mark.parametrize(("native", "dtype"), [(True, "auto"), (False, "float32")])
    def test_auto_is_float32_where_bfloat16_is_emulated(
        self, monkeypatch: pytest.MonkeyPatch, native: bool, dtype: str
    ) -> None:
        monkeypatch.setattr("toolkit.engines.vllm.computes_bfloat16", lambda: native)
        assert value(command("lab-ngram").argv, "--dtype") == dtype

    def test_auto_is_left_to_the_engine_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("toolkit.engines.vllm.computes_bfloat16", lambda: False)
        assert value(command("draft-1b", "target.dtype=auto").argv, "--dtype") == "auto"

    def test_eager_is_a_flag_where_it_is_asked_for(self) -> None:
        assert [("--enforce-eager" in command(name).argv) for name in ("lab-ngram", "draft-1b")] == [True, False]

    def test_the_memory_fraction_is_given_on_a_gpu(self) -> None:
        assert value(command("draft-1b").argv, "--gpu-memory-utilization") == "0.6"

    def test_the_memory_fraction_is_not_given_on_a_cpu(self) -> None:
        assert "--gpu-memory-utilization" not in command("lab-ngram", "limits.memory_fraction=0.5").argv

    def test_one_device_needs_no_tensor_parallel_flag(self) -> None:
        assert "--tensor-parallel-size" not in command("draft-1b").argv

    def test_two_devices_do(self) -> None:
        assert value(command("draft-1b", "limits.tensor_parallel=2").argv, "--tensor-parallel-size") == "2"

    @pytest.mark.parametrize("profile", ["lab-ngram", "draft-1b", "eagle3-8b"])
    def test_a_speculative_arm_reports_acceptance_per_request(self, profile: str) -> None:
        assert value(command(profile).argv, "--per-request-spec-decode-metrics") == "detailed"

    @pytest.mark.parametrize("profile", ["lab-baseline", "baseline-8b"])
    def test_a_baseline_is_not_asked_to(self, profile: str) -> None:
        assert "--per-request-spec-decode-metrics" not in command(profile).argv

    def test_nor_is_an_arm_whose_engine_is_too_old(self) -> None:
        assert "--per-request-spec-decode-metrics" not in command("draft-1b", "per_request_metrics=false").argv

    @pytest.mark.parametrize("profile", ["lab-baseline", "baseline-8b"])
    def test_a_baseline_has_no_speculative_config(self, profile: str) -> None:
        assert "--speculative-config" not in command(profile).argv

    def test_the_engines_own_arguments_come_last_as_they_are(self) -> None:
        assert command("lab-ngram", "engine_args=[--seed, '7']").argv[-2:] == ("--seed", "7")

    def test_an_arm_differs_from_its_baseline_in_speculation_alone(self) -> None:
        arm, base = command("draft-1b").argv, command("baseline-8b").argv
        assert arm[: len(base)] == base
        assert [word for word in arm[len(base) :] if word.startswith("--")] == [
            "--speculative-config",
            "--per-request-spec-decode-metrics",
        ]


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _no_preload(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LD_PRELOAD", raising=False)

    def test_the_cpu_gets_its_kv_cache_size(self) -> None:
        assert command("lab-ngram").env["VLLM_CPU_KVCACHE_SPACE"] == "2"

    def test_a_gpu_does_not(self) -> None:
        assert "VLLM_CPU_KVCACHE_SPACE" not in command("draft-1b", "limits.kv_cache_gib=2").env

    def test_the_profiles_own_variables_win(self) -> None:
        assert command("lab-ngram", 'environment.VLLM_CPU_KVCACHE_SPACE="9"').env["VLLM_CPU_KVCACHE_SPACE"] == "9"

    def test_no_usage_is_reported(self) -> None:
        env = command("draft-1b").env
        assert (env["VLLM_NO_USAGE_STATS"], env["DO_NOT_TRACK"]) == ("1", "1")

    def test_libraries_that_exist_are_preloaded_on_a_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm, "preload_libraries", lambda: ["/lib/a.so", "/lib/b.so"])
        assert command("lab-ngram").env["LD_PRELOAD"] == "/lib/a.so:/lib/b.so"

    def test_what_was_preloaded_before_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm, "preload_libraries", lambda: ["/lib/a.so"])
        monkeypatch.setenv("LD_PRELOAD", "/lib/mine.so")
        assert command("lab-ngram").env["LD_PRELOAD"] == "/lib/a.so:/lib/mine.so"

    def test_nothing_is_preloaded_where_no_library_exists(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm, "preload_libraries", list)
        assert "LD_PRELOAD" not in command("lab-ngram").env

    @pytest.mark.parametrize("changes", [["device=gpu"], ["container={image: i}"]])
    def test_nothing_is_preloaded_on_a_gpu_or_in_a_container(
        self, changes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vllm, "preload_libraries", lambda: ["/lib/a.so"])
        assert "LD_PRELOAD" not in command("lab-ngram", *changes).env

    def test_the_openmp_of_this_environment_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library = tmp_path / "lib" / "libiomp5.so"
        library.parent.mkdir()
        library.touch()
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        assert vllm.preload_libraries()[0] == str(library)

    def test_every_library_named_exists(self) -> None:
        assert all(Path(library).is_file() for library in vllm.preload_libraries())


class TestSpeculativeConfig:
    def test_of_a_draft_model(self) -> None:
        assert config_of("draft-1b") == {
            "method": "draft_model",
            "model": "meta-llama/Llama-3.2-1B-Instruct",
            "num_speculative_tokens": 4,
        }

    def test_of_an_eagle3_head(self) -> None:
        assert config_of("eagle3-8b") == {
            "method": "eagle3",
            "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            "num_speculative_tokens": 3,
        }

    def test_of_ngram_lookup(self) -> None:
        assert config_of("lab-ngram") == {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 5,
        }

    @pytest.mark.parametrize(("asked", "least"), [(None, 2), (5, 2), (1, 1)])
    def test_the_shortest_lookup_never_exceeds_the_longest(self, asked: int | None, least: int) -> None:
        made = config(method="ngram", num_speculative_tokens=4, lookup_max=asked)
        assert (made["prompt_lookup_min"], made["prompt_lookup_max"]) == (least, asked or 5)

    def test_the_draft_is_resolved(self) -> None:
        speculation = Speculation(method="draft_model", num_speculative_tokens=2, draft="lab/draft")
        assert speculative_config(speculation, lambda name: f"/m/{name}")["model"] == "/m/lab/draft"

    def test_the_drafts_revision(self) -> None:
        assert (
            config(method="eagle", num_speculative_tokens=2, draft="a/b", draft_revision="main")["revision"] == "main"
        )

    def test_a_schedule_becomes_vllms_table(self) -> None:
        made = config(method="ngram", num_speculative_tokens=5, schedule=[[1, 16, 5], [17, 64, 0]])
        assert json.loads(json.dumps(made["num_speculative_tokens_per_batch_size"])) == [[1, 16, 5], [17, 64, 0]]

    def test_options_are_passed_on_as_they_are(self) -> None:
        made = config(method="ngram", num_speculative_tokens=2, options={"draft_tensor_parallel_size": 1})
        assert made["draft_tensor_parallel_size"] == 1

    @pytest.mark.parametrize(
        ("option", "word"), [("prompt_lookup_max", "lookup_max"), ("num_speculative_tokens", "num_speculative_tokens")]
    )
    def test_an_option_that_repeats_our_word_is_refused_naming_the_word(self, option: str, word: str) -> None:
        with pytest.raises(InputError, match=rf"options\.{option} repeats speculation\.{word}"):
            config(method="ngram", num_speculative_tokens=2, options={option: 3})


class TestScheduling:
    @pytest.mark.parametrize(
        ("profile", "changes", "mode"),
        [
            ("baseline-8b", [], "asynchronous"),
            ("draft-1b", [], "asynchronous"),
            ("eagle3-8b", [], "asynchronous"),
            ("ngram-8b", [], "synchronous"),
            ("lookup-8b", [], "synchronous"),
            ("lab-baseline", [], "synchronous"),
            ("baseline-8b", ["engine_args=[--no-async-scheduling]"], "synchronous"),
        ],
    )
    def test_by_method_device_and_flag(self, profile: str, changes: list[str], mode: str) -> None:
        assert ENGINE.scheduling(load_profile(profile, changes)) == mode


class TestLookup:
    """Our own proposer, through vLLM's seam for a class of one's own."""

    def test_its_class_is_what_vllm_is_asked_for(self) -> None:
        assert config_of("lab-lookup") == {
            "method": "custom_class",
            "model": "toolkit.proposers.PromptLookupProposer",
            "num_speculative_tokens": 16,
        }

    def test_the_class_is_there(self) -> None:
        module, _, name = vllm.LOOKUP_CLASS.rpartition(".")
        assert callable(getattr(import_module(module), name).propose)

    def test_a_schedule_goes_with_it(self) -> None:
        made = config(method="lookup", num_speculative_tokens=8, schedule=[[1, 4, 8], [5, 64, 2]])
        assert made["num_speculative_tokens_per_batch_size"] == [(1, 4, 8), (5, 64, 2)]

    def test_options_travel_where_vllm_carries_them_to_its_workers(self) -> None:
        argv = command("lab-lookup", "speculation.memory_tokens=0", "speculation.probe_budget=0.02").argv
        assert json.loads(value(argv, "--additional-config")) == {"toolkit": {"memory_tokens": 0, "probe_budget": 0.02}}

    def test_without_options_nothing_travels(self) -> None:
        assert "--additional-config" not in command("lab-lookup").argv

    def test_a_corpus_travels_by_its_absolute_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "code").mkdir()
        monkeypatch.chdir(tmp_path)
        argv = command("lab-lookup", "speculation.corpus=code").argv
        assert json.loads(value(argv, "--additional-config")) == {"toolkit": {"corpus": str(tmp_path / "code")}}

    @pytest.mark.parametrize("corpus", ["nowhere", "~nobody-here/code"])
    def test_a_corpus_that_is_not_there_is_refused(self, corpus: str) -> None:
        with pytest.raises(InputError, match=rf"speculation\.corpus {corpus}: there is no such"):
            command("lab-lookup", f"speculation.corpus={corpus}")

    def test_a_second_additional_config_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"--additional-config is where speculation\.memory_tokens goes"):
            command("lab-lookup", "speculation.memory_tokens=0", "engine_args=['--additional-config={}']")

    def test_one_of_the_users_own_is_let_through(self) -> None:
        assert command("lab-lookup", "engine_args=['--additional-config={}']").argv[-1] == "--additional-config={}"


class TestSchedule:
    @pytest.mark.parametrize("profile", ["lab-ngram", "lab-lookup", "lab-draft", "draft-1b", "eagle3-8b", "ngram-8b"])
    def test_the_methods_that_know_k_follow_one(self, profile: str) -> None:
        assert ENGINE.schedule_refusal(load_profile(profile)) is None

    @pytest.mark.parametrize(
        ("method", "said"),
        [
            ("medusa", "asserts that K is num_speculative_tokens"),
            ("suffix", "asserts that K is num_speculative_tokens"),
        ],
    )
    def test_the_methods_that_are_not_told_k_cannot(self, method: str, said: str) -> None:
        profile = load_profile("lab-ngram")
        assert profile.speculation is not None
        other = profile.speculation.model_copy(update={"method": method})
        assert said in (ENGINE.schedule_refusal(profile.model_copy(update={"speculation": other})) or "")

    def test_a_profile_without_speculation_cannot(self) -> None:
        assert ENGINE.schedule_refusal(load_profile("lab-baseline")) == "it does not speculate"

    @pytest.mark.parametrize(
        ("option", "said"),
        [("parallel_drafting=true", "parallel drafting"), ("rejection_sample_method=synthetic", "synthetic")],
    )
    def test_an_option_that_forbids_it(self, option: str, said: str) -> None:
        profile = load_profile("draft-1b", [f"speculation.options.{option}"])
        assert said in (ENGINE.schedule_refusal(profile) or "")

    @pytest.mark.parametrize(
        ("arguments", "drops"),
        [
            ("--data-parallel-size,'2'", True),
            ("--data-parallel-size=4", True),
            ("--data_parallel_size,'2'", True),
            ("-dp,'2'", True),
            ("-dp=2", True),
            ("-dp,'1'", False),
            ("-dp,'2',-dp,'1'", False),
            ("--data-parallel-backend,ray", False),
        ],
    )
    def test_data_parallelism_drops_it(self, arguments: str, drops: bool) -> None:
        refusal = ENGINE.schedule_refusal(load_profile("ngram-8b", [f"engine_args=[{arguments}]"]))
        assert (refusal is not None and "data parallelism" in refusal) is drops


class TestStream:
    @pytest.fixture
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in STREAM.read_text(encoding="utf-8").splitlines()]

    def test_tokens_of_the_chunks_sum_to_usage(self, chunks: list[dict[str, Any]]) -> None:
        assert (
            sum(ENGINE.chunk_tokens(chunk) or 0 for chunk in chunks) == chunks[-1]["usage"]["completion_tokens"] == 30
        )

    def test_a_chunk_without_ids_does_not_say_how_many_tokens_it_holds(self) -> None:
        assert ENGINE.chunk_tokens({"choices": [{"delta": {"content": "two words"}}]}) is None

    def test_the_usage_chunk_holds_no_token(self, chunks: list[dict[str, Any]]) -> None:
        assert ENGINE.chunk_tokens(chunks[-1]) == 0

    def test_the_ids_are_asked_for(self) -> None:
        assert ENGINE.request_fields() == {"return_token_ids": True}

    def test_the_last_chunk_tells_the_counts(self, chunks: list[dict[str, Any]]) -> None:
        assert ENGINE.spec_counts(chunks[-1]) == SpecCounts(
            steps=7,
            drafted=28,
            accepted=18,
            num_speculative_tokens=4,
            per_step_drafted=[4] * 7,
            per_step_accepted=[1, 4, 4, 1, 0, 4, 4],
            own={"mean_acceptance_length": 3.57, "draft_acceptance_rate": 0.643},
        )

    def test_the_ids_of_prompt_and_answer(self, chunks: list[dict[str, Any]]) -> None:
        answers = [ids for chunk in chunks if (ids := ENGINE.answer_ids(chunk)) is not None]
        assert sum(map(len, answers)) == chunks[-1]["usage"]["completion_tokens"]
        assert ENGINE.prompt_ids({"prompt_token_ids": [5, 6], "choices": []}) == [5, 6]
        assert ENGINE.prompt_ids(chunks[-1]) is None

    def test_the_other_chunks_tell_none(self, chunks: list[dict[str, Any]]) -> None:
        assert [ENGINE.spec_counts(chunk) for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)

    def test_the_passes_of_the_stream(self, chunks: list[dict[str, Any]]) -> None:
        sizes = [size for chunk in chunks if (size := ENGINE.chunk_tokens(chunk))]
        counts = ENGINE.spec_counts(chunks[-1])
        assert counts is not None
        assert ENGINE.passes(30, sizes, counts) == (12, 12)

    def test_the_summary_level_tells_sums_only(self, chunks: list[dict[str, Any]]) -> None:
        spec = chunks[-1]["metrics"]["speculative_decoding"]
        del spec["per_step_accepted"], spec["per_step_drafted"]
        assert ENGINE.spec_counts(chunks[-1]) == SpecCounts(
            7, 28, 18, 4, own={"mean_acceptance_length": 3.57, "draft_acceptance_rate": 0.643}
        )

    @pytest.mark.parametrize("metrics", [None, {}, {"speculative_decoding": None}])
    def test_a_response_without_the_flag_is_unavailable_not_zero(self, metrics: Any) -> None:
        assert ENGINE.spec_counts({"choices": [], "metrics": metrics}) is None

    def test_sglangs_field_names_are_unavailable_not_zero(self) -> None:
        """vime#84: a vLLM response read with SGLang's names, and the other way round."""
        sglang = {"spec_verify_ct": 7, "spec_num_correct_drafts": 18, "spec_num_proposed_drafts": 28}
        assert ENGINE.spec_counts({"choices": [], "metrics": {"speculative_decoding": sglang}}) is None


# One request: drafts kept per pass after the prefill (None: a pass without a draft), and how many of the last pass's
# tokens max_tokens cuts off.
Passes = list[int | None]


@st.composite
def requests(draw: st.DrawFn, longest: int = 25) -> tuple[Passes, int]:
    k = draw(st.integers(1, 6))
    passes = draw(st.lists(st.one_of(st.none(), st.integers(0, k)), max_size=longest))
    return passes, draw(st.integers(0, (passes[-1] or 0) if passes else 0))


def streamed(passes: Passes, cut: int) -> tuple[list[int], SpecCounts]:
    """Chunk sizes and counts of a request, as vLLM makes them: the last step's acceptances before it was trimmed."""
    sizes = [1, *((kept or 0) + 1 for kept in passes)]
    sizes[-1] -= cut
    kept = [one for one in passes if one is not None]
    return sizes, SpecCounts(len(kept), 6 * len(kept), sum(kept), 6, [6] * len(kept), kept or None)


def merged(sizes: list[int], joins: Sequence[bool]) -> list[int]:
    """The chunks when the server sends some together with the one before."""
    out = sizes[:1]
    for size, join in zip(sizes[1:], joins, strict=False):
        if join:
            out[-1] += size
        else:
            out.append(size)
    return out + sizes[1 + len(joins) :]


def could_be_unmerged(sizes: Sequence[int], kept: Sequence[int]) -> bool:
    """Whether some request streams exactly these chunks, one per pass. Tries every place of the drafted steps."""
    last = len(sizes) - 1
    for places in combinations(range(1, len(sizes)), len(kept)):
        step_at = dict(zip(places, kept, strict=True))
        if sizes[0] == 1 and all(
            size == step_at.get(i, 0) + 1 or (i == last and i in step_at and size <= step_at[i] + 1)
            for i, size in enumerate(sizes)
        ):
            return True
    return False


class TestPasses:
    @given(requests())
    def test_exact_when_each_chunk_is_one_pass(self, request_: tuple[Passes, int]) -> None:
        passes, cut = request_
        sizes, counts = streamed(passes, cut)
        truth = 1 + len(passes)
        assert ENGINE.passes(sum(sizes), sizes, counts) == (truth, truth)

    @given(requests(), st.lists(st.booleans(), max_size=25))
    def test_bounds_that_are_not_exact_hold_the_truth_when_chunks_are_merged(
        self, request_: tuple[Passes, int], joins: list[bool]
    ) -> None:
        passes, cut = request_
        sizes, counts = streamed(passes, cut)
        bounds = ENGINE.passes(sum(sizes), merged(sizes, joins), counts)
        assert bounds is not None
        low, high = bounds
        assert low == high or low <= 1 + len(passes) <= high

    @given(requests(longest=7), st.lists(st.booleans(), max_size=7))
    def test_a_false_exact_value_needs_a_merge_that_no_one_could_see(
        self, request_: tuple[Passes, int], joins: list[bool]
    ) -> None:
        passes, cut = request_
        sizes, counts = streamed(passes, cut)
        shown = merged(sizes, joins)
        bounds = ENGINE.passes(sum(sizes), shown, counts)
        assert bounds is not None
        if not bounds[0] <= 1 + len(passes) <= bounds[1]:
            assert could_be_unmerged(shown, counts.per_step_accepted or [])

    def test_such_merges_are_rare(self) -> None:
        rng, wrong = random.Random(5), 0
        for _ in range(2000):
            passes: Passes = [None if rng.random() < 0.5 else min(4, int(rng.expovariate(0.5))) for _ in range(30)]
            sizes, counts = streamed(passes, rng.randint(0, passes[-1] or 0))
            bounds = ENGINE.passes(sum(sizes), merged(sizes, [rng.random() < 0.1 for _ in range(30)]), counts)
            assert bounds is not None
            wrong += not bounds[0] <= 31 <= bounds[1]
        assert wrong <= 20

    def test_a_chunk_that_joins_the_prefill_is_seen(self) -> None:
        assert ENGINE.passes(4, [3, 1], SpecCounts(1, 4, 1, 4, [4], [1])) == (3, 4)

    def test_a_drafted_step_that_kept_nothing_needs_a_chunk_of_its_own(self) -> None:
        assert ENGINE.passes(5, [1, 1, 3], SpecCounts(3, 12, 4, 4, [4] * 3, [0, 0, 4])) == (4, 5)

    def test_a_stop_that_trims_the_last_step_counts_as_one_pass(self) -> None:
        assert ENGINE.passes(8, [1, 5, 2], SpecCounts(2, 8, 8, 4, [4, 4], [4, 4])) == (3, 3)

    def test_a_last_step_trimmed_to_one_token(self) -> None:
        assert ENGINE.passes(7, [1, 5, 1], SpecCounts(2, 8, 8, 4, [4, 4], [4, 4])) == (3, 3)

    @given(requests())
    def test_chunks_that_do_not_sum_to_usage_are_not_trusted(self, request_: tuple[Passes, int]) -> None:
        passes, cut = request_
        sizes, counts = streamed(passes, cut)
        bounds = ENGINE.passes(sum(sizes), sizes[1:], counts)
        assert bounds is not None
        assert bounds[0] <= 1 + len(passes) <= bounds[1]

    @given(requests())
    def test_bounds_hold_the_truth_without_chunk_sizes(self, request_: tuple[Passes, int]) -> None:
        passes, cut = request_
        sizes, counts = streamed(passes, cut)
        bounds = ENGINE.passes(sum(sizes), [], counts)
        assert bounds is not None
        assert bounds[0] <= 1 + len(passes) <= bounds[1]

    @given(requests())
    def test_bounds_hold_the_truth_at_the_summary_level(self, request_: tuple[Passes, int]) -> None:
        passes, cut = request_
        sizes, counts = streamed(passes, cut)
        summary = SpecCounts(counts.steps, counts.drafted, counts.accepted, counts.num_speculative_tokens)
        bounds = ENGINE.passes(sum(sizes), sizes, summary)
        assert bounds is not None
        assert bounds[0] <= 1 + len(passes) <= bounds[1]

    @pytest.mark.parametrize("per_step", [[0, 2], None])
    def test_counts_that_do_not_fit_the_tokens_bound_nothing(self, per_step: list[int] | None) -> None:
        """Two drafted steps and a prefill yield three tokens at least."""
        assert ENGINE.passes(2, [1, 1], SpecCounts(2, 8, 2, 2, None, per_step)) is None

    def test_without_an_accepted_draft_every_token_is_a_pass(self) -> None:
        assert ENGINE.passes(10, [], SpecCounts(3, 12, 0, 4)) == (10, 10)


GATED = """(APIServer pid=71) huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-68)
Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/resolve/main/config.json.
Access to model meta-llama/Llama-3.1-8B-Instruct is restricted and you are not in the authorized list."""
UNKNOWN = """huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-68)
Repository Not Found for url: https://huggingface.co/api/models/meta-lama/Llama/revision/main.
Please make sure you specified the correct `repo_id` and `repo_type`.
If you are trying to access a private or gated repo, make sure you are authenticated."""
FAILURES = {
    GATED: "gated: accept its licence",
    "OSError: You are trying to access a gated repo.\nMake sure to have access to it": "gated: accept",
    UNKNOWN: "could not be fetched",
    "api_server.py: error: unrecognized arguments: --per-request-spec-decode-metrics detailed": "0.28 or older",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n  Value error, Target and "
    "draft model should have the same vocabulary size. Target model vocab_size=152064.": "same family",
    "ValueError: layer skip cannot serve this: pipeline parallelism spreads the target's layers": "speculation.layers",
    "OSError: [Errno 98] Address already in use": "--set server.port=N",
    "ERROR:    [Errno 98] error while attempting to bind on address ('::', 8000): address already in use": "port",
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (4.05 GiB).": "does not hold one full request",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": "kv_cache_gib",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has 23 GiB": "not enough memory",
    "ValueError: Free memory on device cuda:0 (10.2/121.7 GiB) on startup is less than desired": "not enough memory",
    "OSError: [Errno 12] Cannot allocate memory": "not enough memory",
    "terminate called after throwing an instance of 'std::bad_alloc'": "not enough memory",
    "RuntimeError: Found no NVIDIA driver on your system.": "NVIDIA driver",
    "RuntimeError: No CUDA GPUs are available": "NVIDIA driver",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory": "NVIDIA driver",
    "RuntimeError: Failed to infer device type, please set the environment variable": "NVIDIA driver",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).": "NVIDIA driver",
    "OSError: foo/bar is not a local folder and is not a valid model identifier listed on 'https://hf.co'": "fetched",
    "OSError: a/b does not appear to have a file named config.json.": "could not be fetched",
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files": "could not be fetched",
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder": "fetched",
    "ValueError: Can't load the configuration of 'a/b'.": "could not be fetched",
    "RuntimeError: Failed to instantiate custom proposer class 'toolkit.proposers.PromptLookupProposer': "
    "additional_config.toolkit.memory_token: unknown, known are max_match, memory_tokens.": "under speculation",
    "toolkit.errors.InputError: corpus /data/code: holds no text.": "under speculation",
    "ImportError: Cannot import module 'toolkit.proposers' for custom proposer 'toolkit.proposers.PromptLookupProposer'"
    ": No module named 'toolkit'": "install speculative-toolkit there",
    "ModuleNotFoundError: No module named 'numba'": "every vLLM installs it",
    "/usr/bin/python: No module named vllm.entrypoints": "pip install 'speculative-toolkit[vllm]'",
    "ModuleNotFoundError: No module named 'vllm'": "pip install 'speculative-toolkit[vllm]'",
}


class TestKnownFailures:
    @pytest.mark.parametrize("log", FAILURES)
    def test_the_log_line_finds_its_advice(self, log: str) -> None:
        found = next((one for one in ENGINE.known_failures if re.search(one.pattern, log)), None)
        assert found is not None
        assert FAILURES[log] in found.advice

    def test_every_pattern_has_a_log_line_here(self) -> None:
        unseen = [
            one.pattern for one in ENGINE.known_failures if not any(re.search(one.pattern, log) for log in FAILURES)
        ]
        assert unseen == []

    def test_a_normal_boot_finds_none(self) -> None:
        boot = "INFO 11-29 20:01:02 [api_server.py:120] Starting vLLM server on http://127.0.0.1:8000\nStarted process"
        assert not any(re.search(one.pattern, boot) for one in ENGINE.known_failures)
