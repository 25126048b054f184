"""Which form drafts, and what is refused before weights load, each with its reason."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.proposers.layer_set import ARCHITECTURE, KEY
from toolkit.proposers.layer_skip_start import Form, form, is_ours, refuse, why_refused

LLAMA = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 8, "vocab_size": 100}


def hf(config: dict[str, Any], *architectures: str) -> Any:
    return SimpleNamespace(architectures=list(architectures), to_dict=lambda: config)


def engine(change: Callable[[Any], None] = lambda config: None) -> Any:
    """A vLLM configuration that can be served, then changed."""
    told = {"target": "m", "layers": [0, 3], "num_hidden_layers": 4, "shape": {"hidden_size": 8}}
    draft = {**LLAMA, "num_hidden_layers": 2, KEY: told}
    config = SimpleNamespace(
        use_v2_model_runner=False,
        additional_config={},
        lora_config=None,
        kv_transfer_config=None,
        model_config=SimpleNamespace(hf_config=hf(dict(LLAMA)), quantization=None),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        speculative_config=SimpleNamespace(
            draft_model_config=SimpleNamespace(hf_config=hf(draft, ARCHITECTURE)),
            draft_parallel_config=SimpleNamespace(tensor_parallel_size=1),
            parallel_drafting=False,
            use_heterogeneous_vocab=False,
            kv_cache_dtype=None,
            quantization=None,
        ),
    )
    change(config)
    return config


def sets(path: str, value: Any) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        *way, last = path.split(".")
        for part in way:
            config = getattr(config, part)
        setattr(config, last, value)

    return change


def target(**keys: Any) -> Callable[[Any], None]:
    return sets("model_config.hf_config", hf({**LLAMA, **keys}))


class TestForm:
    @pytest.mark.parametrize(
        ("v2", "asked", "found"),
        [
            (False, None, "shared"),
            (False, "shared", "shared"),
            (False, "own", "own"),
            (True, None, "own"),
            (True, "own", "own"),
            (True, "shared", "shared"),  # which is then refused
        ],
    )
    def test_it_is_what_the_engine_lets_unless_asked_for(self, v2: bool, asked: str | None, found: str) -> None:
        config = engine(sets("use_v2_model_runner", v2))
        config.additional_config = {"toolkit": {"layer_cache": asked}} if asked else {}
        assert form(config)[0] == found

    def test_the_reason_says_how_to_have_the_better_one(self) -> None:
        assert "VLLM_USE_V2_MODEL_RUNNER=0" in form(engine(sets("use_v2_model_runner", True)))[1]

    def test_another_word_is_refused(self) -> None:
        config = engine(sets("additional_config", {"toolkit": {"layer_cache": "both"}}))
        with pytest.raises(ValueError, match="'both' is neither shared nor own"):
            form(config)

    @pytest.mark.parametrize("given", [None, {}, {"other": 1}, {"toolkit": None}, "text"])
    def test_options_of_others_are_no_matter(self, given: Any) -> None:
        assert form(engine(sets("additional_config", given)))[0] == "shared"


@pytest.mark.parametrize("shape", ["shared", "own"])
def test_a_plain_target_is_served(shape: Form) -> None:
    assert why_refused(engine(), shape) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (sets("use_v2_model_runner", True), "VLLM_USE_V2_MODEL_RUNNER=0"),
        (target(layer_types=["full_attention", "sliding_attention"] * 2), "more than one KV group"),
        (target(n_routed_experts=64, n_shared_experts=2), "mixture of experts"),
        (target(quantization_config={"quant_method": "bitsandbytes"}), "bitsandbytes"),
        (sets("model_config.quantization", "bitsandbytes"), "bitsandbytes"),
        (target(hidden_size=16), "hidden_size 16, not 8"),
        (target(num_hidden_layers=5), "num_hidden_layers 5, not 4"),
        (sets("parallel_config.pipeline_parallel_size", 2), "pipeline parallelism"),
        (sets("parallel_config.tensor_parallel_size", 2), "draft_tensor_parallel_size is 1 and the target's 2"),
        (sets("parallel_config.decode_context_parallel_size", 2), "context parallelism"),
        (sets("lora_config", object()), "LoRA"),
        (sets("kv_transfer_config", object()), "KV connector"),
        (sets("speculative_config.parallel_drafting", True), "parallel_drafting"),
        (sets("speculative_config.use_heterogeneous_vocab", True), "another vocabulary"),
        (sets("speculative_config.kv_cache_dtype", "fp8"), "kv_cache_dtype"),
        (sets("speculative_config.quantization", "fp8"), "quantization is the target's"),
        (sets("speculative_config.draft_model_config.hf_config", hf(LLAMA)), "toolkit layer-skip make"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(change: Callable[[Any], None], said: str) -> None:
    with pytest.raises(ValueError, match="layer skip cannot serve this") as refused:
        refuse(engine(change), "shared")
    assert said in str(refused.value)


def test_a_quantized_target_is_served_where_its_layers_stay_whole() -> None:
    assert why_refused(engine(sets("model_config.quantization", "awq_marlin")), "shared") is None


def test_a_second_cache_of_a_quantized_one_is_refused() -> None:
    fp8 = engine(sets("cache_config.cache_dtype", "fp8_e4m3"))
    assert why_refused(fp8, "shared") is None
    assert "scales" in (why_refused(fp8, "own") or "")


def test_only_our_architecture_is_ours() -> None:
    assert is_ours(engine())
    assert not is_ours(
        engine(sets("speculative_config.draft_model_config.hf_config.architectures", ["LlamaForCausalLM"]))
    )
    assert not is_ours(engine(sets("speculative_config", None)))
