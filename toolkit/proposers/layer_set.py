"""Which layers of a target draft for it, and the draft directory that says so: a config.json of a few kB, no weights.

The directory's config.json is the target's with another architecture and fewer layers, so that an engine reads it as
it reads any draft model's, and under `toolkit_layer_skip` the layers that are kept and what they are kept of.
Sources: Zhang et al., "Draft & Verify" (arXiv 2309.08168); Elhoushi et al., "LayerSkip" (2404.16710).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt, ValidationError, model_validator

from toolkit.errors import InputError

ARCHITECTURE = "ToolkitLayerSkipForCausalLM"
"""What the config.json of a draft directory of ours names; nothing else does."""

KEY = "toolkit_layer_skip"
FORBIDDEN_IN_PATHS = ("eagle", "dflash", "dspark")
"""A draft whose path holds one of these is no draft model to vLLM (0.32, config/speculative.py): its method flips."""

_PART = re.compile(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", re.ASCII)
_SHAPE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


class LayerSkip(BaseModel):
    """A draft made of its target's own layers.

    `target` is the model's name as a person gave it; `layers` are those kept, ids from 0, rising, fewer than the
    `num_hidden_layers` of the target; `shape` holds the keys of the target's config.json that a view of its layers
    depends on.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    layers: tuple[StrictInt, ...]
    num_hidden_layers: StrictInt
    shape: dict[str, Any] = {}

    @model_validator(mode="after")
    def _can_be(self) -> "LayerSkip":
        check_layers(self.layers, self.num_hidden_layers)
        return self

    def mismatch(self, config: Mapping[str, Any]) -> str | None:
        """Why the model that `config` (the content of a config.json) describes is not the one that it was made for.

        None where nothing speaks against it. Weights are not compared: other weights only make other drafts.
        """
        wanted = {"num_hidden_layers": self.num_hidden_layers, **self.shape}
        other = [f"{key} {config.get(key)}, not {value}" for key, value in wanted.items() if config.get(key) != value]
        return f"it was made for {self.target}; this target has {'; '.join(other)}" if other else None


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raises InputError unless `layers` are different ones of `count`, rising: at least one, and not all."""
    unknown = [layer for layer in layers if not 0 <= layer < count]
    if unknown:
        raise InputError(f"there is no layer {unknown[0]}: the target has {count}, from 0 to {count - 1}.")
    if list(layers) != sorted(set(layers)):
        raise InputError(f"layers {format_layers(layers)} are not different ones in rising order.")
    if not layers:
        raise InputError("all layers are skipped: keep at least one, or nothing drafts.")
    if len(layers) == count:
        raise InputError(f"nothing is skipped: a draft of all {count} layers is the target itself.")


def parse_layers(text: str, count: int) -> tuple[int, ...]:
    """The layers that `text` names, like 0-3,28,29 (ids from 0, ranges with both ends), rising, each once.

    Raises InputError for what cannot be read and for a layer beyond `count`, the target's.
    """
    found: set[int] = set()
    for part in text.split(","):
        read = _PART.fullmatch(part)
        if read is None:
            raise InputError(
                f"layers {text[:80]!r}: {part[:20]!r} is no layer and no range; write them like 0-3,28,29."
            )
        first, last = int(read[1]), int(read[2] or read[1])
        if first > last:
            raise InputError(f"layers {text[:80]!r}: the range {first}-{last} runs backwards.")
        if last >= count:
            raise InputError(f"layers {text[:80]!r}: no layer {last}; the target has {count}, from 0 to {count - 1}.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def format_layers(layers: Iterable[int]) -> str:
    """`layers` as `parse_layers` reads them, in the shortest way: runs of three or more are ranges."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def choose_layers(
    count: int, keep: str | None = None, exit_after: int | None = None, skip: str | None = None
) -> tuple[int, ...]:
    """The layers kept of `count`: those of `keep`, the first `exit_after`, or all but those of `skip`.

    Raises InputError unless exactly one is given and some layers, but not all, remain.
    """
    if [keep, exit_after, skip].count(None) != 2:
        raise InputError("say which layers draft in exactly one way: --keep 0-3,28,29, --exit 8 or --skip 9-18.")
    if keep is not None:
        layers = parse_layers(keep, count)
    elif skip is not None:
        left_out = parse_layers(skip, count)
        layers = tuple(layer for layer in range(count) if layer not in left_out)
    else:
        assert exit_after is not None
        if not 0 <= exit_after <= count:
            raise InputError(f"--exit {exit_after}: the target has {count} layers; leave it after 1 to {count - 1}.")
        layers = tuple(range(exit_after))
    check_layers(layers, count)
    return layers


def write(folder: Path, target: str, config: Mapping[str, Any], layers: Sequence[int]) -> LayerSkip:
    """Make the draft directory `folder` for the model `target`, whose config.json holds `config`.

    Raises InputError: layers that cannot be, a place that an engine would misread (`check_place`), one that holds
    something else already. The directory is made where it is not there.
    """
    count = config.get("num_hidden_layers")
    if type(count) is not int:
        raise InputError(f"model {target}: its config.json has no num_hidden_layers.")
    shape = {key: config[key] for key in _SHAPE if key in config}
    try:
        made = LayerSkip(target=target, layers=tuple(layers), num_hidden_layers=count, shape=shape)
    except ValidationError as error:
        raise InputError(f"layers of {target}: {_first(error)}.") from None
    check_place(folder)
    draft = {key: value for key, value in config.items() if key not in ("auto_map", "_name_or_path")}
    draft |= {"architectures": [ARCHITECTURE], "num_hidden_layers": len(made.layers), KEY: made.model_dump(mode="json")}
    if isinstance(kinds := config.get("layer_types"), list) and len(kinds) == count:
        draft["layer_types"] = [kinds[layer] for layer in made.layers]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(draft, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: the draft directory cannot be written: {error.strerror}.") from None
    return made


def check_place(folder: Path) -> None:
    """Raises InputError where a draft directory cannot be made, or vLLM would take it for another method's draft."""
    path = str(folder.expanduser().absolute()).lower()
    for word in FORBIDDEN_IN_PATHS:
        if word in path:
            raise InputError(
                f"{folder}: the path holds {word!r}, and vLLM would take it for another method's draft. Choose another."
            )
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not an empty directory: choose another, or remove it.")
    except OSError as error:
        raise InputError(f"{str(folder)[:80]}: cannot be used: {error.strerror}.") from None


def is_draft(folder: Path) -> bool:
    """Whether `folder` is a draft directory of ours, right or wrong: its config.json names our architecture."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and ARCHITECTURE in (config.get("architectures") or [])


def read(folder: Path) -> LayerSkip:
    """What the draft directory `folder` says. Raises InputError for one that is not ours or says what cannot be."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read: {error}.") from None
    return of_config(config, str(file))


def of_config(config: Any, where: str = "the draft's config.json") -> LayerSkip:
    """The same of the content of its config.json, already read from `where`."""
    if not isinstance(config, Mapping) or not isinstance(config.get(KEY), Mapping):
        raise InputError(f"{where}: has no {KEY}: it is no draft made by `toolkit layer-skip make`.")
    try:
        return LayerSkip.model_validate(config[KEY])
    except (ValidationError, InputError) as error:
        fault = _first(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{where}: {KEY}: {str(fault).rstrip('.')}. Make the draft directory anew.") from None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'layers'}: {first['msg']}"
