"""From a model's name to what an engine is given, to its config.json, and to what identifies its content."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.engines.contract import LAYERS_OF
from toolkit.engines.llamacpp_speculation import GGUF
from toolkit.errors import InputError
from toolkit.lab.model import (
    GGUF_SHA256,
    LAB_MODEL,
    ensure_lab_gguf,
    ensure_lab_model,
    lab_gguf_file,
    lab_model_folder,
)


def resolve_model(name: str, dry: bool = False) -> str:
    """What an engine is given for `name`: the lab model's folder, a local folder, or the hub name.

    The lab model is built on first use, unless this is `dry`. An engine that asks for `gguf:NAME` is given a GGUF file.

    Raises InputError for a local folder that does not exist or holds no config.json, and where a GGUF file is wanted
    and there is none, or the other way round; EngineError when the lab's model cannot be fetched.
    """
    if name.startswith(GGUF):
        return _gguf(name.removeprefix(GGUF), dry)
    if LAYERS_OF in name:
        return _layers(name, dry)
    if name == LAB_MODEL:
        return str(lab_model_folder() if dry else ensure_lab_model())
    if is_local(name):
        folder = _folder(name)
        if name.endswith(".gguf"):
            raise InputError(
                f"model {name}: a GGUF file is for `engine: llamacpp`; this engine takes a folder with a config.json."
            )
        if not (folder / "config.json").is_file():
            raise InputError(f"model {name}: the folder does not exist or holds no config.json.")
        return str(folder.resolve())
    return name


def _gguf(name: str, dry: bool) -> str:
    if name == LAB_MODEL:
        return str(lab_gguf_file() if dry else ensure_lab_gguf())
    if not name.endswith(".gguf"):
        raise InputError(
            f"model {name}: llama.cpp takes a GGUF file of this machine, as a path that ends in .gguf; "
            f"of the lab's models it is {LAB_MODEL}."
        )
    if not _folder(name).is_file():
        raise InputError(f"model {name}: there is no such file.")
    return str(_folder(name).resolve())


def _layers(name: str, dry: bool = False) -> str:
    from toolkit.launch.named_layers import layers_folder  # which needs this module

    return str(layers_folder(name, dry))


def _folder(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~nobody
        raise InputError(f"model {name}: there is no such user.") from None


def is_local(name: str) -> bool:
    """Whether `name` is a path rather than a hub's `organisation/model`."""
    return name.startswith((".", "/", "~")) or Path(name).is_dir()


def config_folder(name: str) -> str:
    """A folder with the config.json of `name`: local, in the hub cache, or among the facts that we ship.

    Raises InputError when there is none on this machine.
    """
    if LAYERS_OF in name:
        return _layers(name)
    candidates = [_folder(name)] if is_local(name) else [*_cached(name), _facts() / name.replace("/", "--")]
    for folder in candidates:
        if (folder / "config.json").is_file():
            return str(folder)
    raise InputError(f"model {name}: no config.json of it is on this machine; download the model's config first.")


def model_identity(name: str) -> str:
    """What tells one model from another whatever the path: the hub name, or a digest of a folder's content.

    Of a folder: its config.json and tokenizer byte by byte, its weight files by name and size. Of a GGUF file: its
    first MiB, where it describes itself, and its size.
    """
    if name == f"{GGUF}{LAB_MODEL}":
        return f"sha256:{GGUF_SHA256[:16]}"  # what is not that file is not kept
    if name.startswith(GGUF):
        file = Path(resolve_model(name))
        with file.open("rb") as opened:
            head = opened.read(1 << 20)
        return f"sha256:{hashlib.sha256(head + str(file.stat().st_size).encode()).hexdigest()[:16]}"
    if not is_local(name) and name != LAB_MODEL:
        return name
    digest = hashlib.sha256()
    for path in sorted(Path(resolve_model(name)).iterdir()):
        if not path.is_file():
            continue
        if path.suffix in (".json", ".jinja", ".model", ".txt") and path.name != "toolkit.json":
            digest.update(path.name.encode() + path.read_bytes())
        else:
            digest.update(f"{path.name} {path.stat().st_size}".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def _facts() -> Path:
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data" / "models"
    return inside if inside.is_dir() else package.parent / "tests" / "data" / "models"


def _cached(name: str) -> Iterator[Path]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    if snapshots.is_dir():
        yield from sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
