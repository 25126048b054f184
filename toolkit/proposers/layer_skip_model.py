"""The draft as a module: the target's own modules, fewer layers.

Two views of a loaded target. `view` shares its KV cache: no parameter and no cache is new. `view_with_own_cache` gives
each kept layer a second attention with a cache of its own, for an engine that lets a draft touch no cache but its own.
Both run the target's own forward, uncompiled: embedding, layers, norm and head are the very modules, so a quantized
or tensor-parallel layer runs as it does in the target.

Facts of vLLM 0.32.0: model_executor/models/llama.py and its like run `self.layers[start_layer:end_layer]`;
compilation/decorators.py takes the plain forward where `do_not_compile` is set; an attention layer finds its cache and
metadata by `layer_name` in the forward context (model_executor/layers/attention/attention.py).
"""

import copy
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

OWN_PREFIX = "draft_model"
"""Names of attention layers with a cache of their own begin with it."""


def view(target: nn.Module, layers: Sequence[int]) -> Any:
    """`target` (a causal language model with `model.layers`) with these of its layers only."""
    outer, inner = _shell(target), _shell(target.model)
    inner._modules["layers"] = nn.ModuleList(target.model.layers[layer] for layer in layers)
    inner.start_layer, inner.end_layer = 0, len(layers)
    inner.do_not_compile = True
    outer._modules["model"] = inner
    return outer


def view_with_own_cache(target: nn.Module, layers: Sequence[int], context: MutableMapping[str, Any]) -> Any:
    """The same with an attention of its own in each layer, entered in `context`, the engine's layers by name."""
    outer = view(target, layers)
    kept = outer.model._modules["layers"]
    for place, layer in enumerate(kept):
        path, attention = _attention_of(layer)
        fresh = _shell(attention)
        fresh.impl = copy.copy(attention.impl)
        fresh.kv_cache = torch.tensor([])
        fresh.layer_name = f"{OWN_PREFIX}.layers.{place}.{path}"
        if fresh.layer_name in context:
            raise ValueError(f"layer skip: there is a layer {fresh.layer_name} already")
        context[fresh.layer_name] = fresh
        kept[place] = _with(layer, path.split("."), fresh)
    return outer


def attention_names(draft: Any) -> set[str]:
    """The names under which the layers of `draft` find their caches."""
    return {_attention_of(layer)[1].layer_name for layer in draft.model._modules["layers"]}


def bytes_of_its_own(owner: Iterable[Any], others: Iterable[nn.Module]) -> int:
    """Bytes of the tensors in `owner` (tensors, modules, or objects that hold tensors) that none of `others` has."""
    known = {tensor.untyped_storage().data_ptr() for module in others for tensor in _tensors(module)}
    found = {}
    for one in owner:
        for tensor in _tensors(one):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


class LayerSkipForCausalLM(nn.Module):  # type: ignore[misc]
    """What a draft directory's architecture is registered as, so that vLLM reads its config as a draft model's.

    It is never run: the plugin puts a proposer in the place of the one that would load it. Where it is built after all,
    the engine's process does not have the plugin, and says so.
    """

    def __init__(self, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        raise ValueError(
            "layer skip: a draft made of the target's own layers has no weights to load. vLLM's process did not load "
            "the plugin of speculative-toolkit (is VLLM_PLUGINS set?), or this vLLM builds another drafter than 0.32."
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
        raise NotImplementedError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        raise NotImplementedError


def _shell(module: Any) -> Any:
    """A module of the same class with the same children and tensors, whose table of children is its own."""
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    return shell


def _with(module: Any, path: Sequence[str], leaf: Any) -> Any:
    """`module` with `leaf` at `path`; what lies on the way is a shell, all else the very module."""
    if not path:
        return leaf
    shell = _shell(module)
    shell._modules[path[0]] = _with(module._modules[path[0]], path[1:], leaf)
    return shell


def _attention_of(layer: Any) -> tuple[str, Any]:
    """The one attention of a decoder layer and its path in there. Raises ValueError where there is not exactly one."""
    found = [(path, one) for path, one in layer.named_modules() if hasattr(one, "layer_name") and hasattr(one, "impl")]
    if len(found) != 1:
        raise ValueError(f"layer skip: a layer of the target has {len(found)} attentions, not one")
    return found[0]


def _tensors(one: Any) -> Iterable[torch.Tensor]:
    if isinstance(one, torch.Tensor):
        yield one
    elif isinstance(one, nn.Module):
        yield from one.parameters()
        yield from one.buffers()
    else:
        yield from (value for value in getattr(one, "__dict__", {}).values() if isinstance(value, torch.Tensor))
