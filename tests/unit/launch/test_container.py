"""Serving in a container: what `docker run` is asked, and that the container goes when its server does.

No container runtime is on the machines that run these tests. The stand-in for `docker` starts the container's process
in a session of its own, as a daemon does, so that ending the client alone leaves it running.
"""

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolkit.engines import ENGINES
from toolkit.engines.contract import Command, Profile
from toolkit.engines.vllm import VLLM
from toolkit.errors import InputError
from toolkit.launch import server as server_module
from toolkit.launch.container import container_argv, find_runtime
from toolkit.launch.profile import load_profile
from toolkit.launch.server import command, free_port, launch

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
DOCKER = f"""#!{sys.executable}
import os, pathlib, signal, subprocess, sys
here = pathlib.Path(__file__).parent
verb, arguments = sys.argv[1], sys.argv[2:]
if verb == "run":
    name = arguments[arguments.index("--name") + 1]
    at = arguments.index("--entrypoint")
    container = subprocess.Popen([arguments[at + 1], *arguments[at + 3:]], start_new_session=True)
    (here / name).write_text(str(container.pid))
    sys.exit(container.wait())
if verb == "rm":
    os.kill(int((here / arguments[-1]).read_text()), signal.SIGKILL)
"""


class ContainedEngine(VLLM):
    """vLLM's adapter, whose command is our script."""

    name = "contained"

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        argv = (sys.executable, str(FAKE_ENGINE), "--port", str(profile.server.port))
        return Command(argv, {}, profile.container)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, with a `docker` in it; it also holds the pid of each container."""
    script = tmp_path / "bin" / "docker"
    script.parent.mkdir()
    script.write_text(DOCKER)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    return script.parent


@pytest.fixture
def contained(docker: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setattr(server_module, "POLL", 0.05)
    monkeypatch.setitem(ENGINES, "contained", ContainedEngine())
    values: dict[str, Any] = {"name": "boxed", "engine": "contained", "target": {"model": "org/model"}}
    return Profile.model_validate({**values, "server": {"port": free_port()}, "container": {"image": "an/image:1"}})


def argv_of(*changes: str, profile: str = "draft-1b") -> list[str]:
    return contained_argv(load_profile(profile, changes))


def contained_argv(profile: Profile) -> list[str]:
    return container_argv(profile, command(profile), "a-name")


def pairs(argv: list[str], flag: str) -> list[str]:
    return [value for name, value in pairwise(argv) if name == flag]


def test_the_engine_is_the_entrypoint_and_its_arguments_follow_the_image() -> None:
    argv = argv_of()
    image = argv.index("vllm/vllm-openai:v0.32.0")
    assert argv[image - 2 : image] == ["--entrypoint", "python3"]
    assert argv[image + 1 :] == list(command(load_profile("draft-1b")).argv[1:])


def test_a_digest_pins_the_image() -> None:
    digest = "sha256:" + "ab" * 32
    assert f"vllm/vllm-openai:v0.32.0@{digest}" in argv_of(f"container.digest={digest}")


def test_no_value_of_a_secret_stands_in_the_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    argv = argv_of()
    assert "HF_TOKEN" in pairs(argv, "--env")
    assert not any("very_secret" in part for part in argv)


def test_the_profiles_environment_is_set() -> None:
    assert "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas" in pairs(argv_of(), "--env")


def test_a_local_model_is_mounted_where_the_engine_looks_for_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert f"{tmp_path}:{tmp_path}:ro" in pairs(argv_of(f"target.model={tmp_path}"), "--volume")


def test_an_engine_that_runs_our_proposer_is_given_this_package() -> None:
    argv = argv_of(profile="lookup-8b")
    (mount,) = [volume for volume in pairs(argv, "--volume") if volume.endswith("/toolkit:ro")]
    outside, inside, _ = mount.split(":")
    assert (Path(outside) / "proposers" / "prompt_lookup.py").is_file()
    assert f"PYTHONPATH={Path(inside).parent}" in pairs(argv, "--env")


def test_and_the_corpus_where_it_is_told_to_look(tmp_path: Path) -> None:
    assert f"{tmp_path}:{tmp_path}:ro" in pairs(
        argv_of(f"speculation.corpus={tmp_path}", profile="lookup-8b"), "--volume"
    )


class TestLayerSkip:
    @pytest.fixture
    def mounts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return pairs(argv_of(profile="layer-skip-8b"), "--volume")

    def test_its_draft_directory_is_mounted_where_the_engine_looks_for_it(self, mounts: list[str]) -> None:
        argv = command(load_profile("layer-skip-8b")).argv
        draft = json.loads(argv[argv.index("--speculative-config") + 1])["model"]
        assert (Path(draft) / "config.json").is_file()
        assert f"{draft}:{draft}:ro" in mounts

    def test_its_plugin_is_found_by_vllm_there(self, mounts: list[str]) -> None:
        """vLLM looks for entry points, which a folder beside the package tells."""
        (mount,) = [volume for volume in mounts if volume.endswith(".dist-info:ro")]
        outside, inside, _ = mount.split(":")
        assert "vllm.general_plugins" in (Path(outside) / "entry_points.txt").read_text()
        assert f"{Path(inside).parent}/toolkit:ro" in "".join(mounts)


def test_another_engine_is_not() -> None:
    assert [entry for entry in pairs(argv_of(), "--env") if entry.startswith("PYTHONPATH")] == []


def test_a_cpu_profile_asks_for_no_gpu() -> None:
    assert "--gpus" not in argv_of("device=cpu")


def test_without_a_runtime_it_is_refused_with_the_way_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="container=null"):
        find_runtime()


def test_closing_the_server_ends_the_container_too(docker: Path, contained: Profile) -> None:
    with launch(contained):
        pid = int(next(path for path in docker.iterdir() if path.name.startswith("toolkit-")).read_text())
        assert psutil.pid_exists(pid)
    _, alive = psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    assert alive == [], os.listdir(docker)
