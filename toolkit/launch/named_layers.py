"""The name of a draft that is some layers of a model, `MODEL#layers=0-3,28,29`, and the directory that it stands for.

A profile of method layer_skip says `layers` and is done: the directory is written here, where one is wanted.
"""

import hashlib
import os
import tempfile
from pathlib import Path

from toolkit.engines.contract import LAYERS_OF
from toolkit.errors import InputError
from toolkit.launch.layer_draft import layer_target, write_draft
from toolkit.proposers.layer_set import check_layers, parse_layers


def layers_folder(name: str, dry: bool = False) -> Path:
    """The draft directory of `name`, written anew unless this is `dry`, under ~/.cache/toolkit (XDG_CACHE_HOME).

    Raises InputError where the model's config.json is not on this machine, its layers cannot be, or it cannot draft
    with them.
    """
    model, _, layers = name.partition(LAYERS_OF)
    target = layer_target(model)
    kept = parse_layers(layers, target.layers)
    check_layers(kept, target.layers)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolkit" / "layer-skip"
    folder = cache / hashlib.sha256(name.encode()).hexdigest()[:16]
    if dry:
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as beside:
            write_draft(target, Path(beside) / "draft", kept)
            os.replace(Path(beside) / "draft" / "config.json", folder / "config.json")  # an engine may be reading it
    except OSError as error:
        raise InputError(f"{folder}: the draft directory cannot be written: {error.strerror}.") from None
    return folder
