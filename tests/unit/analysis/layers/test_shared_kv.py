"""Drafts under shared KV, all places at once, against a plain loop that drafts token by token through a cache."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from toolkit.analysis.forecast.estimate import IntArray
from toolkit.analysis.layers.shared_kv import Recording, Scorer, Text, continuations
from toolkit.errors import InputError

PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9, 10], [4], [30, 31, 32, 33]]
LAYERS = 5
NO_END = 59  # not said by these models
SETS = [(0, 1, 2, 3), (0, 1, 3, 4), (1, 2, 3, 4), (0, 4), (2,)]


def network(kind: str) -> Any:
    """A random decoder of five layers, in which layers matter little enough for some drafts to be kept."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, initializer_range=0.35, eos_token_id=NO_END,
        bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on so small a model wait for each other more than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recorded(kind: str) -> Recording:
    made = network(kind)
    return Recording(made, continuations(made, PROMPTS, 10, 4, eos=NO_END))


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded("llama")


def plain_loop(network: Any, text: Text, layers: Sequence[int], k: int) -> list[int]:
    """Drafts kept from each start: the target's cache of what comes before, then token by token through `layers`."""
    import torch
    from transformers import DynamicCache

    network.config._attn_implementation = "eager"
    ids, cache, found = [*text.prompt, *text.answer], DynamicCache(), []
    with torch.inference_mode():
        network(torch.tensor([ids]), past_key_values=cache, use_cache=True)
        for start in reversed(range(len(text.prompt), len(text.prompt) + text.starts)):
            for one in cache.layers:
                one.keys, one.values = one.keys[:, :, :start], one.values[:, :, :start]
            token, kept = ids[start], 0
            for position in range(start, min(start + k, len(ids) - 1)):
                hidden = network.model.embed_tokens(torch.tensor([[token]]))
                turned = network.model.rotary_emb(hidden, torch.tensor([[position]]))
                for layer in layers:
                    hidden = network.model.layers[layer](hidden, position_embeddings=turned, past_key_values=cache)
                token = int(network.lm_head(network.model.norm(hidden))[0, -1].argmax())
                if token != ids[position + 1]:
                    break
                kept += 1
            found.append(kept)
    return found[::-1]


def loop(recording: Recording, layers: Sequence[int]) -> list[int]:
    """The same of all texts of a recording."""
    copy = deepcopy(recording.network)
    return [kept for text in recording.texts for kept in plain_loop(copy, text, layers, 4)]


class TestKept:
    @pytest.mark.parametrize("layers", SETS)
    def test_it_is_what_a_plain_loop_keeps(self, recording: Recording, layers: tuple[int, ...]) -> None:
        assert recording.kept(layers, 4).tolist() == loop(recording, layers)

    @pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3"])
    def test_so_it_is_in_every_kind_that_is_served(self, kind: str) -> None:
        recording = recorded(kind)
        assert recording.kept((0, 1, 3, 4), 4).tolist() == loop(recording, (0, 1, 3, 4))

    def test_the_comparison_sees_drafts_of_every_length(self, recording: Recording) -> None:
        assert len({n for layers in SETS for n in recording.kept(layers, 4)}) >= 3

    def test_all_layers_guess_every_token(self, recording: Recording) -> None:
        ahead = [min(4, len(text.answer) - 1 - start) for text in recording.texts for start in range(text.starts)]
        assert recording.kept(range(LAYERS), 4).tolist() == ahead

    def test_shorter_drafts_keep_the_same_as_far_as_they_go(self, recording: Recording) -> None:
        assert (recording.kept((0, 1, 3, 4), 2) == np.minimum(recording.kept((0, 1, 3, 4), 4), 2)).all()

    def test_drafts_end_at_the_depth_that_is_enough(self, recording: Recording) -> None:
        asked: list[int] = []

        def enough(depth: int, counts: IntArray) -> bool:
            asked.append(depth)
            return depth == 2

        assert (recording.kept((0, 1, 3, 4), 4, enough) == recording.kept((0, 1, 3, 4), 2)).all()
        assert asked == [1, 2]


class TestTexts:
    def test_the_answers_are_greedy_whatever_stands_beside_them(self) -> None:
        made = network("llama")
        together = continuations(made, PROMPTS, 8, 2, eos=NO_END)
        alone = [continuations(made, [prompt], 8, 2, eos=NO_END)[0] for prompt in PROMPTS]
        assert together == alone

    def test_the_target_says_what_it_wrote(self, recording: Recording) -> None:
        assert (recording.truth == recording.token).all()

    def test_an_answer_ends_with_its_end(self) -> None:
        made = network("llama")
        third = continuations(made, [PROMPTS[0]], 8, 2, eos=NO_END)[0].answer[2]
        (text,) = continuations(made, [PROMPTS[0]], 8, 2, eos=third)
        assert text.answer[-1] == third
        assert text.starts == len(text.answer) - 1

    def test_no_draft_reaches_beyond_an_end(self) -> None:
        made = network("llama")
        recording = Recording(made, [Text((1, 2), (3, 4, 5), 2)])
        assert (recording.kept(range(LAYERS), 4) <= [2, 1]).all()

    def test_answers_of_an_end_alone_are_refused(self) -> None:
        with pytest.raises(InputError, match="ended with its first token"):
            Recording(network("llama"), [Text((1, 2), (3,), 0)])


class TestScorer:
    @pytest.mark.parametrize("layers", SETS)
    def test_agreement_is_the_share_of_first_drafts_kept(self, recording: Recording, layers: tuple[int, ...]) -> None:
        assert Scorer(recording).agreement(layers) == (recording.kept(layers, 1) == 1).mean()

    def test_a_score_does_not_depend_on_where_the_search_stands(self, recording: Recording) -> None:
        fresh = [Scorer(recording).agreement(layers) for layers in SETS]
        moving = Scorer(recording)
        moved = []
        for layers in SETS:
            moved.append(moving.agreement(layers))
            moving.settle(layers)
        assert moved == fresh

    def test_a_set_is_run_once(self, recording: Recording) -> None:
        scorer = Scorer(recording)
        scorer.agreement((0, 1))
        scorer.agreement((0, 1))
        assert scorer.evaluations == 1
