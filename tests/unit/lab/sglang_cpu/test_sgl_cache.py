"""The table of slots and the cache behind it, each operation against a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.lab.sglang_cpu import cache

ROWS, LENGTH = 5, 12


def slots() -> torch.Tensor:
    """Every token of every row in a slot of its own, none of them where it would be by default."""
    return torch.randperm(ROWS * LENGTH, generator=torch.Generator().manual_seed(3)).view(ROWS, LENGTH).int()


@st.composite
def spans(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Rows of a batch, and where a span begins and ends in each."""
    rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True))
    ends = [draw(st.integers(0, LENGTH)) for _ in rows]
    return rows, [draw(st.integers(0, end)) for end in ends], ends


def places(batch: tuple[list[int], list[int], list[int]]) -> list[tuple[int, int]]:
    return [(row, t) for row, start, end in zip(*batch, strict=True) for t in range(start, end)]


@given(spans())
def test_the_slots_of_spans_are_read_one_after_the_other(batch: tuple[list[int], list[int], list[int]]) -> None:
    req_to_token, out = slots(), torch.full((ROWS * LENGTH,), -1, dtype=torch.int64)
    rows, starts, ends = (torch.tensor(b) for b in batch)
    cache.assign_extend_cache_locs_cpu(rows, req_to_token, starts, ends, out, LENGTH)
    expected = [req_to_token[place].item() for place in places(batch)]
    assert out.tolist() == expected + [-1] * (len(out) - len(expected))


@given(spans())
def test_the_slots_of_spans_are_written_and_nothing_else(batch: tuple[list[int], list[int], list[int]]) -> None:
    req_to_token, new = torch.full((ROWS, LENGTH), -1, dtype=torch.int32), torch.arange(100, 100 + ROWS * LENGTH)
    rows, starts, ends = (torch.tensor(b) for b in batch)
    cache.assign_req_to_token_pool_cpu(rows, req_to_token, starts, ends, new, LENGTH)
    expected = [[-1] * LENGTH for _ in range(ROWS)]
    for number, (row, t) in enumerate(places(batch)):
        expected[row][t] = 100 + number
    assert req_to_token.tolist() == expected


@given(st.integers(1, 3), st.integers(1, 3), st.permutations(range(ROWS)), st.integers(1, ROWS))
def test_drafts_lie_behind_the_text(topk: int, steps: int, rows: list[int], batch: int) -> None:
    req_to_token, lengths = slots(), [0, 1, 2, 3, 2][:batch]
    out = torch.empty(batch * topk * steps, dtype=torch.int64)
    cache.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor(rows[:batch]), req_to_token, torch.tensor(lengths), out, LENGTH, topk, steps
    )
    expected = [
        req_to_token[row, length + i].item()
        for row, length in zip(rows[:batch], lengths, strict=True)
        for i in range(topk * steps)
    ]
    assert out.tolist() == expected


@given(st.integers(1, 3), st.integers(2, 3), st.permutations(range(ROWS)), st.integers(1, ROWS))
def test_each_branch_of_a_draft_sees_the_text_and_its_own_tokens(
    topk: int, steps: int, rows: list[int], batch: int
) -> None:
    req_to_token, lengths = slots(), [0, 1, 2, 3, 2][:batch]
    table = cache.build_draft_decode_metadata_cpu(
        req_to_token, torch.tensor(rows[:batch]), torch.tensor(lengths), topk, steps, LENGTH
    )
    assert table.shape == (batch * topk, LENGTH)
    for b, (row, length) in enumerate(zip(rows, lengths, strict=False)):
        for k in range(topk):
            seen = list(range(length)) + [length + k * steps + step for step in range(steps)]
            assert table[b * topk + k, : length + steps].tolist() == [req_to_token[row, t].item() for t in seen]


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    tokens, bonus = torch.tensor([11, 12, 13, 21, 22, 23, 31, 32, 33], dtype=torch.int32), torch.zeros(3).int()
    cache.fill_bonus_tokens_cpu(tokens, torch.tensor([1, 3, 2], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [11, 23, 32]


@given(st.lists(st.lists(st.integers(-1, 9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_slots_of_accepted_rows_are_packed(rows: list[list[int]]) -> None:
    slots_of, out = torch.arange(50, 60), torch.zeros(3 * len(rows), dtype=torch.int64)
    cache.fill_accept_out_cache_loc_cpu(torch.tensor(rows, dtype=torch.int32), slots_of, out)
    packed = [50 + row for line in rows for row in line if row >= 0]
    assert out.tolist() == packed + [0] * (len(out) - len(packed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(0, 8))
def test_slots_move_in_every_buffer_at_once(
    dtype: torch.dtype, targets: list[int], sources: list[int], count: int
) -> None:
    """Slots that are read and written in the same call too: all are read first."""
    buffers = [torch.randn(8, 2, width).to(dtype) for width in (4, 4, 6)]
    expected = [buffer.clone() for buffer in buffers]
    for before, buffer in zip(expected, buffers, strict=True):
        for target, source in zip(targets[:count], sources[:count], strict=True):
            before[target] = buffer[source]
    cache.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].nbytes for buffer in buffers]),
        torch.tensor(targets[:count], dtype=torch.int64),
        torch.tensor(sources[:count], dtype=torch.int64),
    )
    assert all(torch.equal(now, wanted) for now, wanted in zip(buffers, expected, strict=True))
