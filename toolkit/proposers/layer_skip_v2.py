"""The fallback form of layer skip on vLLM's model runner V2, which builds another class for a draft model.

Fact of vLLM 0.32.0: v1/worker/gpu/spec_decode/standalone_ar/speculator.py loads the draft in `load_draft_model`, and
its base finds the attention layers that are new. Not run by us: V2 needs Triton.
"""

from typing import Any

import torch
from torch import nn
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from toolkit.proposers.layer_skip import aliased, announce, draft_of
from toolkit.proposers.layer_skip_model import bytes_of_its_own
from toolkit.proposers.layer_skip_start import form, refuse


class OwnCacheSpeculator(StandaloneARSpeculator):  # type: ignore[misc]
    """Drafts as vLLM drafts with any model, one whose layers alias the target's and keep a KV cache of their own."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        """Raises ValueError, before any weights are loaded, for a target that it cannot serve; it says why."""
        refuse(vllm_config, form(vllm_config)[0])
        super().__init__(vllm_config, device)

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> Any:
        draft = aliased(self.vllm_config, target_model)
        told = draft_of(self.vllm_config)
        announce(self.vllm_config, told, bytes_of_its_own([self, draft], [target_model]), len(told.layers))
        return draft
