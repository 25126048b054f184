"""Which targets can draft with their own layers, told from config.json alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.proposers.layer_target import why_not

FACTS = Path(__file__).parents[2] / "data" / "models"
LLAMA = json.loads((FACTS / "meta-llama--Llama-3.1-8B-Instruct" / "config.json").read_text())
SERVED = [
    "lab--SmolLM2-135M-Instruct",
    "meta-llama--Llama-3.1-8B-Instruct",
    "Qwen--Qwen3-8B",
    "Qwen--Qwen2.5-7B-Instruct",
]


@pytest.mark.parametrize("name", SERVED)
def test_plain_decoders_are_served(name: str) -> None:
    assert why_not(json.loads((FACTS / name / "config.json").read_text())) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"num_experts": 128, "model_type": "qwen3_moe"}, "mixture of experts"),
        ({"n_routed_experts": 64, "model_type": "deepseek_v3"}, "mixture of experts"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 16}, "hybrid attention"),
        ({"layer_types": ["linear_attention", "full_attention"] * 16}, "hybrid attention"),
        ({"layers_block_type": ["mamba", "attention"]}, "hybrid attention"),
        ({"model_type": "gemma3_text"}, "model_type 'gemma3_text' is not served"),
        ({"model_type": None}, "is not served"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096}, "sliding window"),
        ({"num_hidden_layers": 1}, "nothing to skip"),
        ({"num_hidden_layers": "many"}, "nothing to skip"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization 'bitsandbytes'"),
        ({"quantization_config": {}}, "quantization 'None'"),
    ],
)
def test_what_a_view_cannot_serve_has_its_reason(change: dict[str, Any], reason: str) -> None:
    assert reason in str(why_not({**LLAMA, **change}))


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors", "awq", "gptq"])
def test_quantizations_of_whole_layers_are_served(method: str) -> None:
    assert why_not({**LLAMA, "quantization_config": {"quant_method": method}}) is None


def test_a_window_that_is_written_but_not_used_is_no_window() -> None:
    assert why_not({**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32768}) is None
