"""Attention over scattered slots, against softmax written out token by token."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.lab.sglang_cpu import attention

SLOTS, KEY_HEADS, GROUP, WIDTH = 40, 2, 3, 4
HEADS, SCALE = KEY_HEADS * GROUP, 0.37


def mix(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[heads, width] of one token: each head weighs the values of its key head by exp(scale * dot product)."""
    mixed = []
    for head in range(HEADS):
        shared = head // GROUP
        weights = [math.exp(SCALE * float(query[head] @ key[shared])) for key in keys]
        mixed.append(sum(w * value[shared] for w, value in zip(weights, values, strict=True)) / sum(weights))
    return torch.stack(mixed)


class World:
    """A cache full of random keys and values, and a request in each row of the table, in slots of its own."""

    def __init__(self, seed: int, lengths: list[int]) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.keys, self.values = self.draw(SLOTS, KEY_HEADS, WIDTH), self.draw(SLOTS, KEY_HEADS, WIDTH)
        self.lengths = lengths
        slots = torch.randperm(SLOTS, generator=self.random).split(8)
        self.table = torch.stack(slots[:4]).int()
        self.rows = torch.randperm(4, generator=self.random)[: len(lengths)]

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random)

    def slots(self, request: int) -> list[int]:
        row: list[int] = self.table[self.rows[request], : self.lengths[request]].tolist()
        return row


LENGTHS = st.lists(st.integers(1, 8), min_size=1, max_size=4)


@given(st.integers(0, 999), LENGTHS)
def test_one_new_token_is_stored_and_attends_to_its_text(seed: int, lengths: list[int]) -> None:
    world = World(seed, lengths)
    batch = len(lengths)
    query, key, value = (world.draw(batch, heads, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    loc = torch.tensor([world.slots(b)[-1] for b in range(batch)])
    keys, values, out = world.keys.clone(), world.values.clone(), torch.full((batch, HEADS, WIDTH), math.nan)
    attention.decode_attention_cpu(
        query, keys, values, 1.0, 1.0, out, key, value, loc, torch.empty(0), world.table, world.rows,
        torch.tensor(lengths), SCALE, 0.0, False, 0, None, None,
    )  # fmt: skip
    for b in range(batch):
        assert torch.equal(keys[loc[b]], key[b])
        assert torch.equal(values[loc[b]], value[b])
        slots = world.slots(b)
        torch.testing.assert_close(out[b], mix(query[b], keys[slots], values[slots]))
    untouched = [slot for slot in range(SLOTS) if slot not in loc.tolist()]
    assert torch.equal(keys[untouched], world.keys[untouched])


def test_what_is_stored_already_is_not_stored_again() -> None:
    world = World(1, [3])
    before, out = world.keys.clone(), torch.empty(1, HEADS, WIDTH)
    attention.decode_attention_cpu(
        world.draw(1, HEADS, WIDTH), world.keys, world.values, 1.0, 1.0, out, None, None, torch.tensor([0]),
        torch.empty(0), world.table, world.rows, torch.tensor([3]), SCALE, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(world.keys, before)


@given(st.integers(0, 999), LENGTHS, st.booleans(), st.data())
def test_new_tokens_see_the_text_and_each_other_as_the_mask_says(
    seed: int, lengths: list[int], with_tree: bool, data: st.DataObject
) -> None:
    world = World(seed, lengths)
    new = [data.draw(st.integers(1, length)) for length in lengths]
    starts = [sum(new[:b]) for b in range(len(new))]
    query, out = world.draw(sum(new), HEADS, WIDTH), torch.full((sum(new), HEADS, WIDTH), math.nan)
    trees = [(torch.rand(n, n, generator=world.random) < 0.5).tril() | torch.eye(n, dtype=torch.bool) for n in new]
    attention.extend_attention_cpu(
        query, None, None, out, world.keys, world.values, 1.0, 1.0, world.table, world.rows, torch.tensor(lengths),
        torch.tensor(new), torch.tensor(starts), max(new), SCALE, 0.0, False, 0, None, None,
        torch.cat([tree.flatten() for tree in trees]) if with_tree else None, True,
    )  # fmt: skip
    for b, (length, n) in enumerate(zip(lengths, new, strict=True)):
        for i in range(n):
            among_new = [j for j in range(n) if (trees[b][i, j] if with_tree else j <= i)]
            seen = [world.slots(b)[t] for t in [*range(length - n), *(length - n + j for j in among_new)]]
            torch.testing.assert_close(
                out[starts[b] + i], mix(query[starts[b] + i], world.keys[seen], world.values[seen])
            )


PLAIN = {"k_scale": 1.0, "v_scale": 1.0, "logit_cap": 0.0, "is_cross_attn": False, "sliding_window": 0, "sinks": None}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k_scale": 0.5}, "scaled"),
        ({"v_scale": 0.5}, "scaled"),
        ({"logit_cap": 30.0}, "capped logits"),
        ({"is_cross_attn": True}, "cross attention"),
        ({"sliding_window": 128}, "sliding window"),
        ({"sinks": torch.zeros(HEADS)}, "sinks"),
    ],
)
def test_what_is_not_done_is_refused_by_name(change: dict[str, object], named: str) -> None:
    empty = torch.empty(0)
    asked = {**PLAIN, **change}
    rest = {"encoder_lens": None, "sm_scale": 1.0, "req_to_token": empty, "req_pool_indices": empty, "seq_lens": empty}
    with pytest.raises(NotImplementedError, match=named):
        attention.decode_attention_cpu(
            query=empty, k_buffer=empty, v_buffer=empty, output=empty, key=None, value=None, loc=empty,
            attn_logits=empty, **rest, **asked,
        )  # fmt: skip
    with pytest.raises(NotImplementedError, match=named):
        attention.extend_attention_cpu(
            q_extend=empty, k_extend=None, v_extend=None, o_extend=empty, k_buffer=empty, v_buffer=empty,
            extend_seq_lens=empty, extend_start_loc=empty, max_len_extend=0, tree_mask=None, is_causal=True,
            **rest, **asked,
        )  # fmt: skip


def test_attention_without_an_order_is_refused() -> None:
    empty = torch.empty(0)
    with pytest.raises(NotImplementedError, match="causal"):
        attention.extend_attention_cpu(
            empty, None, None, empty, empty, empty, 1.0, 1.0, empty, empty, empty, empty, empty, 0, 1.0, 0.0, False, 0,
            None, None, None, False,
        )  # fmt: skip
