"""Parameters, bytes and KV of public models against their published numbers; what is not counted is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.launch.model_size import ModelSize, count, model_size

LLAMA_8B, LLAMA_1B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
FACTS = Path(__file__).parents[2] / "data" / "models"
# Parameters that the hubs and papers state. Qwen3-0.6B is tied: its checkpoint stores the table twice (751,632,384).
PUBLISHED = {
    LLAMA_8B: 8_030_261_248,
    LLAMA_1B: 1_235_814_400,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    str(FACTS / "lab--SmolLM2-135M-Instruct"): 134_515_008,
}


def config(name: str = LLAMA_8B, **changes: Any) -> dict[str, Any]:
    """The config.json of a model whose facts we keep, changed; a None takes the key away."""
    facts = json.loads((FACTS / name.replace("/", "--") / "config.json").read_text())
    return {key: value for key, value in {**facts, **changes}.items() if value is not None}


def write(folder: Path, text: str) -> str:
    (folder / "config.json").write_text(text)
    return str(folder)


class TestParameters:
    @pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
    def test_they_are_the_published_ones(self, name: str, parameters: int) -> None:
        assert model_size(name).parameters == parameters

    def test_without_tying_the_output_head_comes_on_top(self) -> None:
        tied, untied = count("", config(LLAMA_1B)), count("", config(LLAMA_1B, tie_word_embeddings=False))
        assert untied.parameters - tied.parameters == tied.embedding_parameters == 128_256 * 2048

    def test_one_key_value_head_each_when_the_config_names_none(self) -> None:
        assert count("", config(num_key_value_heads=None)) == count("", config(num_key_value_heads=32))

    @pytest.mark.parametrize(
        ("biases", "more"),
        [({"attention_bias": True}, 4096 + 2 * 1024 + 4096), ({"mlp_bias": True}, 2 * 14_336 + 4096)],
    )
    def test_biases_count(self, biases: dict[str, bool], more: int) -> None:
        assert count("", config(**biases)).parameters - count("", config()).parameters == 32 * more

    def test_an_eagle3_head_is_its_layer_its_fusion_and_its_own_output_head(self) -> None:
        head = model_size("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
        attention = (4096 + 2 * 1024) * 2 * 4096 + 4096 * 4096
        feed_forward, fusion, output = 3 * 4096 * 14_336, 3 * 4096 * 4096, 32_000 * 4096
        assert head.parameters == attention + feed_forward + fusion + output + 4 * 4096

    def test_an_eagle3_head_in_the_speculators_form_is_counted_by_its_inner_config(self) -> None:
        head = model_size("RedHatAI/Qwen3-8B-speculator.eagle3")
        assert (head.layers, head.parameters) == (1, 399_523_840)

    def test_an_eagle3_head_has_no_table_of_its_own(self) -> None:
        assert model_size("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B").embedding_parameters == 0


class TestBytes:
    def test_of_the_weights_in_16_bits(self) -> None:
        assert model_size(LLAMA_8B).weight_bytes == 16_060_522_496

    def test_a_pass_reads_all_but_an_untied_embedding_table(self) -> None:
        size = model_size(LLAMA_8B)
        assert size.read_bytes == size.weight_bytes - 2 * 128_256 * 4096

    def test_a_pass_reads_a_tied_table_as_the_output_head(self) -> None:
        size = model_size(LLAMA_1B)
        assert size.read_bytes == size.weight_bytes

    def test_of_an_fp8_checkpoint(self) -> None:  # 9.08 GB: neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8
        assert model_size(LLAMA_8B, quantization="fp8").weight_bytes == pytest.approx(9.08e9, rel=1e-3)

    @pytest.mark.parametrize(
        ("quantization", "bits"), [("nvfp4", 4.5), ("mxfp4", 4.25), ("awq", 4.156), ("gptq", 4.156)]
    )
    def test_four_bits_and_their_scales(self, quantization: str, bits: float) -> None:
        tables_and_norms = 2 * 128_256 * 4096 + 65 * 4096
        linear = 8_030_261_248 - tables_and_norms
        size = model_size(LLAMA_8B, quantization=quantization)
        assert (size.weight_bytes - 2 * tables_and_norms) * 8 / linear == pytest.approx(bits, abs=1e-3)

    def test_quantization_leaves_the_number_of_parameters(self) -> None:
        assert model_size(LLAMA_8B, quantization="awq").parameters == PUBLISHED[LLAMA_8B]


class TestKVCache:
    @pytest.mark.parametrize(
        ("name", "kv_bytes"),
        [(LLAMA_8B, 131_072), (LLAMA_1B, 32_768), ("Qwen/Qwen3-8B", 147_456), ("Qwen/Qwen3-0.6B", 114_688)],
    )
    def test_bytes_a_token_in_16_bits(self, name: str, kv_bytes: int) -> None:
        assert model_size(name).kv_bytes_per_token == kv_bytes

    @pytest.mark.parametrize("kv_dtype", ["fp8", "fp8_e4m3"])
    def test_fp8_halves_it(self, kv_dtype: str) -> None:
        assert model_size(LLAMA_8B, kv_dtype=kv_dtype).kv_bytes_per_token == 65_536

    def test_a_head_has_that_of_its_one_layer(self) -> None:
        assert model_size("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B").kv_bytes_per_token == 131_072 / 32


class TestQuantization:
    @pytest.mark.parametrize(
        ("declared", "arithmetic"),
        [
            ({"quant_method": "fp8"}, "fp8"),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
            ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "fp4"),
            ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
            ({"quant_method": "awq", "bits": 4}, "bf16"),
        ],
    )
    def test_the_one_that_the_config_declares_is_taken(self, declared: dict[str, Any], arithmetic: str) -> None:
        assert count("", config(quantization_config=declared)).arithmetic == arithmetic

    def test_the_one_asked_for_comes_first(self) -> None:
        size = count("", config(quantization_config={"quant_method": "fp8"}), "awq_marlin")
        assert size == count("", config(), "awq")

    def test_what_the_request_leaves_open_the_config_says(self) -> None:
        declared = {"quant_method": "modelopt", "quant_algo": "FP8"}
        assert count("", config(quantization_config=declared), "modelopt") == count("", config(), "fp8")

    def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"quantization 'bitsandbytes' is not counted here, only fp8, nvfp4"):
            count("", config(), "bitsandbytes")

    def test_four_bit_methods_with_other_bits_are_refused(self) -> None:
        with pytest.raises(InputError, match="gptq with 8 bits"):
            count("", config(quantization_config={"quant_method": "gptq", "bits": 8}))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"num_local_experts": 8}, "a mixture of experts"),
            ({"num_experts": 128, "model_type": "qwen3_moe"}, "a mixture of experts"),
            ({"model_type": "gemma3"}, "model_type 'gemma3' is not counted here"),
            ({"model_type": "mistral", "sliding_window": 4096}, "a sliding window"),
            ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096}, "a sliding window"),
            ({"hidden_size": None}, "hidden_size: Field required"),
            ({"hidden_size": 0}, "hidden_size: Input should be greater"),
            ({"hidden_size": 10**400}, "hidden_size: Input should be less"),
            ({"num_attention_heads": 33}, "no multiple of num_attention_heads"),
            ({"architectures": ["Eagle3"], "draft_vocab_size": -1}, "draft_vocab_size: Input should be greater"),
        ],
    )
    def test_what_is_not_counted(self, changes: dict[str, Any], reason: str) -> None:
        with pytest.raises(InputError, match=reason):
            count("", config(**changes))

    def test_a_sliding_window_that_is_off_is_none(self) -> None:
        assert model_size("Qwen/Qwen2.5-7B-Instruct").layers == 28

    @pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '"\\ud800"'])
    def test_a_config_that_is_no_object(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(InputError, match=r"config\.json: (cannot be read|is no JSON object)"):
            model_size(write(tmp_path, text))

    def test_a_refusal_names_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=rf"^{tmp_path}/config\.json: model_type 'mamba'"):
            model_size(write(tmp_path, json.dumps(config(model_type="mamba"))))

    def test_a_model_that_is_not_on_this_machine(self) -> None:
        with pytest.raises(InputError, match=r"no config\.json of it is on this machine"):
            model_size("nobody/nothing")

    @pytest.mark.parametrize("kind", [{"dtype": "float32"}, {"kv_dtype": "int4"}])
    def test_a_dtype_that_is_not_counted(self, kind: dict[str, str]) -> None:
        with pytest.raises(InputError, match=r"not 'float32'|not 'int4'"):
            model_size(LLAMA_8B, **kind)


@given(
    changes=st.fixed_dictionaries(
        {
            "hidden_size": st.integers(1, 64).map(lambda n: 64 * n),
            "num_hidden_layers": st.integers(1, 100),
            "num_attention_heads": st.sampled_from([8, 16, 32]),
            "tie_word_embeddings": st.booleans(),
            "model_type": st.sampled_from(["llama", "qwen2", "qwen3"]),
        }
    ),
    quantization=st.sampled_from([None, "fp8", "nvfp4", "awq"]),
)
def test_parts_never_exceed_the_whole(changes: dict[str, Any], quantization: str | None) -> None:
    size: ModelSize = count("", config(**changes), quantization)
    assert 0 < size.embedding_parameters < size.parameters
    assert 0 < size.read_bytes <= size.weight_bytes <= 2 * size.parameters
    assert 0 < size.active_parameters <= size.parameters
