"""Profiles: a YAML file, its `extends` chain and `--set` changes, validated into one `Profile`.

Every refusal names the file and the line, the key, and what would be right.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from toolkit.engines import engine
from toolkit.engines.contract import Profile, is_secret
from toolkit.errors import InputError

Path_ = tuple[str | int, ...]


@cache
def configs_folder() -> Path:
    """The shipped `configs/`: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data" / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def shipped_profiles() -> dict[str, Path]:
    """Name to file of the profiles that come with the toolkit, sorted by name."""
    return {path.stem: path for path in sorted((configs_folder() / "profiles").glob("*.yaml"))}


def load_profile(name: str, changes: Sequence[str] = (), engine_name: str | None = None) -> Profile:
    """The profile `name` (a shipped name or a path to a YAML file) with `a.b=value` changes applied.

    Raises InputError for a file that is missing, malformed or fails validation, for a bad change, an unknown engine.
    """
    path = _find(name)
    layers = _chain(path)
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged = _merge(merged, layer.values)
    merged.pop("extends", None)
    merged["name"] = path.stem
    for change in changes:
        _apply(merged, change)
    if engine_name is not None:
        merged["engine"] = engine_name
    try:
        profile = Profile.model_validate(_without_nulls(merged))
    except ValidationError as error:
        raise InputError(_explain(error, layers, changes)) from None
    try:
        engine(profile.engine)
    except InputError as error:
        where = f"--engine {engine_name}" if engine_name is not None else _where(layers, ("engine",), changes)
        raise InputError(f"{where}: {error}") from None
    return profile


@dataclass(frozen=True, slots=True)
class _Layer:
    path: Path
    values: dict[str, Any]
    node: yaml.Node

    def line(self, keys: Path_) -> int:
        """1-based line of the deepest of `keys` that this file holds; 1 when it does not hold the first."""
        node, line = self.node, 1
        for key in keys:
            found = None
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                found = (node.value[key], node.value[key])
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        return line


def _find(name: str) -> Path:
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


def _chain(path: Path) -> list[_Layer]:
    layers = [_read(path)]
    while (parent := layers[-1].values.get("extends")) is not None:
        child = layers[-1]
        where = f"{child.path}:{child.line(('extends',))}"
        if not isinstance(parent, str):
            raise InputError(f"{where}: `extends` takes the name of one profile or a path.")
        beside = child.path.parent / (parent if parent.endswith((".yaml", ".yml")) else f"{parent}.yaml")
        try:
            found = beside if beside.is_file() else _find(parent)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if found.resolve() in {layer.path.resolve() for layer in layers}:
            raise InputError(f"{where}: `extends` goes round in a circle ({parent}).")
        layers.append(_read(found))
    return layers


def _read(path: Path) -> _Layer:
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
    return _Layer(path, values, node)


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


def _merge(below: dict[str, Any], above: Mapping[Any, Any]) -> dict[str, Any]:
    """`above` over `below`, mappings key by key; a null takes the key away."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _apply(values: dict[str, Any], change: str) -> None:
    keys, equals, text = change.partition("=")
    parts = keys.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set {change}: write it as --set limits.max_num_seqs=64.")
    if parts == ["extends"]:
        raise InputError(f"--set {change}: `extends` stands in a file; choose the other profile with --profile.")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date that does not exist
        raise InputError(f"--set {change}: the value is not valid YAML.") from None
    place = values
    for part in parts[:-1]:
        below = place.get(part)
        place[part] = dict(below) if isinstance(below, Mapping) else {}
        place = place[part]
    place[parts[-1]] = value


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _where(layers: Sequence[_Layer], keys: Path_, changes: Sequence[str]) -> str:
    dotted = ".".join(str(key) for key in keys)
    for change in reversed(changes):
        changed = change.partition("=")[0].strip()
        if dotted == changed or dotted.startswith(f"{changed}.") or changed.startswith(f"{dotted}."):
            return f"--set {changed}" if is_secret(changed.rpartition(".")[2]) else f"--set {change}"
    for depth in range(len(keys), 0, -1):  # the file that holds the deepest part of the key
        for layer in layers:
            if _holds(layer.values, keys[:depth]):
                return f"{layer.path}:{layer.line(keys[:depth])}"
    return f"{layers[0].path}:1"


def _holds(values: Any, keys: Path_) -> bool:
    for key in keys:
        try:
            values = values[key]
        except (LookupError, TypeError):
            return False
    return True


def _explain(error: ValidationError, layers: Sequence[_Layer], changes: Sequence[str]) -> str:
    return "\n".join(_explain_one(dict(one), layers, changes) for one in error.errors())


def _explain_one(one: dict[str, Any], layers: Sequence[_Layer], changes: Sequence[str]) -> str:
    keys: Path_ = one["loc"]
    where, dotted = _where(layers, keys, changes), ".".join(str(key) for key in keys)
    if one["type"] == "extra_forbidden":
        known = _known_keys(keys[:-1])
        near = difflib.get_close_matches(str(keys[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}."
        return f"{where}: unknown key {dotted!r}: {hint}"
    if one["type"] == "missing":
        return f"{where}: the key {dotted!r} is missing."
    if one["type"] == "value_error":
        return f"{where}: {one['ctx']['error']}."
    given = f" (given: {str(one['input'])[:80]!r})" if not isinstance(one["input"], Mapping) else ""
    return f"{where}: {dotted}: {one['msg']}{given}."


def _known_keys(keys: Path_) -> list[str]:
    model: type[BaseModel] = Profile
    for key in keys:
        annotation = model.model_fields[str(key)].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return [*model.model_fields, *(["extends"] if model is Profile else [])]
