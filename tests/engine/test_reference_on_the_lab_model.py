"""The reference loop on a real model in fp32: greedy speculation is plain decoding, token for token."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import InputError
from toolkit.lab.causal_lm import TransformersModel, keep_layers, load_model
from toolkit.lab.model import ensure_lab_model
from toolkit.lab.reference import Drafter, LookupDrafter, ModelDrafter, Sampling, Step, generate

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

# It can be copied in part, so prompt lookup finds something; and not only copied.
QUESTION = (
    "Repeat this list of boats, then say which one you like best: the red boat of Tali Boredo, "
    "the green boat of Wemi Tosale, the red boat of Dova Nimera."
)
TOKENS = 48
KEPT = [*range(12), *range(15, 30)]  # of 30 layers
NEAR = 1e-3  # fp32 logits of one token read in another batch shape


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return load_model(ensure_lab_model())


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ensure_lab_model())
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answer(model: TransformersModel, prompt: Sequence[int], drafter: Drafter | None = None) -> list[Step]:
    return list(generate(model, prompt, Sampling(), np.random.default_rng(0), TOKENS, drafter, 4))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.fixture(scope="module")
def plain(model: TransformersModel, prompt: list[int]) -> list[int]:
    return tokens(answer(model, prompt))


@pytest.fixture(scope="module")
def looked_up(model: TransformersModel, prompt: list[int]) -> list[Step]:
    return answer(model, prompt, LookupDrafter(model.size))


@pytest.fixture(scope="module")
def skipped(model: TransformersModel, prompt: list[int]) -> list[Step]:
    return answer(model, prompt, ModelDrafter(keep_layers(model, KEPT)))


def test_prompt_lookup_answers_as_plain_decoding(looked_up: list[Step], plain: list[int]) -> None:
    assert tokens(looked_up) == plain


def test_prompt_lookup_is_right_at_times(looked_up: list[Step]) -> None:
    """Or the test above would have checked nothing."""
    assert 0 < sum(step.accepted for step in looked_up) < sum(step.drafted for step in looked_up)


def test_layer_skip_answers_as_plain_decoding(skipped: list[Step], plain: list[int]) -> None:
    assert tokens(skipped) == plain


def test_layer_skip_is_right_at_times(skipped: list[Step]) -> None:
    assert 0 < sum(step.accepted for step in skipped) < sum(step.drafted for step in skipped)


def test_a_cropped_cache_reads_as_if_the_rest_had_never_been(model: TransformersModel, prompt: list[int]) -> None:
    model.crop(0)
    expected = model.extend(prompt[:20])[-4:]
    model.extend(prompt[20:30])
    model.crop(16)
    assert np.abs(model.extend(prompt[16:20]) - expected).max() < NEAR


def test_a_cache_can_be_emptied(model: TransformersModel, prompt: list[int]) -> None:
    model.extend(prompt[:3])
    model.crop(0)
    assert model.length == 0


@pytest.fixture(scope="module")
def small() -> TransformersModel:
    """Four layers of random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=50, num_hidden_layers=4, tie_word_embeddings=True, **shape)
    return TransformersModel(LlamaForCausalLM(config).eval())


class TestKeepLayers:
    def test_reads_as_the_network_without_the_others(self, small: TransformersModel) -> None:
        import torch

        cut = deepcopy(small.network)
        cut.model.layers = torch.nn.ModuleList([cut.model.layers[i] for i in (0, 2, 3)])
        with torch.inference_mode():
            expected = cut(torch.tensor([[5, 6, 7]]), use_cache=False).logits[0].numpy()
        np.testing.assert_allclose(keep_layers(small, [0, 2, 3]).extend([5, 6, 7]), expected, atol=1e-6)

    def test_takes_no_memory_for_weights(self, small: TransformersModel) -> None:
        places = {weight.data_ptr() for weight in small.network.parameters()}
        assert {weight.data_ptr() for weight in keep_layers(small, [1, 3]).network.parameters()} < places

    def test_has_a_cache_of_its_own(self, small: TransformersModel) -> None:
        small.crop(0)
        keep_layers(small, [1, 3]).extend([5, 6, 7])
        assert small.length == 0

    @pytest.mark.parametrize("kept", [[], [1, 0], [1, 1], [0, 4], [-1, 0]])
    def test_layers_that_are_not_there_are_refused(self, small: TransformersModel, kept: list[int]) -> None:
        with pytest.raises(InputError, match="0 to 3"):
            keep_layers(small, kept)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no model"):
        load_model(tmp_path)
