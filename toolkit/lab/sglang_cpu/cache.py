"""Where keys and values lie: a table from a request's tokens to slots of the cache, read, written and moved.

`req_to_token` [rows, pool_len] (int32): entry [r, t] is the slot of token t of the request that owns row r.
`req_pool_indices` [requests] are the rows of the requests of a batch. All calls are those of sglang 0.5.23; each
function names the file that makes its call.
"""

import ctypes

import torch


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the slots of tokens start..end-1 of each request, one request after the other, into `out_cache_loc`.

    What lies behind the last one stays as it was. kernels/ops/speculative/cache_locs.py: assign_extend_cache_locs_func
    and fill_front_out_cache_loc_func, which passes a table of its own.
    """
    begin = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[begin : begin + end - start] = req_to_token[row, start:end]
        begin += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The other way round: tokens start..end-1 of each request get the next slots of `out_cache_loc`.

    srt/mem_cache/allocation.py, assign_req_to_token_pool_func.
    """
    begin = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[begin : begin + end - start]
        begin += end - start


def _spans(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Write the topk * num_steps slots behind each request's text into `out_cache_loc` [requests * topk * num_steps].

    kernels/ops/speculative/cache_locs.py, assign_draft_cache_locs_contiguous_func.
    """
    offsets = torch.arange(topk * num_steps)
    places = seq_lens.view(-1, 1) + offsets
    out_cache_loc.copy_(req_to_token[req_pool_indices.view(-1, 1), places].flatten())


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A table [requests * topk, pool_len] in which every branch of a draft has a row of its own.

    Row b * topk + k: the slots of request b's text, then those of the tokens that branch k drafts, which lie behind
    the text in runs of num_steps, one run per branch. Zeros after that.
    srt/layers/attention/intel_amx_backend.py, IntelAMXMultiStepDraftBackend.init_forward_metadata.
    """
    table = req_to_token.new_zeros((len(seq_lens) * topk, pool_len))
    for b, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for k in range(topk):
            run = length + k * num_steps
            table[b * topk + k, :length] = req_to_token[row, :length]
            table[b * topk + k, length : length + num_steps] = req_to_token[row, run : run + num_steps]
    return table


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Write each request's last accepted token into `bonus_tokens` [requests].

    `accept_tokens` holds accept_stride places per request, of which the first accept_lens[b] are filled, the target's
    own token last. kernels/ops/speculative/eagle.py, fill_bonus_tokens_func.
    """
    places = torch.arange(len(accept_lens)) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[places])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Write the slots of the accepted rows, those of `accept_index` that are not -1, without gaps.

    What lies behind the last one stays as it was. kernels/ops/speculative/eagle.py, fill_accept_out_cache_loc_func.
    """
    rows = accept_index.flatten()
    rows = rows[rows >= 0].to(torch.int64)
    accept_out_cache_loc[: len(rows)] = out_cache_loc[rows].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots `src_loc` to `tgt_loc` [slots] in every buffer, reading all before writing any.

    `data_ptrs` [buffers] are addresses, two per layer (keys, values); `strides` [buffers] the bytes of one slot.
    kernels/ops/kvcache/cache_move.py, copy_all_layer_kv_cache_func.
    """
    moved = tgt_loc != src_loc
    targets, sources = tgt_loc[moved], src_loc[moved]
    if not len(targets):
        return
    slots = int(torch.maximum(targets.max(), sources.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[targets] = buffer[sources]
