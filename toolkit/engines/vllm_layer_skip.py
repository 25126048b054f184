"""How vLLM comes to draft with layers of the target: our architecture is known to it, and our classes take the place.

A draft directory of ours is a draft model to vLLM, whose runner builds `DraftModelProposer` (V1) or
`StandaloneARSpeculator` (V2) for it. Those classes are told, when one is built for such a directory and for nothing
else, to be ours, which are their subclasses. Nothing heavy is imported here: a change waits until vLLM itself imports
the module, in the one process that drafts. Facts of 0.32.0.
"""

from collections.abc import Callable
from typing import Any

from toolkit.engines.after_import import when_imported
from toolkit.proposers.layer_set import ARCHITECTURE
from toolkit.proposers.layer_skip_start import is_ours

WRITTEN_FOR = "0.32."
MODEL = "toolkit.proposers.layer_skip_model:LayerSkipForCausalLM"
V1 = ("vllm.v1.spec_decode.draft_model", "DraftModelProposer")
V2 = ("vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator", "StandaloneARSpeculator")


def register_layer_skip(version: str) -> None:
    """Once or many times, in any process of vLLM. In a version that it was not written for no class takes a place.

    Then the architecture's own class ends the boot and says so.
    """
    from vllm.model_executor.models import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.models:
        ModelRegistry.register_model(ARCHITECTURE, MODEL)
    if not version.startswith(WRITTEN_FOR):
        return
    when_imported(V1[0], _take_place_v1)
    when_imported(V2[0], _take_place_v2)


def _take_place_v1(module: Any) -> None:
    take_place(getattr(module, V1[1]), _proposer)


def _take_place_v2(module: Any) -> None:
    take_place(getattr(module, V2[1]), _speculator)


def take_place(stock: type, ours: Callable[[Any], type]) -> None:
    """Let `stock(vllm_config, ...)` build `ours(vllm_config)`, a subclass, where the draft directory is one of ours.

    A subclass of `stock` that is asked for by its own name is built as it was.
    """
    if "__new__" in vars(stock):
        return

    def new(cls: type, vllm_config: Any, *_: Any, **__: Any) -> Any:
        return object.__new__(ours(vllm_config) if cls is stock and is_ours(vllm_config) else cls)

    stock.__new__ = staticmethod(new)  # type: ignore[assignment]


def _proposer(vllm_config: Any) -> type:
    from toolkit.proposers.layer_skip import proposer_for

    found: type = proposer_for(vllm_config)
    return found


def _speculator(_: Any) -> type:
    from toolkit.proposers.layer_skip_v2 import OwnCacheSpeculator

    return OwnCacheSpeculator
