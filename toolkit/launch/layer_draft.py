"""From a target's name to a draft directory of its own layers. Reads config.json alone; no weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.lab.model import LAB_MODEL
from toolkit.launch.model_size import count
from toolkit.launch.models import config_folder
from toolkit.proposers.layer_set import LayerSkip, choose_layers, is_draft, write
from toolkit.proposers.layer_target import why_not

SHORT = {"lab": LAB_MODEL}


@dataclass(frozen=True, slots=True)
class LayerTarget:
    """A target that can draft with its own layers: its name, and its config.json."""

    name: str
    config: dict[str, Any]

    @property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    def step_share(self, kept: int) -> float:
        """c of a draft of `kept` layers: bytes that its pass reads over those of the target's.

        Both read the output head and the last norm; the context's KV is not counted. A pass over few tokens waits for
        its weights, so its time follows these bytes.
        """
        whole = count(self.name, self.config)
        return count(self.name, {**self.config, "num_hidden_layers": kept}).read_bytes / whole.read_bytes


def layer_target(name: str) -> LayerTarget:
    """The target `name`: `lab`, a folder, or a hub name whose config.json is on this machine.

    Raises InputError where there is none, or a model of that kind cannot draft with its own layers.
    """
    name = SHORT.get(name, name)
    file = Path(config_folder(name)) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: is no JSON object.")
    if is_draft(file.parent):
        raise InputError(f"model {name} is a draft of `layer-skip make`, which has no weights: name its target.")
    if (reason := why_not(config)) is not None:
        raise InputError(f"model {name} cannot draft with its own layers: {reason}.")
    return LayerTarget(name, config)


def make_draft(
    target: str, folder: Path, keep: str | None = None, exit_after: int | None = None, skip: str | None = None
) -> LayerSkip:
    """Write the draft directory `folder`: see `choose_layers` for the ways to say which layers draft.

    Raises InputError for what is refused; then nothing is written.
    """
    found = layer_target(target)
    return write_draft(found, folder, choose_layers(found.layers, keep, exit_after, skip))


def write_draft(target: LayerTarget, folder: Path, layers: Sequence[int]) -> LayerSkip:
    """The same with layers already chosen."""
    return write(folder, target.name, target.config, layers)
