"""What is asked: what is refused before anything is sent, what is filled in, and what may change without a new run."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stub_server import StubServer

from toolkit.analysis.arms import Arm, can_stay_resident, describe, key_part
from toolkit.analysis.ask import Ask, arms_of, plan_of
from toolkit.analysis.prepare import _info, sweep
from toolkit.analysis.run import Run, resume_key
from toolkit.errors import EngineError, InputError
from toolkit.launch.profile import load_profile

MODEL = Path(__file__).parents[2] / "data" / "models" / "Qwen--Qwen3-0.6B"


class Quiet:
    def stage(self, text: str) -> None: ...

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


def measured(stub: StubServer, folder: Path, **fields: Any) -> Run:
    """A sweep of one arm without a baseline, as small as it gets."""
    defaults = {"workload": "chat", "concurrency": "1", "requests": 4, "max_tokens": 4, "runs": folder / "runs"}
    return Run(sweep(Ask(**{**defaults, "base_url": stub.url, **fields}), Quiet()))


URL = {"base_url": "http://127.0.0.1:1/v1"}
LAB = {"profiles": ["lab-ngram"]}


class TestConflicts:
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({}, "nothing to measure: give --profile NAME"),
            ({"baseline_url": "http://h/v1"}, "nothing to measure"),
            ({**LAB, **URL}, "give --profile .* or --base-url .*, not both"),
            ({**LAB, "baseline_url": "http://h/v1"}, "--baseline-url goes with --base-url"),
            ({**LAB, "model": "m"}, "--model goes with --base-url"),
            ({**LAB, "api_key_env": "KEY"}, "--api-key-env goes with --base-url"),
            ({**URL, "baseline": "lab-baseline"}, "--baseline goes with --profile"),
            ({**URL, "changes": ["limits.eager=true"]}, "--set changes a profile"),
            ({**URL, "baseline_url": "http://127.0.0.1:1/v1/"}, "the same server as --base-url"),
            ({"profiles": ["lab-ngram", "lab-ngram"]}, "the profile lab-ngram is named twice"),
            ({"profiles": ["lab-ngram", "lab-draft"], "baseline": "lab-ngram"}, "lab-ngram is named twice"),
            ({"profiles": ["lab-ngrm"]}, "there is no profile 'lab-ngrm'. Did you mean lab-ngram"),
            ({"base_url": "http://[::1/v1"}, "not a URL like"),
            ({"base_url": "localhost:8000"}, "not a URL like"),
        ],
    )
    def test_what_does_not_go_together(self, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            sweep(Ask(**fields, runs=tmp_path / "runs"), Quiet())


class TestNumbers:
    @pytest.mark.parametrize("text", ["", "four", "1,,4", "1;4", "1.5", "0", "-1,4", "1,4,1", "1,-4"])
    def test_a_concurrency_that_is_none(self, text: str) -> None:
        with pytest.raises(InputError, match=f"--concurrency {text}: "):
            sweep(Ask(**URL, concurrency=text), Quiet())

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"rounds": 0}, "--rounds 0: from 1 to"),
            ({"requests": 0}, "--requests 0: from 1 to"),
            ({"max_tokens": -1}, "--max-tokens -1: from 1 to"),
            ({"temperature": -0.1}, "--temperature -0.1: 0 or more"),
            ({"budget": 0.0}, "--budget 0.0: above 0"),
            ({"timeout": -1.0}, "--timeout -1.0: above 0"),
            ({"temperature": float("nan")}, "--temperature nan: 0 or more"),
            ({"budget": float("nan")}, "--budget nan: above 0"),
            ({"budget": float("inf")}, "--budget inf: above 0"),
            ({"timeout": float("nan")}, "--timeout nan: above 0"),
        ],
    )
    def test_a_number_out_of_range(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            sweep(Ask(**URL, **fields), Quiet())

    def test_an_unknown_workload(self) -> None:
        with pytest.raises(InputError, match="no workload named 'copycode'"):
            sweep(Ask(**URL, workload="copycode"), Quiet())

    def test_nothing_is_written_for_a_wrong_ask(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            sweep(Ask(**URL, concurrency="0", runs=tmp_path / "runs"), Quiet())
        with pytest.raises(EngineError):
            sweep(Ask(**URL, runs=tmp_path / "runs"), Quiet())
        assert not (tmp_path / "runs").exists()


class TestDefaults:
    def test_what_is_filled_in_is_written_down(self, stub: StubServer, tmp_path: Path) -> None:
        run = measured(stub, tmp_path, workload=None, requests=None, max_tokens=None)
        assert run.info.defaults == [
            f"seed {run.info.workload.seed}",
            "requests 4 x concurrency, at least 8",
            "workload copy-code",
            "max_tokens 128",
            "temperature 0.0",
            "rounds 1",
            "timeout 300.0",
        ]

    def test_what_was_asked_for_is_no_default(self, stub: StubServer, tmp_path: Path) -> None:
        assert measured(stub, tmp_path, temperature=0.0, rounds=1, seed=7, timeout=60.0).info.defaults == []

    @pytest.mark.parametrize(("level", "requests"), [("1", 8), ("3", 12)])
    def test_four_requests_a_slot_and_eight_at_least(
        self, stub: StubServer, tmp_path: Path, level: str, requests: int
    ) -> None:
        run = measured(stub, tmp_path, concurrency=level, requests=None)
        assert (run.info.requests, len(run.requests())) == ({int(level): requests}, requests)

    def test_a_level_may_have_blanks_around_it(self, stub: StubServer, tmp_path: Path) -> None:
        assert measured(stub, tmp_path, concurrency=" 1, 2").info.levels == [1, 2]

    def test_six_rounds_with_a_baseline(self, stub: StubServer, tmp_path: Path) -> None:
        with StubServer() as base:
            assert measured(stub, tmp_path, baseline_url=base.url).info.rounds == 6


class TestInfo:
    def test_what_was_said_of_the_run_is_kept(self, stub: StubServer, tmp_path: Path) -> None:
        info = measured(stub, tmp_path, target="my box", change="K=4", precision="bf16").info
        assert (info.target, info.change, info.arms[0].precision) == ("my box", "K=4", "bf16")

    @pytest.mark.parametrize(("lines", "reuse"), [(6, True), (7, False)])
    def test_reuse_is_noted_when_the_prompts_do_not_last(
        self, stub: StubServer, tmp_path: Path, lines: int, reuse: bool
    ) -> None:
        path = tmp_path / "mine.jsonl"  # 7 are needed: 3 to warm up and 4 to measure
        path.write_text("".join(f'"prompt {number}"\n' for number in range(lines)))
        assert measured(stub, tmp_path, workload=str(path)).info.workload.reuse is reuse

    def test_a_key_is_written_nowhere(self, stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_KEY", "sk-very-secret-0123456789")
        stub.key = "sk-very-secret-0123456789"
        run = measured(stub, tmp_path, api_key_env="MY_KEY")
        assert not any(b"sk-very" in path.read_bytes() for path in run.folder.iterdir())

    def test_two_servers_behind_one_address_are_told_apart(self, tmp_path: Path) -> None:
        with StubServer(prefixes=("/spec", "/plain")) as server:
            root = server.url.removesuffix("/v1")
            run = measured(server, tmp_path, base_url=f"{root}/spec/v1", baseline_url=f"{root}/plain/v1", rounds=1)
        assert {record.served_by for record in run.requests()} == {f"{root}/spec/v1", f"{root}/plain/v1"}
        assert {path.split("/")[1] for path in server.paths if path.endswith("completions")} == {"spec", "plain"}


class TestFolder:
    def test_a_new_folder_is_named_by_time_and_server(self, stub: StubServer, tmp_path: Path) -> None:
        name = measured(stub, tmp_path).folder.name
        assert (name[:2], name.split("-", 2)[2]) == ("20", f"127.0.0.1-{stub.port}")

    def test_an_unfinished_run_is_found_by_the_same_ask(self, stub: StubServer, tmp_path: Path) -> None:
        stub.fault = lambda number, body: "500 broken" if number > 7 else None
        with pytest.raises(EngineError):
            measured(stub, tmp_path, rounds=2)
        stub.fault = lambda number, body: None
        run = measured(stub, tmp_path, rounds=2)
        assert (list((tmp_path / "runs").iterdir()), len(run.cells())) == ([run.folder], 2)

    @pytest.mark.parametrize("fields", [{"max_tokens": 5}, {"seed": 1}, {"concurrency": "2"}, {"requests": 5}])
    def test_another_ask_does_not_go_on_with_it(self, stub: StubServer, tmp_path: Path, fields: dict[str, Any]) -> None:
        run = measured(stub, tmp_path, run=tmp_path / "runs" / "first")
        before = run.info.key
        assert measured(stub, tmp_path, **fields).info.key != before

    @pytest.mark.parametrize("fields", [{"rounds": 2}, {"timeout": 7.0}, {"target": "x"}, {"change": "y"}])
    def test_what_changes_no_number_changes_no_key(
        self, stub: StubServer, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        run = measured(stub, tmp_path, run=tmp_path / "first")
        assert measured(stub, tmp_path, run=tmp_path / "first", **fields).info.key == run.info.key


def key_of(name: str, *changes: str) -> str:
    arm = Arm(name, profile=load_profile(name, changes))
    return resume_key(key_part(arm, describe(arm, None)))


class TestKeyOfAProfile:
    @pytest.fixture
    def copies(self, tmp_path: Path) -> list[Path]:
        return [Path(shutil.copytree(MODEL, tmp_path / name)) for name in ("here", "there")]

    def test_the_port_is_no_part_of_it(self) -> None:
        assert key_of("ngram-8b", "server.port=9000") == key_of("ngram-8b", "server.port=9001")

    def test_the_path_of_a_model_is_no_part_of_it(self, copies: list[Path]) -> None:
        one, other = (key_of("ngram-8b", f"target.model={copy}") for copy in copies)
        assert one == other

    def test_the_content_of_a_model_is_part_of_it(self, copies: list[Path]) -> None:
        before = key_of("ngram-8b", f"target.model={copies[0]}")
        (copies[0] / "config.json").write_text("{}")
        assert key_of("ngram-8b", f"target.model={copies[0]}") != before

    def test_the_path_of_python_is_no_part_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = key_of("ngram-8b", "container=null")
        monkeypatch.setattr("sys.executable", "/another/bin/python")
        assert key_of("ngram-8b", "container=null") == before

    @pytest.mark.parametrize(
        "change",
        [
            "speculation.num_speculative_tokens=7",
            "limits.max_num_seqs=3",
            "environment.VLLM_X='1'",
            "target.dtype=float16",
            "engine_args=[--no-async-scheduling]",
        ],
    )
    def test_what_changes_a_number_is_part_of_it(self, change: str) -> None:
        # Case 19.
        assert key_of("ngram-8b", change) != key_of("ngram-8b")


def test_profiles_are_kept_as_they_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: ngram-8b\n")
    ask = Ask(profiles=[str(path)], baseline="baseline-8b")
    info = _info(ask, plan_of(ask, 0, []), 0, [], Quiet())
    assert (info.arms[0].name, info.profiles, info.baseline_profile) == ("mine", [str(path)], "baseline-8b")


def test_a_profile_against_itself_gets_two_names() -> None:
    arms, baseline = arms_of(Ask(profiles=["ngram-8b"], baseline="ngram-8b"))
    assert baseline is not None
    assert (arms[0].name, baseline.name, arms[0].profile == baseline.profile) == ("ngram-8b", "ngram-8b-again", True)


def test_arms_that_stand_in_no_file_are_taken_as_they_are() -> None:
    arm, plain = Arm("a", profile=load_profile("ngram-8b")), Arm("b", profile=load_profile("baseline-8b"))
    assert arms_of(Ask(arms=[arm], opponent=plain)) == ([arm], plain)


def test_the_schedule_of_an_arm_is_kept() -> None:
    profile = load_profile("ngram-8b", ["speculation.schedule=[[1, 8, 4], [9, 64, 0]]"])
    assert describe(Arm("a", profile=profile), None).facts == {"schedule": "[[1, 8, 4], [9, 64, 0]]"}


class TestResident:
    @pytest.mark.parametrize(
        ("engines", "kv_gib", "free_gib", "fit"), [(5, 1, 20.5, True), (5, 1, 19.5, False), (5, 2, 22, False)]
    )
    def test_engines_on_a_cpu_need_their_cache_and_three_gib(
        self, monkeypatch: pytest.MonkeyPatch, engines: int, kv_gib: int, free_gib: float, fit: bool
    ) -> None:
        free = SimpleNamespace(available=free_gib * 2**30)
        monkeypatch.setattr("toolkit.analysis.arms.psutil.virtual_memory", lambda: free)
        profile = load_profile("lab-ngram", [f"limits.kv_cache_gib={kv_gib}"])
        assert can_stay_resident([Arm(str(number), profile=profile) for number in range(engines)]) is fit


class TestPlaces:
    def test_the_current_folder_is_no_run(self, stub: StubServer, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="name a directory of its own"):
            measured(stub, tmp_path, run=Path())

    def test_a_file_is_no_run(self, stub: StubServer, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(InputError, match="is a file"):
            measured(stub, tmp_path, run=tmp_path / "file")

    def test_an_empty_url_is_refused(self) -> None:
        with pytest.raises(InputError, match="not a URL"):
            sweep(Ask(base_url="", workload="chat", concurrency="1"), Quiet())
