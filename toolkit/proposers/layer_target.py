"""Which targets a draft of their own layers can be made of, told from config.json alone, before any weights load.

A view of some layers is right where each layer is a function of the hidden states, the positions and its own KV, and
where all layers keep their KV in one group. Only kinds of models are served that were read for this.
"""

from collections.abc import Mapping
from typing import Any

KINDS = ("llama", "mistral", "qwen2", "qwen3")
QUANTIZED = ("fp8", "compressed-tensors", "awq", "gptq", "modelopt")
"""Quantizations that keep all they need in the weights of each layer, so a layer runs alone as it runs in the model."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
_RECURRENT = ("layers_block_type", "hybrid_override_pattern", "full_attention_interval", "attn_layer_period")


def why_not(config: Mapping[str, Any]) -> str | None:
    """Why the model that `config` (the content of its config.json) describes cannot draft with its own layers, or None.

    Sources: vLLM 0.32, model_executor/layers/fused_moe/runner/moe_runner.py (expert layers are handed out by a counter
    of the pass); v1/spec_decode (one KV cache group).
    """
    if any(config.get(key) for key in _EXPERTS):
        return (
            "a mixture of experts: vLLM hands out expert layers by their count in a pass, which a shorter pass breaks"
        )
    kinds = config.get("layer_types")
    if any(config.get(key) for key in _RECURRENT) or (isinstance(kinds, list) and set(kinds) - {"full_attention"}):
        return "hybrid attention: its layers keep their memory in more than one KV group, and a draft reads only one"
    kind = config.get("model_type")
    if kind not in KINDS:
        return f"model_type {str(kind)[:40]!r} is not served, only {', '.join(KINDS)}"
    # Qwen writes a sliding_window into every config and uses it only when told to.
    if config.get("use_sliding_window", kind == "mistral") and config.get("sliding_window"):
        return "a sliding window: what the draft may still read is not checked here"
    if type(config.get("num_hidden_layers")) is not int or config["num_hidden_layers"] < 2:
        return "it has no num_hidden_layers of 2 or more: there is nothing to skip"
    told = config.get("quantization_config")
    if isinstance(told, Mapping) and told.get("quant_method") not in QUANTIZED:
        method = str(told.get("quant_method"))[:40]
        return f"quantization {method!r}: not known to keep each layer whole, as {', '.join(QUANTIZED)} do"
    return None
