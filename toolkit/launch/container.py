"""A command inside a container: the `docker run` (or podman) that serves it, and the removal of what that leaves.

The client runs in the foreground as the engine would, so log, exit code and signals are the same as without a
container. The network is the host's: the engine binds the loopback interface of the machine, not of the container.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from toolkit.engines import engine
from toolkit.engines.contract import LAYERS_OF, Command, Profile
from toolkit.engines.vllm import corpus_place
from toolkit.errors import InputError
from toolkit.launch.models import is_local, resolve_model

RUNTIMES = ("docker", "podman")
_PASSED_ON = ("HF_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")  # by name: no value in an argv
_PACKAGE = Path(__file__).resolve().parent.parent
_INSIDE = "/opt/speculative-toolkit"  # where the package is put in a container whose engine runs our proposer
_GPUS = {"docker": ["--gpus", "all"], "podman": ["--device", "nvidia.com/gpu=all"]}


def find_runtime() -> str:
    """docker or podman, whichever is on PATH. Raises InputError when neither is."""
    for name in RUNTIMES:
        if shutil.which(name):
            return name
    raise InputError(
        "neither docker nor podman is on PATH. Install one, or serve with the engine in this Python: "
        "--set container=null."
    )


def container_argv(profile: Profile, what: Command, name: str, runtime: str = "docker") -> list[str]:
    """The argv that runs `what` in its container, called `name`, with the hub cache and local models mounted.

    And this package, where the engine is to run our proposer: it needs numpy and numba, which every vLLM brings.
    """
    assert what.container is not None
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    argv = [runtime, "run", "--rm", "--name", name, "--network", "host", "--ipc", "host"]
    argv += _GPUS[runtime] if profile.device == "gpu" else []
    argv += ["--volume", f"{cache}:/root/.cache/huggingface"]
    for model in (profile.target.model, profile.speculation.draft if profile.speculation else None):
        if model and (is_local(model) or model.startswith("lab/") or LAYERS_OF in model):
            path = resolve_model(model, dry=True)
            argv += ["--volume", f"{path}:{path}:ro"]
    if profile.speculation and profile.speculation.method in ("lookup", "layer_skip"):
        argv += ["--volume", f"{_PACKAGE}:{_INSIDE}/{_PACKAGE.name}:ro", "--env", f"PYTHONPATH={_INSIDE}"]
        if profile.speculation.method == "layer_skip":  # which vLLM has from our plugin, and that from the entry point
            installed = entry_points_folder()
            argv += ["--volume", f"{installed}:{_INSIDE}/{installed.name}:ro"]
        if profile.speculation.corpus:
            corpus = corpus_place(profile.speculation.corpus)
            argv += ["--volume", f"{corpus}:{corpus}:ro"]
    for variable in filter(None, (*_PASSED_ON, engine(profile.engine).key_variable)):
        argv += ["--env", variable] if variable in os.environ else []
    for variable, value in what.env.items():
        argv += ["--env", f"{variable}={value}"]
    argv += what.container.arguments
    return [*argv, "--entrypoint", what.argv[0], what.container.reference, *what.argv[1:]]


def entry_points_folder() -> Path:
    """The folder in which this installation's entry points are written. Raises InputError when it is not installed."""
    try:
        for file in distribution("speculative-toolkit").files or ():
            if file.name == "entry_points.txt":
                return Path(str(file.locate())).resolve().parent
    except PackageNotFoundError:
        pass
    raise InputError("speculative-toolkit is not installed in this Python, so a container cannot be given its plugin.")


def image_digest(runtime: str, image: str) -> str | None:
    """The content of a local image, as `repository@sha256:...`; None when the runtime does not tell."""
    command = [runtime, "image", "inspect", "--format", "{{index .RepoDigests 0}}", image]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def remove(runtime: str, name: str) -> None:
    """End and remove the container `name`, if it is still there: a killed client leaves it running."""
    command: Sequence[str] = [runtime, "rm", "--force", name]
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
