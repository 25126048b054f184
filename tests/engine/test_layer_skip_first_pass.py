"""What a shared-cache draft's first pass is given, by vLLM's own classes, against an account request by request."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.engine

BLOCK, LONGEST, MOST = 4, 64, 8

# Per request: tokens computed before this pass, drafts verified in it, drafts kept of those, the sampled token.
ROWS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 4), st.integers(0, 4), st.integers(0, 99)), min_size=1, max_size=MOST
)


@pytest.fixture(scope="module")
def proposer() -> Any:
    from toolkit.proposers.layer_skip import SharedCacheProposer

    made = object.__new__(SharedCacheProposer)
    made.block_size, made.max_model_len, made.uses_mrope = BLOCK, LONGEST, False
    made.vllm_config = SimpleNamespace(model_config=SimpleNamespace(uses_mrope=False))
    made.input_ids = torch.full((100,), -7, dtype=torch.int32)
    made.positions = torch.full((100,), -7, dtype=torch.int64)
    made.arange = torch.arange(100, dtype=torch.int32)
    made.device = torch.device("cpu")
    return made


def batch(rows: list[tuple[int, int, int, int]]) -> tuple[Any, dict[str, torch.Tensor | None]]:
    """vLLM's metadata of the target's pass over `rows`, and what `set_inputs_first_pass` is given beside it."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    queries = [1 + drafted for _, drafted, _, _ in rows]
    ends = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lengths = torch.tensor(
        [before + query for (before, *_), query in zip(rows, queries, strict=True)], dtype=torch.int32
    )
    positions = torch.cat([torch.arange(before, before + n) for (before, *_), n in zip(rows, queries, strict=True)])
    blocks = torch.randperm(MOST * LONGEST // BLOCK, dtype=torch.int32)[: len(rows) * (LONGEST // BLOCK)]
    rejected = torch.tensor([drafted - min(kept, drafted) for _, drafted, kept, _ in rows], dtype=torch.int32)
    metadata = CommonAttentionMetadata(
        query_start_loc=ends,
        query_start_loc_cpu=ends.clone(),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths.clone(),
        num_reqs=len(rows),
        num_actual_tokens=int(ends[-1]),
        max_query_len=max(queries),
        max_seq_len=int(lengths.max()),
        block_table_tensor=blocks.view(len(rows), -1),
        slot_mapping=torch.arange(int(ends[-1])),
    )
    drafted = any(one[1] for one in rows)
    given_ = {
        "target_token_ids": torch.zeros(int(ends[-1]), dtype=torch.int32),
        "next_token_ids": torch.tensor([token for *_, token in rows], dtype=torch.int32),
        "target_positions": positions,
        "target_hidden_states": torch.zeros(int(ends[-1]), 2),
        "token_indices_to_sample": (ends[1:] - 1 - rejected) if drafted else None,
        "num_rejected_tokens_gpu": rejected if drafted else None,
    }
    return metadata, given_


@given(ROWS)
@settings(max_examples=150, deadline=None)
def test_each_request_has_its_sampled_token_after_the_last_accepted(
    proposer: Any, rows: list[tuple[int, int, int, int]]
) -> None:
    metadata, others = batch(rows)
    count, sample, made = proposer.set_inputs_first_pass(cad=metadata, **others)
    assert (count, sample.tolist()) == (len(rows), list(range(len(rows))))
    for row, (before, drafted, kept, token) in enumerate(rows):
        position = before + 1 + min(kept, drafted)  # the pass computed `before` onwards: one token and its drafts
        slot = int(metadata.block_table_tensor[row, position // BLOCK]) * BLOCK + position % BLOCK
        assert int(proposer.input_ids[row]) == token
        assert int(proposer.positions[row]) == position
        assert int(made.seq_lens[row]) == position + 1
        assert int(made.slot_mapping[row]) == slot
    assert made.query_start_loc.tolist() == made.query_start_loc_cpu.tolist() == list(range(len(rows) + 1))
    assert (made.max_query_len, made.num_actual_tokens) == (1, len(rows))
    assert made.max_seq_len >= int(made.seq_lens.max())
    assert bool((made.seq_lens_cpu_upper_bound >= made.seq_lens).all())


@given(ROWS)
@settings(max_examples=50, deadline=None)
def test_what_vllm_adds_to_in_place_is_not_the_runners(proposer: Any, rows: list[tuple[int, int, int, int]]) -> None:
    metadata, others = batch(rows)
    before = metadata.seq_lens.tolist(), metadata.seq_lens_cpu_upper_bound.tolist(), metadata.slot_mapping.tolist()
    _, _, made = proposer.set_inputs_first_pass(cad=metadata, **others)
    for mine in (made.seq_lens, made.seq_lens_cpu_upper_bound, made.slot_mapping):
        mine += 1000
    after = metadata.seq_lens.tolist(), metadata.seq_lens_cpu_upper_bound.tolist(), metadata.slot_mapping.tolist()
    assert after == before


def test_no_drafts_are_no_passes(proposer: Any) -> None:
    """A schedule of K by load may say 0; `model` is not there to be called."""
    drafts = proposer.propose(0, next_token_ids=torch.tensor([4, 5], dtype=torch.int32))
    assert (drafts.shape, proposer._last_draft_probs) == ((2, 0), None)


def test_rejected_drafts_are_not_taken_off_twice(proposer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.spec_decode.draft_model import DraftModelProposer

    seen: dict[str, Any] = {}
    monkeypatch.setattr(DraftModelProposer, "propose", lambda self, k, **given: seen.update(given, k=k))
    proposer.propose(3, num_rejected_tokens_gpu=torch.tensor([1]), next_token_ids=torch.tensor([1]))
    assert (seen["k"], seen["num_rejected_tokens_gpu"]) == (3, None)
