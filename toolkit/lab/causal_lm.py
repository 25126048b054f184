"""Hugging Face models for the reference loop, in fp32 on the CPU, and a model with layers left out as its own draft."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import InputError
from toolkit.sampling import FloatArray

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class TransformersModel:
    """A causal language model of transformers as a `toolkit.lab.reference.Model`, with a `DynamicCache`.

    Only attention caches can be cropped: not recurrent layers, nor a sliding window that has begun to slide.
    """

    def __init__(self, network: Any) -> None:
        from transformers import DynamicCache

        self.network = network
        self.size: int = network.config.vocab_size
        self._cache = DynamicCache()

    @property
    def layers(self) -> int:
        return int(self.network.config.num_hidden_layers)

    @property
    def longest(self) -> int:
        """Tokens in the longest sequence that the model was made for."""
        return int(self.network.config.max_position_embeddings)

    @property
    def length(self) -> int:
        return int(self._cache.get_seq_length())

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        import torch

        with torch.inference_mode():
            output = self.network(torch.tensor([list(tokens)]), past_key_values=self._cache, use_cache=True)
        logits: FloatArray = output.logits[0].numpy().astype(np.float64)
        return logits

    def crop(self, length: int) -> None:
        if length < self.length:
            self._cache.crop(length - self.length)  # negative: how many to drop


def load_model(folder: Path) -> TransformersModel:
    """The model in `folder` (config, safetensors), in fp32. Raises InputError where none can be loaded.

    Imports torch and transformers into this process.
    """
    # OpenMP's waits spin: beside another busy process a pass takes seconds. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise InputError(f"The reference loop runs models with torch and transformers: {error}.") from error
    try:
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder} holds no model that transformers can load: {error}") from error
    return TransformersModel(network.eval())


def keep_layers(model: TransformersModel, kept: Sequence[int]) -> TransformersModel:
    """`model` with the layers of `kept` alone (ids from 0, rising): the same weights in memory, a cache of its own.

    Draft and verify with one model: Zhang et al., "Draft & Verify" (arXiv 2309.08168).
    Raises InputError when `kept` is empty, not rising, or names a layer that is not there.
    """
    if not kept or list(kept) != sorted(set(kept) & set(range(model.layers))):
        raise InputError(f"The layers to keep must be different ones of 0 to {model.layers - 1}, rising, not {kept}.")
    from copy import deepcopy

    from transformers import AutoModelForCausalLM

    config = deepcopy(model.network.config)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in kept]
    new_id = {old: new for new, old in enumerate(kept)}
    weights = {}
    for name, weight in model.network.state_dict().items():
        layer = _LAYER.search(name)
        if layer is None:
            weights[name] = weight
        elif (old := int(layer[1])) in new_id:
            weights[f"{name[: layer.start()]}.layers.{new_id[old]}.{name[layer.end() :]}"] = weight
    network = AutoModelForCausalLM.from_config(config, dtype=model.network.dtype)
    network.load_state_dict(weights, assign=True)  # assign: the tensors themselves, not a copy
    return TransformersModel(network.eval())
