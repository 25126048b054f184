"""`compiled`: numba's njit, kept on disk between processes.

Numba's own cache notices a change in the file of a function, not in those of the functions that it calls: after an
update of one module the others go on with their old copy of it, on arrays that have changed. In an engine's worker that
was a segmentation fault. Here the folder of the cache is named after the content of this whole package. It lies in the
user's cache, since a package may be read-only; where nothing can be written, functions are compiled at every start.
"""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., object])


def cache_folder(package: Path) -> Path:
    """Where the compiled code of the modules in `package` lies."""
    digest = sha256(b"".join(path.name.encode() + path.read_bytes() for path in sorted(package.glob("*.py"))))
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "toolkit" / "compiled" / digest.hexdigest()[:16]


def compiled(function: Function) -> Function:
    """`function`, to be compiled when it is first called with arguments of some types. Decorates."""
    before, config.CACHE_DIR = config.CACHE_DIR, str(_FOLDER)  # read when the decorator runs
    try:
        return njit(cache=True)(function)
    except (OSError, RuntimeError):  # "no locator available"
        return njit(function)
    finally:
        config.CACHE_DIR = before


_FOLDER = cache_folder(Path(__file__).parent)
