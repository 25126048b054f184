"""Profiles: a YAML file, its `extends` chain, `by_engine` and `--set` changes, validated into one `Profile`.

Every refusal names the file and the line, the key, and what would be right.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from toolkit.engines import ENGINES, engine
from toolkit.engines.contract import Profile, is_secret
from toolkit.errors import InputError
from toolkit.launch.profile_file import Keys, ProfileFile, chain, find, for_engine, merge
from toolkit.launch.profile_file import configs_folder as configs_folder
from toolkit.launch.profile_file import shipped_profiles as shipped_profiles


def load_profile(name: str, changes: Sequence[str] = (), engine_name: str | None = None) -> Profile:
    """The profile `name` (a shipped name or a path to a YAML file) with `a.b=value` changes applied.

    Raises InputError for a file that is missing, malformed or fails validation, for a bad change, an unknown engine.
    """
    path = find(name)
    files = chain(path)
    chosen = _chosen(files, changes, engine_name)
    layers = for_engine(files, chosen)
    profile = _profile(path.stem, layers, changes, engine_name)
    try:
        engine(profile.engine)
    except InputError as error:
        where = f"--engine {engine_name}" if engine_name is not None else _where(layers, ("engine",), changes)
        raise InputError(f"{where}: {error}") from None
    _refuse_foreign_image(profile, layers, changes)
    for other in {name for file in files for name in file.values.get("by_engine") or {}} - {chosen}:
        _profile(path.stem, for_engine(files, other), (), other)  # a fault there is found before that engine is chosen
    return profile


def _profile(
    name: str, layers: Sequence[ProfileFile], changes: Sequence[str], engine_name: str | None = None
) -> Profile:
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged = merge(merged, layer.values)
    merged.pop("extends", None)
    merged["name"] = name
    for change in changes:
        _apply(merged, change)
    if engine_name is not None:
        merged["engine"] = engine_name
    try:
        return Profile.model_validate(_without_nulls(merged))
    except ValidationError as error:
        raise InputError(_explain(error, layers, changes)) from None


def _chosen(files: Sequence[ProfileFile], changes: Sequence[str], engine_name: str | None) -> Any:
    """The engine in use: as the command says, or a change, or the nearest file; not yet known to be one."""
    if engine_name is not None:
        return engine_name
    for change in reversed(changes):
        key, equals, value = change.partition("=")
        if key.strip() == "engine" and equals:
            return value.strip()
    return next((file.values["engine"] for file in files if file.values.get("engine") is not None), None)


def _refuse_foreign_image(profile: Profile, layers: Sequence[ProfileFile], changes: Sequence[str]) -> None:
    """Raises InputError where the container's image bears the name of another engine and not of the profile's own."""
    if profile.container is None:
        return
    image = _letters(profile.container.image)
    foreign = next((name for name in ENGINES if _letters(name) in image), None)
    if foreign is not None and _letters(profile.engine) not in image:
        raise InputError(
            f"{_where(layers, ('container', 'image'), changes)}: the image {profile.container.image} is of {foreign}, "
            f"and the engine is {profile.engine}. Name an image of {profile.engine} in the profile:\n"
            f"  by_engine:\n    {profile.engine}:\n      container: {{image: ...}}\n"
            "or with --set container.image=..., or serve without a container: --set container=null."
        )


def _letters(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _apply(values: dict[str, Any], change: str) -> None:
    keys, equals, text = change.partition("=")
    parts = keys.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set {change}: write it as --set limits.max_num_seqs=64.")
    if parts[0] == "by_engine":
        raise InputError(f"--set {change}: `by_engine` stands in a file; set the key itself for the engine in use.")
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


def _where(layers: Sequence[ProfileFile], keys: Keys, changes: Sequence[str]) -> str:
    dotted = ".".join(str(key) for key in keys)
    for change in reversed(changes):
        changed = change.partition("=")[0].strip()
        if dotted == changed or dotted.startswith(f"{changed}.") or changed.startswith(f"{dotted}."):
            last = changed.rpartition(".")[2]
            return f"--set {changed}" if is_secret(last) or last == "key_env" else f"--set {change}"
    for depth in range(len(keys), 0, -1):  # the file that holds the deepest part of the key
        for layer in layers:
            if layer.holds(keys[:depth]):
                return f"{layer.path}:{layer.line(keys[:depth])}"
    return f"{layers[0].path}:1"


def _explain(error: ValidationError, layers: Sequence[ProfileFile], changes: Sequence[str]) -> str:
    return "\n".join(_explain_one(dict(one), layers, changes) for one in error.errors())


def _explain_one(one: dict[str, Any], layers: Sequence[ProfileFile], changes: Sequence[str]) -> str:
    keys: Keys = one["loc"]
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


def _known_keys(keys: Keys) -> list[str]:
    model: type[BaseModel] = Profile
    for key in keys:
        annotation = model.model_fields[str(key)].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return [*model.model_fields, *(["extends", "by_engine"] if model is Profile else [])]
