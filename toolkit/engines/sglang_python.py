"""The Python that has SGLang. vLLM and SGLang pin different versions of the same packages, so it is seldom this one."""

import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

from toolkit.errors import InputError

VARIABLE = "SGLANG_PYTHON"
LAB_MISSING = (
    "SGLang on a CPU runs in an environment of its own, which is not here: `make lab-sglang` builds it (.venv-sglang)."
)


def launch_python() -> str | None:
    """The python that SGLANG_PYTHON names, else this one where it has SGLang, else None.

    Raises InputError when SGLANG_PYTHON names no file.
    """
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_file():
            raise InputError(f"{VARIABLE}={named}: there is no such file; give the path of a python that has SGLang.")
        return named
    return sys.executable if importlib.util.find_spec("sglang") is not None else None


def find_lab_python() -> str | None:
    """The python of .venv-sglang in this checkout, where `make lab-sglang` puts SGLang for a CPU; None without it."""
    python = Path(__file__).resolve().parents[2] / ".venv-sglang" / "bin" / "python"
    return str(python) if python.is_file() and version_in(str(python)) else None


def version_in(python: str | None) -> str | None:
    """The version of SGLang that is installed beside `python`; None when there is none."""
    if python is None:
        return None
    places = [str(place) for place in (Path(python).parent.parent / "lib").glob("python3*/site-packages")]
    found = next(iter(metadata.distributions(name="sglang", path=places)), None)
    return found.version if found else None
