"""Two models of transformers, tiny and random: one tokenizer or a refusal, prompts, and a whole prediction."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.analysis.forecast.beta import Beta, BetaAsk, beta
from toolkit.analysis.forecast.two_models import LAYERS, load_two
from toolkit.analysis.workload import Prompt
from toolkit.errors import InputError

WORDS = ["<end>", "<user>", "<model>", "a", "cat", "sat", "on", "mats", "and", "what", "?", "!"]
CAT = Prompt(({"role": "user", "content": "a cat"},), "chat")
TEMPLATE = "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}<model>"


def save(folder: Path, layers: int, words: list[str] = WORDS, rows: int = 12, template: str | None = TEMPLATE) -> Path:
    """A random Llama over `words`, with `rows` rows in its head."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=rows, hidden_size=16, intermediate_size=16, num_hidden_layers=layers, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=0, bos_token_id=None, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    raw = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    raw.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", unk_token="<end>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("models")
    return str(save(root / "target", layers=2)), str(save(root / "draft", layers=1))


def ask(folders: tuple[str, str], tmp_path: Path, *prompts: str, **fields: Any) -> BetaAsk:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return BetaAsk(*folders, prompts=str(path), **{"k": 4, "tokens": 24, **fields})


@pytest.fixture(scope="module")
def predicted(folders: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Beta:
    return beta(ask(folders, tmp_path_factory.mktemp("ask"), *["a cat sat", "what ?"] * 12, requests=24))


class TestPrediction:
    def test_the_rule_keeps_what_was_predicted(self, predicted: Beta) -> None:
        found = predicted.expected
        bound = 5 * (0.25 / found.observed.n) ** 0.5  # passed by chance once in 1.7 million
        assert found.observed.value == pytest.approx(found.predicted.value, abs=bound)

    def test_the_loop_keeps_what_stepping_predicted(self, predicted: Beta) -> None:
        found = predicted.expected
        assert found.loop is not None
        bound = 5 * (0.25 / found.loop[0].n) ** 0.5
        assert found.loop[0].value == pytest.approx(found.acceptance.value, abs=bound)

    def test_the_texts_are_the_targets_own(self, predicted: Beta) -> None:
        assert predicted.expected.exact

    def test_a_model_is_always_kept_by_itself(self, folders: tuple[str, str], tmp_path: Path) -> None:
        found = beta(ask((folders[0], folders[0]), tmp_path, "a cat sat", "what ?"))
        assert found.expected.predicted.value == pytest.approx(1, abs=1e-6)


class TestPair:
    def test_prompts_go_through_the_chat_template(self, folders: tuple[str, str]) -> None:
        assert load_two(*folders).encode(CAT) == [1, 3, 4, 2]

    def test_without_a_template_they_are_plain_text(self, tmp_path: Path) -> None:
        folder = str(save(tmp_path / "plain", layers=1, template=None))
        assert load_two(folder, folder).encode(CAT) == [3, 4]

    def test_the_draft_may_be_the_target_with_layers_left_out(self, tmp_path: Path) -> None:
        models = load_two(str(save(tmp_path / "deep", layers=12)), LAYERS)
        assert (models.target.size, models.draft.size) == (12, 12)
        assert models.draft is not models.target

    def test_another_tokenizer_is_refused_naming_a_token(self, folders: tuple[str, str], tmp_path: Path) -> None:
        other = save(tmp_path / "other", layers=1, words=[*WORDS[:4], "dog", *WORDS[5:]])
        with pytest.raises(InputError, match=r"different tokenizers \('cat' is token 4 in one and none in"):
            load_two(folders[0], str(other))

    def test_a_head_of_another_size_is_refused(self, folders: tuple[str, str], tmp_path: Path) -> None:
        wide = save(tmp_path / "wide", layers=1, rows=16)
        with pytest.raises(InputError, match=r"its vocabulary has 16 tokens and the target's 12"):
            load_two(folders[0], str(wide))

    def test_a_folder_without_a_model_is_refused(self, folders: tuple[str, str], tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"holds no config\.json"):
            load_two(folders[0], str(tmp_path))

    def test_a_prompt_too_long_for_the_models_is_refused(self, folders: tuple[str, str], tmp_path: Path) -> None:
        with pytest.raises(InputError, match="prompt 2 has 52 tokens; with --tokens 24 it is longer than the 64"):
            beta(ask(folders, tmp_path, "cat", "cat " * 50))
