"""How big a model is, from its config.json alone: parameters, weight bytes, KV bytes a token.

Counted exactly for dense decoders of the Llama, Mistral, Qwen2 and Qwen3 kind and for EAGLE-3 heads. Anything else is
refused: a count that is nearly right would turn a prediction wrong without a sign.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolkit.errors import InputError
from toolkit.launch.models import config_folder


@dataclass(frozen=True, slots=True)
class Format:
    """How a linear weight of a block is stored: bytes each, and the arithmetic its kernels multiply in."""

    bytes: float
    arithmetic: str


# Tables (embedding, output head), norms and biases stay in the 16-bit dtype, as public checkpoints leave them.
QUANTIZATIONS = {
    "fp8": Format(1, "fp8"),  # a scale per tensor or channel: no bytes to speak of
    "nvfp4": Format(4.5 / 8, "fp4"),  # one 8-bit scale per 16 weights
    "mxfp4": Format(4.25 / 8, "bf16"),  # one 8-bit scale per 32 weights (OCP MX); weight-only kernels
    "awq": Format((4 + 20 / 128) / 8, "bf16"),  # 16-bit scale and 4-bit zero point per 128 weights; weight-only
    "gptq": Format((4 + 20 / 128) / 8, "bf16"),
}
DTYPES = ("bfloat16", "float16")
# What engines and checkpoints write, in the order in which it is looked for.
_SPELLINGS = {"modelopt_fp4": "nvfp4", "float-quantized": "fp8"} | {name: name for name in QUANTIZATIONS}
_Count = Annotated[int, Field(ge=1, le=10**8)]
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
_Model = TypeVar("_Model", bound=BaseModel)
_KINDS = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Counts of one model as it is served.

    A pass reads every weight once but not the embedding table: of that it looks up one row a token. A tied table is
    the output head too and is read. An EAGLE-3 head is counted without a table: it uses the target's.
    """

    name: str
    layers: int
    hidden_size: int
    parameters: int  # a tied table counts once
    embedding_parameters: int  # of these, the embedding table
    active_parameters: int  # of these, what one token is multiplied with
    weight_bytes: int
    read_bytes: int  # of these, what one pass reads
    kv_bytes_per_token: int
    arithmetic: str  # "bf16", "fp8" or "fp4": the row of a machine's compute table


def model_size(name: str, dtype: str = "auto", quantization: str | None = None, kv_dtype: str = "auto") -> ModelSize:
    """The size of `name` (hub name or folder) from its config.json.

    `dtype` as a profile has it; `auto` is 16 bits, as engines serve 32-bit checkpoints. `quantization` as a profile has
    it, else what config.json declares. `kv_dtype` is `auto` (that of the weights' dtype) or a kind of fp8.

    Raises InputError when no config.json is on this machine, or it describes a model that is not counted here.
    """
    file = Path(config_folder(name)) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: is no JSON object.")
    if dtype not in ("auto", *DTYPES):
        raise InputError(f"model {name}: sizes are counted for dtype {', '.join(DTYPES)} or auto, not {dtype!r}.")
    if kv_dtype != "auto" and kv_dtype not in DTYPES and not kv_dtype.startswith("fp8"):
        raise InputError(
            f"model {name}: the KV cache is counted in {', '.join(DTYPES)}, fp8 or auto, not {kv_dtype!r}."
        )
    try:
        return count(name, config, quantization, kv_bytes=1 if kv_dtype.startswith("fp8") else 2)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def count(name: str, config: Mapping[str, Any], quantization: str | None = None, kv_bytes: int = 2) -> ModelSize:
    """The size of the model that `config`, the content of a config.json, describes. Raises InputError."""
    quantization = _quantization(config, quantization)
    head = _is_eagle3(config)
    inner = config.get("transformer_layer_config")
    shape = _shape(inner if head and isinstance(inner, Mapping) else config)
    hidden, vocabulary = shape.hidden_size, shape.vocab_size
    linear, kept = shape.linear_parameters, shape.kept_parameters
    if head:
        own = _valid(_Head, config)
        linear += 3 * (own.target_hidden_size or hidden) * hidden  # fuses three layers of the target
        linear += hidden * shape.qkv_width  # the first layer reads the embedding beside the hidden state
        kept += hidden + (own.draft_vocab_size or vocabulary) * hidden  # norm of the hidden state, own output head
        embedding, unread = 0, 0
    else:
        embedding = vocabulary * hidden
        unread = 0 if shape.tie_word_embeddings else embedding
        kept += embedding + unread  # an untied head is as big as the table
    stored = QUANTIZATIONS[quantization] if quantization else Format(2, "bf16")
    weight_bytes = round(linear * stored.bytes) + 2 * kept
    return ModelSize(
        name=name,
        layers=shape.num_hidden_layers,
        hidden_size=hidden,
        parameters=linear + kept,
        embedding_parameters=embedding,
        active_parameters=linear + kept - unread,
        weight_bytes=weight_bytes,
        read_bytes=weight_bytes - 2 * unread,
        kv_bytes_per_token=2 * shape.num_hidden_layers * shape.kv_heads * shape.head_size * kv_bytes,
        arithmetic=stored.arithmetic,
    )


class _Head(BaseModel):
    """What an EAGLE-3 head adds to its layer."""

    target_hidden_size: _Count | None = None
    draft_vocab_size: _Count | None = None


class _Shape(BaseModel):
    """The keys of a config.json that say how many weights a decoder has."""

    model_config = ConfigDict(frozen=True)

    model_type: str
    vocab_size: _Count
    hidden_size: _Count
    intermediate_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def qkv_width(self) -> int:
        return (self.num_attention_heads + 2 * self.kv_heads) * self.head_size

    @property
    def linear_parameters(self) -> int:
        """Query, key, value, output, gate, up and down of all layers: what a quantization shrinks."""
        attention = (self.qkv_width + self.num_attention_heads * self.head_size) * self.hidden_size
        return self.num_hidden_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def kept_parameters(self) -> int:
        """Norms and biases, the last norm among them."""
        layer = 2 * self.hidden_size + (2 * self.head_size if self.model_type == "qwen3" else 0)
        if self.attention_bias or self.model_type == "qwen2":
            layer += self.qkv_width
        if self.attention_bias and self.model_type != "qwen2":
            layer += self.hidden_size
        if self.mlp_bias:
            layer += 2 * self.intermediate_size + self.hidden_size
        return self.num_hidden_layers * layer + self.hidden_size


def _shape(config: Mapping[str, Any]) -> _Shape:
    if any(config.get(key) for key in _EXPERTS):
        raise InputError("a mixture of experts: what a pass reads depends on its router, and is not counted here.")
    shape = _valid(_Shape, config)
    if shape.model_type not in _KINDS:
        raise InputError(f"model_type {shape.model_type!r} is not counted here, only {', '.join(_KINDS)}.")
    if shape.head_dim is None and shape.hidden_size % shape.num_attention_heads:
        raise InputError("hidden_size is no multiple of num_attention_heads, and there is no head_dim.")
    # Qwen writes a sliding_window into every config and uses it only when told to.
    window = config.get("use_sliding_window", shape.model_type == "mistral") and config.get("sliding_window")
    if window:
        raise InputError("a sliding window: the KV cache that a token reads has a bound, which is not counted here.")
    return shape


def _valid(model: type[_Model], config: Mapping[str, Any]) -> _Model:
    try:
        return model.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def _is_eagle3(config: Mapping[str, Any]) -> bool:
    words = f"{config.get('architectures')} {config.get('speculators_model_type')}".lower()
    return "eagle3" in words


def _quantization(config: Mapping[str, Any], asked: str | None) -> str | None:
    """The one that was asked for, else the one that config.json declares; None without either."""
    told = config.get("quantization_config")
    told = told if isinstance(told, Mapping) else {}
    declared = " ".join(str(told[key]) for key in ("quant_method", "quant_algo", "format") if key in told)
    words = [text for text in (asked, declared) if text]
    if not words:
        return None
    found = next((name for text in words for spelling, name in _SPELLINGS.items() if spelling in text.lower()), None)
    if found is None:
        known = ", ".join(QUANTIZATIONS)
        raise InputError(f"quantization {words[0][:80]!r} is not counted here, only {known}: name the nearest.")
    if found in ("awq", "gptq") and told.get("bits", 4) != 4:
        raise InputError(f"{found} with {told['bits']} bits is not counted here, only with 4.")
    return found
