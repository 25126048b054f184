"""The Run directory: what a kill, a full disk, a second writer or a foreign file does to it."""

import gzip
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.records import CellKey, CellRecord, RequestRecord
from toolkit.analysis.run import ArmInfo, Recorder, Run, RunInfo, WorkloadInfo, find_unfinished, resume_key
from toolkit.errors import InputError

KEY = CellKey(arm="a", side="arm", workload="w", concurrency=1, round=1)


def info(**parts: Any) -> RunInfo:
    key_parts = {"workload": "d", "levels": [1], **parts}
    return RunInfo(
        toolkit_version="0.1.0",
        created="2026-01-02T03:04:05+00:00",
        arms=[ArmInfo(name="a", engine="vllm", model="m")],
        baseline=None,
        workload=WorkloadInfo(name="w", digest="d", seed=0, size=None),
        levels=[1],
        requests={1: 4},
        rounds=1,
        sampling={},
        hardware={},
        environment={},
        key_parts=key_parts,
        key=resume_key(key_parts),
    )


def request(prompt: int, attempt: int = 1, number: int = 1, warmup: bool = False) -> RequestRecord:
    return RequestRecord(
        cell=KEY.model_copy(update={"round": number}),
        attempt=attempt,
        served_by="a",
        warmup=warmup,
        category="é",
        prompt=prompt,
        prompt_hash="h",
        sent=0.0,
        ended=1.0,
    )


def cell(attempt: int = 1, number: int = 1, **fields: Any) -> CellRecord:
    return CellRecord(
        cell=KEY.model_copy(update={"round": number}),
        attempt=attempt,
        served_by="a",
        order=0,
        finished_at="t",
        seconds=1.0,
        requests=4,
        failed=0,
        client_cpu=0.1,
        prompts_digest="p",
        **fields,
    )


def recorded(folder: Path, *records: RequestRecord | CellRecord) -> Run:
    with Recorder(folder, info()) as recorder:
        for record in records:
            recorder.cell(record) if isinstance(record, CellRecord) else recorder.request(record)
    return Run(folder)


def prompts(run: Run, warmup: bool = False) -> list[int]:
    return [record.prompt for record in run.requests(warmup)]


parts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


class TestResumeKey:
    @given(st.dictionaries(st.text(max_size=3), parts, max_size=5), st.randoms(use_true_random=False))
    def test_the_order_of_keys_does_not_matter(self, value: dict[str, Any], random: Any) -> None:
        def shuffled(one: Any) -> Any:
            if isinstance(one, list):
                return [shuffled(item) for item in one]
            if not isinstance(one, dict):
                return one
            items = [(key, shuffled(item)) for key, item in one.items()]
            random.shuffle(items)
            return dict(items)

        assert resume_key(shuffled(value)) == resume_key(value)

    @given(st.dictionaries(st.text(max_size=3), parts, max_size=4), st.text(max_size=3), st.integers())
    def test_any_changed_value_changes_it(self, value: dict[str, Any], key: str, number: int) -> None:
        assert resume_key({**value, key: [number]}) != resume_key({**value, key: [number + 1]})

    def test_it_survives_the_way_through_run_json(self, tmp_path: Path) -> None:
        run = recorded(tmp_path)
        assert resume_key(run.info.key_parts) == run.info.key


class TestCounting:
    def test_only_requests_of_finished_cells_count(self, tmp_path: Path) -> None:
        run = recorded(tmp_path, request(0), cell(), request(1, number=2))
        assert prompts(run) == [0]

    def test_an_interrupted_attempt_does_not_count(self, tmp_path: Path) -> None:
        run = recorded(tmp_path, request(0), request(1, attempt=2), cell(attempt=2))
        assert prompts(run) == [1]

    def test_a_later_attempt_after_a_finished_one_does_not_count(self, tmp_path: Path) -> None:
        run = recorded(tmp_path, request(0), cell(), request(1, attempt=2), cell(attempt=2))
        assert (prompts(run), [c.attempt for c in run.cells()]) == ([0], [1])

    def test_the_warm_up_counts_when_asked_for(self, tmp_path: Path) -> None:
        run = recorded(tmp_path, request(0, warmup=True), request(1), cell())
        assert (prompts(run), prompts(run, warmup=True)) == ([1], [0, 1])

    def test_the_highest_attempt_is_told_finished_or_not(self, tmp_path: Path) -> None:
        run = recorded(tmp_path, request(0), request(1, attempt=3), request(2, number=2), cell(number=2))
        assert {key.round: attempt for key, attempt in run.attempts().items()} == {1: 3, 2: 1}

    def test_an_attempt_without_a_finished_request_is_known(self, tmp_path: Path) -> None:
        with Recorder(tmp_path, info()) as recorder:
            recorder.begin(KEY, 2)
        assert Run(tmp_path).attempts() == {KEY: 2}

    def test_an_empty_folder_of_a_run_has_nothing(self, tmp_path: Path) -> None:
        run = recorded(tmp_path)
        assert (run.cells(), run.requests(), run.attempts()) == ([], [], {})


class TestTornLines:
    """A kill cuts the last line anywhere. `keep` whole records, then a part of one more."""

    @pytest.fixture(params=["requests", "cells"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def cut_at_every_byte(self, folder: Path, kind: str) -> Iterator[int]:
        recorded(folder, request(0), request(1), cell(number=1), cell(number=2), request(2, number=2))
        path = folder / f"{kind}.jsonl"
        whole = path.read_bytes()
        last = whole.rindex(b"\n", 0, -1) + 1
        for end in range(last, len(whole)):
            path.write_bytes(whole[:end])
            yield end

    def test_reading_leaves_the_torn_line_out(self, tmp_path: Path, kind: str) -> None:
        seen = {
            (len(run.cells()), len(run.requests()))
            for _ in self.cut_at_every_byte(tmp_path, kind)
            if (run := Run(tmp_path))
        }
        assert seen == ({(2, 2)} if kind == "requests" else {(1, 2)})

    def test_appending_goes_on_behind_it(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"{kind}.jsonl"
        counts = set()
        for _ in self.cut_at_every_byte(tmp_path, kind):
            before = path.read_bytes()
            run = recorded(tmp_path, request(7, number=1), cell(number=9))
            counts.add((len(run.cells()), len(run.requests()), path.read_bytes().startswith(before)))
            for name in ("requests", "cells"):
                (tmp_path / f"{name}.jsonl").unlink()
            recorded(tmp_path, request(0), request(1), cell(number=1), cell(number=2), request(2, number=2))
        assert counts == ({(3, 3, True)} if kind == "requests" else {(2, 3, True)})

    def test_a_line_torn_twice_is_left_out(self, tmp_path: Path) -> None:
        recorded(tmp_path, request(0), cell())
        path = tmp_path / "requests.jsonl"
        path.write_bytes(path.read_bytes() + b'{"schema":1,"ce\x00to')
        assert prompts(recorded(tmp_path, request(1))) == [0, 1]

    def test_a_torn_cell_does_not_count_its_requests(self, tmp_path: Path) -> None:
        recorded(tmp_path, request(0), cell())
        path = tmp_path / "cells.jsonl"
        path.write_bytes(path.read_bytes()[:-1])
        assert prompts(Run(tmp_path)) == []


class TestRefusals:
    def test_another_measurement_is_refused_naming_what_differs(self, tmp_path: Path) -> None:
        recorded(tmp_path)
        with pytest.raises(InputError, match=r"holds another measurement: levels, sampling differ") as caught:
            Recorder(tmp_path, info(levels=[2], sampling={})).__enter__()
        assert "Choose another --run" in str(caught.value)

    def test_a_part_that_only_the_old_run_has_is_named(self, tmp_path: Path) -> None:
        with Recorder(tmp_path, info(budget=60)):
            pass
        with pytest.raises(InputError, match="holds another measurement: budget differ"):
            Recorder(tmp_path, info()).__enter__()

    def test_a_refused_run_is_left_as_it_is(self, tmp_path: Path) -> None:
        recorded(tmp_path)
        before = (tmp_path / "run.json").read_bytes()
        with pytest.raises(InputError):
            Recorder(tmp_path, info(levels=[2])).__enter__()
        assert (tmp_path / "run.json").read_bytes() == before

    def test_a_second_writer_is_refused(self, tmp_path: Path) -> None:
        with Recorder(tmp_path, info()), pytest.raises(InputError, match="another sweep writes there now"):
            Recorder(tmp_path, info()).__enter__()

    def test_a_second_process_is_refused(self, tmp_path: Path) -> None:
        code = f"""
            import fcntl, sys, time
            lock = open({str(tmp_path / ".lock")!r}, "w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            print("locked", flush=True)
            time.sleep(60)
        """
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(InputError, match="another sweep writes there now"):
                Recorder(tmp_path, info()).__enter__()
            other.kill()

    def test_a_writer_that_was_killed_holds_nothing(self, tmp_path: Path) -> None:
        code = f"""
            import fcntl, os, signal
            lock = open({str(tmp_path / ".lock")!r}, "w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
        assert prompts(recorded(tmp_path, request(0), cell())) == [0]

    def test_the_folder_is_free_after_a_refusal(self, tmp_path: Path) -> None:
        recorded(tmp_path)
        with pytest.raises(InputError):
            Recorder(tmp_path, info(levels=[2])).__enter__()
        assert recorded(tmp_path).cells() == []

    def test_a_resumed_run_keeps_its_first_date(self, tmp_path: Path) -> None:
        recorded(tmp_path)
        with Recorder(tmp_path, info().model_copy(update={"created": "2027-01-01T00:00:00+00:00"})):
            pass
        assert Run(tmp_path).info.created == "2026-01-02T03:04:05+00:00"


class TestUnreadable:
    def test_no_run_json(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="not a Run directory, it holds no run"):
            Run(tmp_path)

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"schema": 1}'])
    def test_a_run_json_that_is_none(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "run.json").write_bytes(text)
        with pytest.raises(InputError, match=r"run\.json: (not a run\.json of this version|cannot be read): "):
            Run(tmp_path)

    def test_the_field_at_fault_is_named(self, tmp_path: Path) -> None:
        recorded(tmp_path)
        path = tmp_path / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "levels": ["many"]}))
        with pytest.raises(InputError, match=r"run\.json: not a run\.json of this version: levels\.0: "):
            Run(tmp_path)

    def test_a_run_json_that_is_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").mkdir()
        with pytest.raises(InputError, match=r"run\.json: cannot be read"):
            Run(tmp_path)

    @pytest.mark.parametrize("kind", ["requests", "cells"])
    @pytest.mark.parametrize("line", [b"", b"{", b"[]", b"\xff\xfe", b"<<<<<<< HEAD", b'{"schema": 1}'])
    def test_a_malformed_record_is_named_by_file_and_line(self, tmp_path: Path, kind: str, line: bytes) -> None:
        recorded(tmp_path, request(0), cell())
        with (tmp_path / f"{kind}.jsonl").open("ab") as handle:
            handle.write(line + b"\n")
        with pytest.raises(InputError, match=rf"{kind}\.jsonl:2: not a record of this version: "):
            Run(tmp_path).requests()

    def test_a_field_of_a_later_version_is_named(self, tmp_path: Path) -> None:
        recorded(tmp_path, request(0), cell())
        with (tmp_path / "requests.jsonl").open("a") as handle:
            handle.write(json.dumps({**json.loads(request(1).model_dump_json(by_alias=True)), "later": 1}) + "\n")
        with pytest.raises(InputError, match=r"requests\.jsonl:2: not a record of this version: later "):
            Run(tmp_path).requests()

    def test_a_record_file_that_is_a_folder(self, tmp_path: Path) -> None:
        recorded(tmp_path)
        (tmp_path / "cells.jsonl").unlink()
        (tmp_path / "cells.jsonl").mkdir()
        with pytest.raises(InputError, match=r"cells\.jsonl: cannot be read: Is a directory"):
            Run(tmp_path).cells()


class TestPacked:
    def pack(self, folder: Path, spoil: Callable[[bytes], bytes] = lambda data: data) -> None:
        for path in folder.glob("*.jsonl"):
            path.with_name(path.name + ".gz").write_bytes(spoil(gzip.compress(path.read_bytes())))
            path.unlink()

    def test_packed_records_are_read(self, tmp_path: Path) -> None:
        recorded(tmp_path, request(0), request(1), cell())
        self.pack(tmp_path)
        assert prompts(Run(tmp_path)) == [0, 1]

    @pytest.mark.parametrize(
        "spoil",
        [lambda data: data[:-9], lambda data: b"\x00" + data, lambda data: data[:12] + b"\xff" * 40 + data[52:]],
        ids=["cut", "not gzip", "spoilt inside"],
    )
    def test_a_spoilt_file_is_named(self, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
        recorded(tmp_path, request(0), cell())
        self.pack(tmp_path, spoil)
        with pytest.raises(InputError, match=r"cells\.jsonl\.gz: cannot be read: "):
            Run(tmp_path).cells()

    def test_a_packed_run_is_not_extended(self, tmp_path: Path) -> None:
        # An empty cells.jsonl beside the packed one would hide all that was measured.
        recorded(tmp_path, request(0), cell())
        self.pack(tmp_path)
        with pytest.raises(InputError, match=r"\.jsonl\.gz is packed: gunzip it"):
            Recorder(tmp_path, info()).__enter__()
        assert prompts(Run(tmp_path)) == [0]


FULL = """
    import resource, signal, sys
    sys.path[:0] = [{tests!r}]
    from pathlib import Path
    from test_run import cell, info, request
    from toolkit.analysis.run import Recorder
    from toolkit.errors import InputError

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    written = 0
    try:
        with Recorder(Path({folder!r}), info()) as recorder:
            recorder.request(request(0))
            recorder.cell(cell())
            for written in range(1, 1000):
                recorder.request(request(written))
    except InputError as error:
        print(written, error)
        sys.exit(2)
"""


class TestFullDisk:
    def fill(self, folder: Path, limit: int) -> tuple[int, int, str]:
        code = textwrap.dedent(FULL.format(tests=str(Path(__file__).parent), folder=str(folder), limit=limit))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        written, _, said = done.stdout.partition(" ")
        assert done.stderr == ""
        return done.returncode, int(written), said

    def test_a_disk_that_fills_up_keeps_what_was_written(self, tmp_path: Path) -> None:
        code, written, said = self.fill(tmp_path, 4000)  # more than run.json, less than all requests
        assert (code, "cannot be written: " in said, prompts(Run(tmp_path))) == (2, True, list(range(written)))

    def test_the_same_run_goes_on_after_that(self, tmp_path: Path) -> None:
        _, written, _ = self.fill(tmp_path, 4000)
        assert prompts(recorded(tmp_path, request(5000)))[written:] == [5000]

    def test_a_disk_without_room_for_run_json(self, tmp_path: Path) -> None:
        code, _, said = self.fill(tmp_path, 100)
        assert (code, "cannot be written: File too large" in said) == (2, True)

    def test_a_full_device_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "requests.jsonl").symlink_to("/dev/full")
        with Recorder(tmp_path, info()) as recorder, pytest.raises(InputError, match="no space is left on the disk"):
            recorder.request(request(0))

    def test_a_cell_whose_requests_are_not_on_disk_is_not_written(self, tmp_path: Path) -> None:
        (tmp_path / "requests.jsonl").symlink_to("/dev/full")  # which refuses fsync too
        with Recorder(tmp_path, info()) as recorder, pytest.raises(InputError, match="cannot be written"):
            recorder.cell(cell())
        assert (tmp_path / "cells.jsonl").read_bytes() == b""

    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("")
        with pytest.raises(InputError, match="run: cannot be written: File exists"):
            Recorder(tmp_path / "run", info()).__enter__()


class TestFindUnfinished:
    def make(self, root: Path, name: str, *records: RequestRecord | CellRecord) -> Path:
        recorded(root / name, *records)
        return root / name

    def find(self, root: Path, key: str | None = None) -> Path | None:
        return find_unfinished(root, key or info().key, lambda run: bool(run.cells()))

    def test_the_newest_unfinished_one_of_this_key(self, tmp_path: Path) -> None:
        self.make(tmp_path, "20260101-a")
        newest = self.make(tmp_path, "20260102-a")
        self.make(tmp_path, "20260103-a", cell())
        assert self.find(tmp_path) == newest

    def test_another_key_is_not_taken(self, tmp_path: Path) -> None:
        self.make(tmp_path, "20260101-a")
        assert self.find(tmp_path, "another") is None

    def test_a_broken_one_is_passed_over(self, tmp_path: Path) -> None:
        good = self.make(tmp_path, "20260101-a")
        (self.make(tmp_path, "20260102-a") / "run.json").write_text("{")
        (self.make(tmp_path, "20260103-a") / "cells.jsonl").write_text("{\n")
        assert self.find(tmp_path) == good

    def test_no_folder_at_all(self, tmp_path: Path) -> None:
        assert self.find(tmp_path / "missing") is None


class TestNumbers:
    @pytest.mark.parametrize("wrong", [('"window_tokens":1000.0', '"window_tokens":NaN'), ('"schema":1', '"schema":9')])
    def test_a_line_that_holds_no_number_or_another_version_is_named(
        self, make_run: Callable[..., Run], tmp_path: Path, wrong: tuple[str, str]
    ) -> None:
        run = make_run(tmp_path / "run", {("a", 1): [(100.0, 100.0)]})
        path = run.folder / "cells.jsonl"
        path.write_text(path.read_text().replace(*wrong))
        with pytest.raises(InputError, match=r"cells\.jsonl"):
            Run(run.folder).cells()
