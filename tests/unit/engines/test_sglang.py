"""SGLang's dialect: argv and environment of a profile, and what it refuses."""

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest

from toolkit.analysis.ask import Ask, plan_of
from toolkit.engines import sglang, sglang_python
from toolkit.engines.contract import Command, Method, Profile, Speculation
from toolkit.engines.sglang import RUNNING_REQUESTS, SGLang
from toolkit.engines.sglang_speculation import speculative_arguments
from toolkit.errors import EngineError, InputError
from toolkit.launch.profile import load_profile

ENGINE = SGLang()
METHODS = {"draft_model", "ngram", "eagle", "eagle3", "mtp"}
LAB = "/checkout/.venv-sglang/bin/python"

BASELINE = [
    *("python3", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B-Instruct"),
    *("--served-model-name", "meta-llama/Llama-3.1-8B-Instruct", "--host", "127.0.0.1", "--port", "8000"),
    *("--dtype", "bfloat16", "--context-length", "8192", "--max-running-requests", "64"),
    *("--mem-fraction-static", "0.6", "--enable-metrics", "--decode-log-interval", "10"),
]
DRAFTS = {
    "baseline-8b": [],
    "draft-1b": [
        *("--speculative-algorithm", "STANDALONE"),
        *("--speculative-draft-model-path", "meta-llama/Llama-3.2-1B-Instruct", "--speculative-num-steps", "4"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "5"),
    ],
    "eagle3-8b": [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    ],
    "ngram-8b": [
        *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5"),
        *("--speculative-ngram-max-bfs-breadth", "1"),
    ],
}


@pytest.fixture(autouse=True)
def _lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "find_lab_python", lambda: LAB)
    monkeypatch.setattr(sglang, "launch_python", lambda: None)


def same(name: str) -> str:
    return name


def profile(name: str, *changes: str) -> Profile:
    return load_profile(name, changes, "sglang")


def command(name: str, *changes: str) -> Command:
    return ENGINE.command(profile(name, *changes), same)


def value(argv: Sequence[str], flag: str) -> str:
    assert argv.count(flag) == 1, f"{flag} in {argv}"
    return argv[argv.index(flag) + 1]


def arguments(method: str = "draft_model", **values: object) -> list[str]:
    draft = {"draft": "a/draft"} if method in ("draft_model", "eagle", "eagle3", "medusa") else {}
    speculation = Speculation.model_validate({"method": method, "num_speculative_tokens": 4, **draft, **values})
    return speculative_arguments(speculation, same)


class TestArgv:
    @pytest.mark.parametrize("name", DRAFTS)
    def test_a_shipped_profile_in_whole(self, name: str) -> None:
        assert list(command(name).argv) == [*BASELINE, *DRAFTS[name]]

    def test_the_image_is_sglangs(self) -> None:
        container = command("draft-1b").container
        assert container is not None
        assert container.reference == "lmsysorg/sglang:latest-cu130"

    def test_the_lab_runs_our_launcher_in_an_environment_of_its_own(self) -> None:
        assert command("lab-ngram").argv[:3] == (LAB, "-m", "toolkit.lab.sglang_cpu")

    def test_a_lab_profile_in_whole(self) -> None:
        assert list(command("lab-ngram").argv[3:]) == [
            *("--model-path", "lab/SmolLM2-135M-Instruct", "--served-model-name", "lab/SmolLM2-135M-Instruct"),
            *("--host", "127.0.0.1", "--port", "8000", "--dtype", "float32", "--context-length", "2048"),
            *("--max-running-requests", "64", "--enable-metrics", "--decode-log-interval", "10", "--device", "cpu"),
            *("--sampling-backend", "pytorch", "--skip-server-warmup", "--disable-cuda-graph"),
            *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5"),
            *("--speculative-ngram-max-bfs-breadth", "1", "--max-total-tokens", "40960"),
        ]

    def test_without_the_labs_environment_it_says_how_to_build_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sglang, "find_lab_python", lambda: None)
        with pytest.raises(InputError, match=r"profile lab-ngram: .*`make lab-sglang` builds it"):
            command("lab-ngram")

    def test_a_gpu_without_a_container_takes_the_python_that_has_sglang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sglang, "launch_python", lambda: "/opt/sglang/bin/python")
        assert command("draft-1b", "container=null").argv[0] == "/opt/sglang/bin/python"

    def test_the_models_are_resolved(self) -> None:
        argv = ENGINE.command(profile("draft-1b"), lambda name: f"/models/{name}").argv
        assert value(argv, "--model-path") == "/models/meta-llama/Llama-3.1-8B-Instruct"
        assert value(argv, "--speculative-draft-model-path") == "/models/meta-llama/Llama-3.2-1B-Instruct"

    @pytest.mark.parametrize(
        ("change", "flag", "said"),
        [
            ("target.revision=abc", "--revision", "abc"),
            ("target.quantization=fp8", "--quantization", "fp8"),
            ("target.served_name=mine", "--served-model-name", "mine"),
            ("limits.tensor_parallel=2", "--tp-size", "2"),
            ("limits.max_num_seqs=7", "--max-running-requests", "7"),
            ("server.port=8123", "--port", "8123"),
            ("speculation.draft_revision=def", "--speculative-draft-model-revision", "def"),
        ],
    )
    def test_a_word_of_the_profile_becomes_a_flag(self, change: str, flag: str, said: str) -> None:
        assert value(command("draft-1b", change).argv, flag) == said

    def test_eager_is_without_graphs(self) -> None:
        assert "--disable-cuda-graph" in command("draft-1b", "limits.eager=true").argv

    def test_the_memory_fraction_is_not_given_on_a_cpu(self) -> None:
        assert "--mem-fraction-static" not in command("lab-baseline", "limits.memory_fraction=0.5").argv

    @pytest.mark.parametrize("name", ["baseline-8b", "draft-1b"])
    def test_both_arms_run_as_many_requests_where_the_profile_says_nothing(self, name: str) -> None:
        """Speculation alone would lower SGLang's default to 48."""
        what = command(name, "limits.max_num_seqs=null")
        assert value(what.argv, "--max-running-requests") == str(RUNNING_REQUESTS) == "48"
        assert what.filled_in == ("limits.max_num_seqs 48, in both arms",)

    def test_nothing_is_filled_in_where_the_profile_says_it(self) -> None:
        assert command("draft-1b").filled_in == ()

    def test_an_arm_differs_from_its_baseline_in_speculation_alone(self) -> None:
        arm, base = command("draft-1b").argv, command("baseline-8b").argv
        assert arm[: len(base)] == base
        assert all(word.startswith("--speculative-") for word in arm[len(base) :: 2])

    def test_the_engines_own_arguments_come_last_as_they_are(self) -> None:
        assert command("draft-1b", "engine_args=[--page-size, '16']").argv[-2:] == ("--page-size", "16")

    def test_the_profiles_own_variables_win(self) -> None:
        assert command("lab-ngram", 'environment.SGLANG_USE_CPU_ENGINE="0"').env["SGLANG_USE_CPU_ENGINE"] == "0"


class TestSpeculation:
    @pytest.mark.parametrize(
        ("method", "algorithm"),
        [
            ("draft_model", "STANDALONE"),
            ("ngram", "NGRAM"),
            ("eagle", "EAGLE"),
            ("eagle3", "EAGLE3"),
            ("mtp", "NEXTN"),
        ],
    )
    def test_each_method_has_its_algorithm(self, method: str, algorithm: str) -> None:
        assert value(arguments(method), "--speculative-algorithm") == algorithm

    @pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "mtp"])
    @pytest.mark.parametrize("k", [1, 2, 16])
    def test_draft_tokens_hold_the_root_so_that_depths_are_those_of_vllm(self, method: str, k: int) -> None:
        """sglang#8228: steps 2 with draft tokens 2 is a draft of one token, vLLM's K = 2 is two."""
        argv = arguments(method, num_speculative_tokens=k)
        assert value(argv, "--speculative-num-steps") == str(k)
        assert value(argv, "--speculative-num-draft-tokens") == str(k + 1)
        assert value(argv, "--speculative-eagle-topk") == "1"

    @pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model"])
    def test_eagle_arguments_are_never_partial(self, method: str) -> None:
        given = {"--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"}
        assert given <= set(arguments(method))

    def test_ngram_takes_no_steps_and_no_topk(self) -> None:
        assert not {"--speculative-num-steps", "--speculative-eagle-topk"} & set(arguments("ngram"))

    @pytest.mark.parametrize("method", sorted(set(get_args(Method)) - METHODS))
    def test_a_method_that_sglang_has_not_is_refused(self, method: str) -> None:
        speculation = Speculation.model_construct(method=method, num_speculative_tokens=4)
        with pytest.raises(InputError, match=rf"^speculation\.method {method}: [^.]*SGLang[^.]*\.$"):
            speculative_arguments(speculation, same)

    @pytest.mark.parametrize("word", ["lookup_min", "lookup_max"])
    def test_a_bound_of_the_match_is_refused_with_what_there_is(self, word: str) -> None:
        with pytest.raises(InputError, match=rf"speculation\.{word}: .*ngram_max_trie_depth"):
            arguments("ngram", **{word: 3})

    def test_a_schedule_is_refused_with_the_way_that_sglang_has(self) -> None:
        with pytest.raises(InputError, match=r"speculation\.schedule: .*adaptive_config"):
            arguments(schedule=[[1, 8, 4], [9, 64, 0]])

    @pytest.mark.parametrize(
        ("options", "argv"),
        [
            ({"ngram_max_trie_depth": 12}, ["--speculative-ngram-max-trie-depth", "12"]),
            ({"ngram-capacity": 1000}, ["--speculative-ngram-capacity", "1000"]),
            ({"speculative_ngram_match_type": "PROB"}, ["--speculative-ngram-match-type", "PROB"]),
            ({"ngram_external_sam_budget": 0}, ["--speculative-ngram-external-sam-budget", "0"]),
        ],
    )
    def test_an_option_is_sglangs_own_word(self, options: dict[str, object], argv: list[str]) -> None:
        assert " ".join(argv) in " ".join(arguments("ngram", options=options))

    def test_a_switch_has_no_value(self) -> None:
        assert arguments("eagle", options={"use_rejection_sampling": True})[-1] == (
            "--speculative-use-rejection-sampling"
        )

    def test_a_breadth_of_ones_own_takes_the_place_of_ours(self) -> None:
        argv = arguments("ngram", options={"ngram_max_bfs_breadth": 4})
        assert value(argv, "--speculative-ngram-max-bfs-breadth") == "4"

    def test_mtp_may_name_an_assistant_that_is_a_model_of_its_own(self) -> None:
        assert value(arguments("mtp", options={"draft_model_path": "a/b"}), "--speculative-draft-model-path") == "a/b"

    @pytest.mark.parametrize(
        ("key", "word"),
        [
            ("algorithm", "method"),
            ("algo", "method"),
            ("draft_model_path", "draft"),
            ("draft_model", "draft"),
            ("num_steps", "num_speculative_tokens"),
            ("num-draft-tokens", "num_speculative_tokens"),
            ("eagle_topk", "num_speculative_tokens"),
        ],
    )
    def test_an_option_that_repeats_a_word_of_ours_is_refused(self, key: str, word: str) -> None:
        with pytest.raises(InputError, match=rf"speculation\.options\.{key} repeats speculation\.{word}"):
            arguments(options={key: "3"})

    @pytest.mark.parametrize("given", [False, "", [1], {"a": 1}])
    def test_an_option_that_is_no_argument_is_refused(self, given: object) -> None:
        with pytest.raises(InputError, match=r"speculation\.options\.adaptive: a word, a number, or true"):
            arguments(options={"adaptive": given})

    @pytest.mark.parametrize("key", ["", "--x", "Ngram", "a b", "9"])
    def test_an_option_that_is_no_name_is_refused(self, key: str) -> None:
        with pytest.raises(InputError, match="write SGLang's own name"):
            arguments(options={key: 1})

    def test_an_option_in_two_spellings_is_refused(self) -> None:
        with pytest.raises(InputError, match="--speculative-ngram-capacity stands here twice"):
            arguments("ngram", options={"ngram_capacity": 1, "ngram-capacity": 2})

    def test_an_option_of_ngram_is_refused_for_another_method(self) -> None:
        with pytest.raises(InputError, match=r"ngram_\.\.\. options mean nothing to method draft_model"):
            arguments("draft_model", options={"ngram_capacity": 1})


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "change", "said"),
        [
            ("draft-1b", "engine_args=[--speculative-num-draft-tokens, '2']", "belongs under speculation"),
            ("baseline-8b", "engine_args=[--speculative-algorithm=EAGLE]", "belongs under speculation"),
            ("draft-1b", "engine_args=[--speculative-algo, EAGLE]", "belongs under speculation"),
            ("baseline-8b", "limits.kv_cache_gib=2", "--max-total-tokens"),
            ("baseline-8b", "limits.max_num_batched_tokens=2048", "--chunked-prefill-size"),
            ("lab-baseline", "container.image=lmsysorg/sglang:latest", "make lab-sglang"),
        ],
    )
    def test_a_word_without_a_counterpart_is_refused_with_what_to_write(
        self, name: str, change: str, said: str
    ) -> None:
        with pytest.raises(InputError, match=said):
            command(name, change)

    def test_there_is_no_variable_for_the_servers_key(self) -> None:
        """SGLang reads it from its argv or its configuration file alone, so no argv of ours holds one."""
        assert ENGINE.key_variable is None

    def test_a_key_in_its_arguments_is_refused(self) -> None:
        with pytest.raises(InputError, match="--api-key would show a secret"):
            command("draft-1b", "engine_args=[--api-key, hunter2]")


class TestScheduling:
    @pytest.mark.parametrize(
        ("name", "change", "mode"),
        [
            ("draft-1b", "limits.eager=false", "asynchronous"),
            ("baseline-8b", "limits.eager=false", "asynchronous"),
            ("baseline-8b", "engine_args=[--disable-overlap-schedule]", "synchronous"),
            ("lab-ngram", "limits.eager=true", "synchronous"),
            ("lab-baseline", "limits.eager=true", "asynchronous"),
        ],
    )
    def test_by_sglangs_rules(self, name: str, change: str, mode: str) -> None:
        assert ENGINE.scheduling(profile(name, change)) == mode

    def test_a_baseline_has_no_schedule(self) -> None:
        assert ENGINE.schedule_refusal(profile("baseline-8b")) == "it does not speculate"

    def test_a_schedule_of_ours_is_not_sglangs(self) -> None:
        assert "adaptive_config" in (ENGINE.schedule_refusal(profile("draft-1b")) or "")


class TestTemperature:
    """On a CPU SGLang verifies greedily: an arm that speculates would not answer as its baseline does."""

    @pytest.mark.parametrize("change", ["engine=sglang", "engine=vllm"])
    def test_greedy_answers_are_compared_everywhere(self, change: str) -> None:
        assert plan_of(Ask(profiles=["lab-ngram"], baseline="lab-baseline", changes=[change]), 1, []).arms

    def test_a_temperature_is_refused_on_a_cpu(self) -> None:
        ask = Ask(profiles=["lab-ngram"], baseline="lab-baseline", changes=["engine=sglang"], temperature=0.7)
        with pytest.raises(InputError, match=r"--temperature 0\.7: lab-ngram speculates, and on a cpu sglang"):
            plan_of(ask, 1, [])

    def test_it_is_not_on_a_gpu(self) -> None:
        changes = ["engine=sglang"]
        assert plan_of(Ask(profiles=["draft-1b"], baseline="baseline-8b", changes=changes, temperature=0.7), 1, []).arms


class TestWhichPython:
    @pytest.fixture
    def environment(self, tmp_path: Path) -> Path:
        """A virtual environment that holds SGLang 0.5.23 by its metadata. Gives its python."""
        info = tmp_path / "lib" / "python3.11" / "site-packages" / "sglang-0.5.23.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").touch()
        return tmp_path / "bin" / "python"

    def test_the_one_that_is_named(self, monkeypatch: pytest.MonkeyPatch, environment: Path) -> None:
        monkeypatch.setenv("SGLANG_PYTHON", str(environment))
        assert sglang_python.launch_python() == str(environment)

    def test_one_that_is_named_and_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SGLANG_PYTHON", "/no/such/python")
        with pytest.raises(InputError, match="SGLANG_PYTHON=/no/such/python: there is no such file"):
            sglang_python.launch_python()

    def test_its_version_is_read_without_running_it(self, environment: Path) -> None:
        assert sglang_python.version_in(str(environment)) == "0.5.23"

    def test_an_environment_without_it_has_no_version(self, tmp_path: Path) -> None:
        assert sglang_python.version_in(str(tmp_path / "bin" / "python")) is None

    def test_no_python_has_no_version(self) -> None:
        assert sglang_python.version_in(None) is None

    def test_this_one_does_not_pass_for_it(self) -> None:
        """`toolkit.engines.sglang` must not be taken for SGLang."""
        with pytest.raises(metadata.PackageNotFoundError):
            metadata.version("sglang")
        assert sglang_python.launch_python() is None

    def test_without_any_the_arguments_cannot_be_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sglang, "find_lab_python", lambda: None)
        with pytest.raises(EngineError, match=r"SGLang is in no Python known here.*make lab-sglang.*SGLANG_PYTHON"):
            ENGINE.check(profile("draft-1b"), same)
