"""The YAML files behind a profile: reading one, its `extends` chain, and what it says for one engine (`by_engine`)."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from toolkit.engines import ENGINES
from toolkit.errors import InputError

Keys = tuple[str | int, ...]
_NOT_BY_ENGINE = ("name", "engine", "extends", "by_engine")


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """One file: its values, the nodes they were read from, and the engine whose `by_engine` entry is merged in."""

    path: Path
    values: dict[str, Any]
    node: yaml.Node
    engine: str | None = None

    def line(self, keys: Keys) -> int:
        """1-based line of the deepest of `keys` that this file holds; 1 when it does not hold the first."""
        own: Keys = ("by_engine", self.engine or "", *keys)
        nodes = self._nodes(own) if self.engine else []
        if len(nodes) < len(own):
            nodes = self._nodes(keys)
        return nodes[-1].start_mark.line + 1 if nodes else 1

    def holds(self, keys: Keys) -> bool:
        """Whether the values have `keys`, one below the other."""
        values: Any = self.values
        for key in keys:
            try:
                values = values[key]
            except (LookupError, TypeError):
                return False
        return True

    def by_engine(self, engine: str) -> Any:
        """The entry of `by_engine` for `engine`: a mapping, None where it is taken away, {} where there is none."""
        entries = self.values.get("by_engine", {})
        return entries.get(engine, {}) if entries is not None else None

    def _nodes(self, keys: Keys) -> list[yaml.Node]:
        """The nodes of `keys` as far down as this file has them."""
        node, found = self.node, []
        for key in keys:
            below = None
            if isinstance(node, yaml.MappingNode):
                below = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                below = (node.value[key], node.value[key])
            if below is None:
                break
            found.append(below[0])
            node = below[1]
        return found


@cache
def configs_folder() -> Path:
    """The shipped `configs/`: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data" / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def shipped_profiles() -> dict[str, Path]:
    """Name to file of the profiles that come with the toolkit, sorted by name."""
    return {path.stem: path for path in sorted((configs_folder() / "profiles").glob("*.yaml"))}


def find(name: str) -> Path:
    """The file of a shipped name or of a path. Raises InputError where there is none."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        try:
            found = path.is_file()
        except OSError as error:
            raise InputError(f"profile {name[:80]}...: {error.strerror}.") from None
        if not found:
            raise InputError(f"profile {name}: there is no such file.")
        return path
    shipped = shipped_profiles()
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise InputError(
        f"there is no profile {name!r}.{hint} `toolkit profiles list` shows them; a path to a .yaml file works too."
    )


def chain(path: Path) -> list[ProfileFile]:
    """The file at `path` and those that it extends, the nearest first. Raises InputError naming file and line."""
    files = [_read(path)]
    while (parent := files[-1].values.get("extends")) is not None:
        child = files[-1]
        where = f"{child.path}:{child.line(('extends',))}"
        if not isinstance(parent, str):
            raise InputError(f"{where}: `extends` takes the name of one profile or a path.")
        beside = child.path.parent / (parent if parent.endswith((".yaml", ".yml")) else f"{parent}.yaml")
        try:
            found = beside if beside.is_file() else find(parent)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if found.resolve() in {file.path.resolve() for file in files}:
            raise InputError(f"{where}: `extends` goes round in a circle ({parent}).")
        files.append(_read(found))
    return files


def for_engine(files: Sequence[ProfileFile], engine: str | None) -> list[ProfileFile]:
    """The chain as `engine` is to see it: each file's `by_engine` entry over that file's own keys.

    So a file that extends another has the last word on a key, whichever way it says it. An entry that is null takes
    those of the files below away.
    """
    seen: list[ProfileFile] = []
    wanted = engine is not None
    for file in files:
        values = {key: value for key, value in file.values.items() if key != "by_engine"}
        entry = file.by_engine(engine) if wanted and engine is not None else {}
        wanted = wanted and entry is not None
        seen.append(replace(file, values=merge(values, entry or {}), engine=engine if entry else None))
    return seen


def merge(below: dict[str, Any], above: Mapping[Any, Any]) -> dict[str, Any]:
    """`above` over `below`, mappings key by key; a null takes the key away."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> ProfileFile:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
        if node is not None:
            _check_keys(path, node)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: is not UTF-8 text.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.problem}.") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.reason}.") from None
    except RecursionError:
        raise InputError(f"{path}:1: nested too deeply, or an alias stands for what contains it.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}:1: not valid YAML: {error}.") from None
    if node is None or not isinstance(values, dict):
        raise InputError(f"{path}:1: a profile is a mapping of keys, see `toolkit profiles show lab-ngram`.")
    file = ProfileFile(path, values, node)
    _check_by_engine(file)
    return file


def _check_keys(path: Path, node: yaml.Node) -> None:
    """Raises InputError for a key that stands twice in its mapping, or that YAML does not read as text (`on`, `1`)."""
    children = node.value if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) else []
    seen: set[str] = set()
    for child in children:
        if isinstance(child, tuple):
            key, value = child
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                line = key.start_mark.line + 1
                raise InputError(f"{path}:{line}: the key {key.value!r} is not text: put it in quotes.")
            if key.value in seen:
                raise InputError(f"{path}:{key.start_mark.line + 1}: the key {key.value!r} stands here twice.")
            seen.add(key.value)
            _check_keys(path, value)
        else:
            _check_keys(path, child)


def _check_by_engine(file: ProfileFile) -> None:
    """Raises InputError where `by_engine` is no mapping from engines to keys of a profile."""
    entries = file.values.get("by_engine")
    if entries is None:
        return
    if not isinstance(entries, dict):
        raise InputError(
            f"{file.path}:{file.line(('by_engine',))}: `by_engine` is a mapping from an engine to keys of a profile."
        )
    for name, entry in entries.items():
        where = f"{file.path}:{file.line(('by_engine', name))}"
        if name not in ENGINES:
            near = difflib.get_close_matches(name, ENGINES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ENGINES)}."
            raise InputError(f"{where}: unknown engine 'by_engine.{name}': {hint}")
        if entry is not None and not isinstance(entry, dict):
            raise InputError(f"{where}: by_engine.{name} is a mapping of keys of a profile.")
        for key in set(_NOT_BY_ENGINE) & set(entry or {}):
            where = f"{file.path}:{file.line(('by_engine', name, key))}"
            raise InputError(f"{where}: by_engine.{name}: `{key}` is the same for all engines.")
