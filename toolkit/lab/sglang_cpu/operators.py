"""Put the replacement where sglang looks for it: a module `sgl_kernel`, and operators in `torch.ops`.

SGLang 0.5.23 imports `sgl_kernel` whenever its device is the CPU; its compiled form for CPUs is in no package index.
It is imported by name in kernels/ops/speculative/{spec_tree,cache_locs,eagle,reconstruct_tree,multi_layer_eagle}.py,
kernels/ops/kvcache/cache_move.py and srt/mem_cache/allocation.py.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from toolkit.lab.sglang_cpu import attention, cache, tree

KERNELS: tuple[Callable[..., Any], ...] = (
    tree.build_tree_kernel_efficient_cpu,
    tree.verify_tree_greedy_cpu,
    cache.assign_draft_cache_locs_contiguous_cpu,
    cache.assign_extend_cache_locs_cpu,
    cache.assign_req_to_token_pool_cpu,
    cache.build_draft_decode_metadata_cpu,
    cache.copy_all_layer_kv_cache_cpu,
    cache.fill_accept_out_cache_loc_cpu,
    cache.fill_bonus_tokens_cpu,
)
NOT_CALLED = ("rotate_input_ids_cpu",)
"""Imported beside the others, called by methods of several draft layers only (MTP), which the lab does not have."""
_libraries: list[Any] = []  # an operator lives as long as the library that defined it


def install() -> None:
    """Idempotent. After it `import sgl_kernel` finds the replacement and `torch.ops` has the operators."""
    if "sgl_kernel" in sys.modules:
        return
    package, speculative = _module("sgl_kernel", is_package=True), _module("sgl_kernel.speculative")
    for kernel in KERNELS:
        setattr(package, kernel.__name__, kernel)
    for name in NOT_CALLED:
        setattr(package, name, _missing(name))
    vars(speculative)["reconstruct_indices_from_tree_mask"] = tree.reconstruct_indices_from_tree_mask
    vars(package)["speculative"] = speculative
    sys.modules[package.__name__], sys.modules[speculative.__name__] = package, speculative
    _define_attention()
    _declare_torchvision()


def _module(name: str, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "The CPU lab's replacement, toolkit.lab.sglang_cpu.")
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    if is_package:
        module.__path__ = []
    return module


def _missing(name: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"the CPU lab has no {name}: it runs NGRAM, STANDALONE and EAGLE")

    return refuse


def _define_attention() -> None:
    library = torch.library.Library("sgl_kernel", "DEF")
    for schema, function in (
        (attention.DECODE_SCHEMA, attention.decode_attention_cpu),
        (attention.EXTEND_SCHEMA, attention.extend_attention_cpu),
    ):
        library.define(schema)
        library.impl(function.__name__, function, "CPU")
    _libraries.append(library)


def _declare_torchvision() -> None:
    """Operators that torchvision describes at import; its compiled half, built for another torch, would define them."""
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
