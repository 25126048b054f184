"""What is settled before an engine loads weights: which form drafts, and whether this target can be served at all.

All is read from vLLM's configuration object (0.32.0, vllm/config/vllm.py); nothing of vLLM is imported.
"""

from collections.abc import Mapping
from typing import Any, Literal

from toolkit.errors import InputError
from toolkit.proposers.layer_set import ARCHITECTURE, of_config
from toolkit.proposers.layer_target import QUANTIZED, why_not

Form = Literal["shared", "own"]
OPTION = "layer_cache"
"""Under `toolkit` in vLLM's `additional_config`: shared or own."""


def is_ours(vllm_config: Any) -> bool:
    """Whether this engine drafts with a draft directory of ours."""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    return ARCHITECTURE in (getattr(getattr(draft, "hf_config", None), "architectures", None) or [])


def form(vllm_config: Any) -> tuple[Form, str]:
    """Which form drafts here, and why. Raises ValueError for an option that is neither."""
    asked = _asked(vllm_config)
    if asked == "own":
        return "own", "it was asked for"
    if vllm_config.use_v2_model_runner and asked is None:
        return "own", (
            "model runner V2 builds its drafter in another way, where a shared cache was not seen to work. Agreement "
            "is lower than with a shared one: VLLM_USE_V2_MODEL_RUNNER=0 has that"
        )
    return "shared", "model runner V1 lets it"


def refuse(vllm_config: Any, shape: Form) -> None:
    """Raises ValueError where layer skip cannot serve, with the reason."""
    if reason := why_refused(vllm_config, shape):
        raise ValueError(f"layer skip cannot serve this: {reason}.")


def why_refused(vllm_config: Any, shape: Form) -> str | None:
    """The reason, or None."""
    model, speculative = vllm_config.model_config, vllm_config.speculative_config
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    config: Mapping[str, Any] = model.hf_config.to_dict()
    try:
        draft = of_config(speculative.draft_model_config.hf_config.to_dict())
    except InputError as error:
        return str(error).rstrip(".")
    if reason := why_not(config):
        return f"the target is {reason}" if reason.startswith("a ") else reason
    if reason := draft.mismatch(config):
        return f"the draft directory: {reason}"
    tensor = parallel.tensor_parallel_size
    draft_tensor = speculative.draft_parallel_config.tensor_parallel_size
    quantization = model.quantization
    rules = {
        "model runner V2 builds its drafter in another way, and a draft over the target's cache is made for V1: set "
        "VLLM_USE_V2_MODEL_RUNNER=0": shape == "shared" and vllm_config.use_v2_model_runner,
        "pipeline parallelism spreads the target's layers over processes, and a draft needs them in one": (
            parallel.pipeline_parallel_size > 1
        ),
        f"draft_tensor_parallel_size is {draft_tensor} and the target's {tensor}: its layers are the target's, leave "
        "it out": draft_tensor != tensor,
        "context parallelism spreads the cache over processes": any(
            getattr(parallel, f"{kind}_context_parallel_size", 1) > 1 for kind in ("decode", "prefill")
        ),
        "LoRA changes the target's layers request by request, and a draft runs them without": (
            vllm_config.lora_config is not None
        ),
        "a KV connector would be handed the draft's keys and values as the target's": (
            shape == "shared" and vllm_config.kv_transfer_config is not None
        ),
        "parallel_drafting is for models that were trained for it": speculative.parallel_drafting,
        "use_heterogeneous_vocab is for a draft with another vocabulary": speculative.use_heterogeneous_vocab,
        "the draft's kv_cache_dtype is the target's: leave it out": speculative.kv_cache_dtype is not None,
        "the draft's quantization is the target's: leave it out": speculative.quantization is not None,
        f"quantization {quantization!r} is not known to keep each layer whole, as {', '.join(QUANTIZED)} do": (
            quantization is not None and not str(quantization).startswith(QUANTIZED)
        ),
        f"a KV cache in {cache.cache_dtype} has scales in the layer that a second cache would not have": (
            shape == "own" and str(cache.cache_dtype).startswith(("fp8", "int8", "nvfp4"))
        ),
    }
    return next((reason for reason, holds in rules.items() if holds), None)


def _asked(vllm_config: Any) -> Form | None:
    given = vllm_config.additional_config
    options = given.get("toolkit", {}) if isinstance(given, Mapping) else {}
    asked = options.get(OPTION) if isinstance(options, Mapping) else None
    if asked not in (None, "shared", "own"):
        raise ValueError(f"additional_config.toolkit.{OPTION}: {asked!r} is neither shared nor own.")
    return asked
