"""A view of some layers: the very modules, nothing new; and with caches of their own, only the attentions are."""

from typing import Any

import pytest
import torch
from torch import nn

from toolkit.proposers.layer_skip_model import (
    LayerSkipForCausalLM,
    attention_names,
    bytes_of_its_own,
    view,
    view_with_own_cache,
)


class Attention(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer_name, self.impl, self.kv_cache = name, object(), torch.zeros(4)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class SelfAttention(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.qkv, self.attn = nn.Linear(3, 3), Attention(f"{name}.attn")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attn(self.qkv(x))
        return out


class Layer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(f"{name}.self_attn"), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.self_attn(x))


class Inner(nn.Module):
    """Like vLLM's: its forward runs from start_layer to end_layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(7, 3), nn.LayerNorm(3)
        self.layers = nn.ModuleList(Layer(f"model.layers.{i}") for i in range(5))
        self.start_layer, self.end_layer, self.do_not_compile = 0, 5, False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in list(self.layers)[self.start_layer : self.end_layer]:
            x = layer(x)
        out: torch.Tensor = self.norm(x)
        return out


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = Inner(), nn.Linear(3, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.model(ids))
        return out


IDS = torch.tensor([1, 2, 3])


@pytest.fixture
def target() -> Any:
    torch.manual_seed(3)
    return Causal()


def by_hand(target: Any, layers: tuple[int, ...]) -> torch.Tensor:
    x = target.model.embed_tokens(IDS)
    for layer in layers:
        x = target.model.layers[layer](x)
    out: torch.Tensor = target.lm_head(target.model.norm(x))
    return out


class TestView:
    @pytest.mark.parametrize("layers", [(0,), (4,), (0, 1), (1, 3, 4), (0, 2, 3)])
    def test_it_runs_these_layers_and_no_others(self, target: Any, layers: tuple[int, ...]) -> None:
        assert torch.equal(view(target, layers)(IDS), by_hand(target, layers))

    def test_its_modules_are_the_targets(self, target: Any) -> None:
        draft = view(target, (1, 3))
        assert [id(one) for one in draft.model.layers] == [id(target.model.layers[i]) for i in (1, 3)]
        assert draft.lm_head is target.lm_head
        assert draft.model.embed_tokens is target.model.embed_tokens
        assert draft.model.norm is target.model.norm

    def test_nothing_of_it_is_new(self, target: Any) -> None:
        assert bytes_of_its_own([view(target, (1, 3))], [target]) == 0

    def test_the_target_stays_as_it_was(self, target: Any) -> None:
        before, whole = target.state_dict(keep_vars=True), target(IDS)
        view(target, (1, 3))
        assert [id(one) for one in target.state_dict(keep_vars=True).values()] == [id(one) for one in before.values()]
        assert (len(target.model.layers), target.model.end_layer, target.model.do_not_compile) == (5, 5, False)
        assert torch.equal(target(IDS), whole)

    def test_it_is_not_compiled(self, target: Any) -> None:
        assert view(target, (1,)).model.do_not_compile

    def test_it_follows_the_targets_weights(self, target: Any) -> None:
        draft = view(target, (1, 3))
        with torch.no_grad():
            target.model.layers[3].mlp.weight.add_(1)
        assert torch.equal(draft(IDS), by_hand(target, (1, 3)))

    def test_its_attentions_are_named_as_the_targets(self, target: Any) -> None:
        assert attention_names(view(target, (1, 3))) == {
            "model.layers.1.self_attn.attn",
            "model.layers.3.self_attn.attn",
        }


class TestViewWithOwnCache:
    def test_it_computes_the_same(self, target: Any) -> None:
        assert torch.equal(view_with_own_cache(target, (1, 3), {})(IDS), by_hand(target, (1, 3)))

    def test_its_attentions_are_new_by_name_and_known_to_the_engine(self, target: Any) -> None:
        known: dict[str, Any] = {"model.layers.1.self_attn.attn": object()}
        draft = view_with_own_cache(target, (1, 3), known)
        names = {"draft_model.layers.0.self_attn.attn", "draft_model.layers.1.self_attn.attn"}
        assert attention_names(draft) == names
        assert set(known) == {"model.layers.1.self_attn.attn", *names}
        assert known["draft_model.layers.1.self_attn.attn"] is draft.model.layers[1].self_attn.attn

    def test_the_targets_attentions_stay(self, target: Any) -> None:
        cache = target.model.layers[1].self_attn.attn.kv_cache
        view_with_own_cache(target, (1, 3), {})
        assert target.model.layers[1].self_attn.attn.layer_name == "model.layers.1.self_attn.attn"
        assert target.model.layers[1].self_attn.attn.kv_cache is cache

    def test_its_caches_are_apart(self, target: Any) -> None:
        draft = view_with_own_cache(target, (1,), {})
        assert draft.model.layers[0].self_attn.attn.kv_cache.numel() == 0
        assert draft.model.layers[0].self_attn.attn.impl is not target.model.layers[1].self_attn.attn.impl

    def test_weights_are_the_targets(self, target: Any) -> None:
        draft = view_with_own_cache(target, (1, 3), {})
        assert bytes_of_its_own([draft], [target]) == 0
        assert draft.model.layers[0].mlp is target.model.layers[1].mlp

    def test_a_name_that_is_taken_is_refused(self, target: Any) -> None:
        with pytest.raises(ValueError, match=r"draft_model\.layers\.0\.self_attn\.attn already"):
            view_with_own_cache(target, (1,), {"draft_model.layers.0.self_attn.attn": object()})


def test_a_layer_without_an_attention_is_refused(target: Any) -> None:
    target.model.layers[1].self_attn = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="has 0 attentions"):
        attention_names(view(target, (1,)))


def test_tensors_that_an_object_holds_count(target: Any) -> None:
    class Holder:
        def __init__(self) -> None:
            self.buffer, self.name = torch.zeros(10, dtype=torch.float32), "x"
            self.view_of_it = self.buffer[:2]

    assert bytes_of_its_own([Holder(), target], [target]) == 40


def test_the_architecture_says_what_is_missing_when_it_is_built() -> None:
    with pytest.raises(ValueError, match="did not load the plugin"):
        LayerSkipForCausalLM(None)
