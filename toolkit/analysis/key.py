"""The key of a service: read from where it lies, sent in a header, and found nowhere else."""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from toolkit.engines.contract import is_variable, may_be_key
from toolkit.errors import InputError

MOST_BYTES = 10_000  # a file that holds more is no file of a key
_warned: set[Path] = set()


def read_key(
    env: str | None, file: str | None, warn: Callable[[str], None] = lambda said: print(said, file=sys.stderr)
) -> str | None:
    """The key in the environment variable `env` or in the first and only line of `file`; None when neither is named.

    Space around it is dropped. A file that others can read is used, and `warn` told so, once a file. Raises InputError,
    which never repeats what was found, nor a name that may be a key.
    """
    if env is not None and file is not None:
        raise InputError("--api-key-env and --api-key-file: give one of them.")
    if env is not None:
        where = f"--api-key-env {env}" if is_variable(env) else "--api-key-env"
        key = os.environ.get(env, "").strip()
        if not key and not is_variable(env):
            raise InputError(f"{where}: no such environment variable is set; give the NAME of one, never the key.")
        if not key:
            raise InputError(f"{where}: the environment variable {env} is not set.")
        return _plausible(key, f"{where}: the key in {env}" if is_variable(env) else f"{where}: the key there")
    if file is not None:
        return _plausible(_content(file, warn), f"--api-key-file {file}: the key there")
    return None


def _content(file: str, warn: Callable[[str], None]) -> str:
    try:
        path = Path(file).expanduser()
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"--api-key-file {file}: is not a file.")
        if found.st_size > MOST_BYTES:
            raise InputError(f"--api-key-file {file}: holds {found.st_size:,} bytes, which is no key.")
        data = path.read_bytes()
    except RuntimeError:  # ~nobody
        raise InputError(f"--api-key-file {file}: there is no such user.") from None
    except (OSError, ValueError) as error:  # the latter for a NUL in the path
        if may_be_key(file):
            raise InputError(
                "--api-key-file: no such file can be read; give the PATH of one, like ./key, never the key."
            ) from None
        raise InputError(
            f"--api-key-file {file}: cannot be read: {getattr(error, 'strerror', None) or 'no path'}."
        ) from None
    if found.st_mode & (stat.S_IRGRP | stat.S_IROTH) and path not in _warned:
        _warned.add(path)
        warn(f"--api-key-file {file}: others on this machine can read it; `chmod 600` keeps the key yours.")
    key = data.decode("utf-8", errors="replace").strip()
    if not key:
        raise InputError(f"--api-key-file {file}: the file is empty.")
    return key


def _plausible(key: str, what: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{what} has characters that no key has.")
    return key
