"""Attention over the paged cache, one request at a time, in plain PyTorch.

Called as `torch.ops.sgl_kernel.decode_attention_cpu` and `.extend_attention_cpu` by IntelAMXAttnBackend
(sglang 0.5.23, srt/layers/attention/intel_amx_backend.py, forward_decode and forward_extend). Heads of queries may
share heads of keys (grouped queries). What the lab's models do not need is refused by name, never ignored: capped
logits, sliding windows, attention sinks, cross attention, scaled (fp8) caches.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

DECODE_SCHEMA = (
    "decode_attention_cpu(Tensor query, Tensor k_buffer, Tensor v_buffer, float k_scale, float v_scale, "
    "Tensor(a!) output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
EXTEND_SCHEMA = (
    "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, Tensor(a!) o_extend, Tensor k_buffer, "
    "Tensor v_buffer, float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal) "
    "-> ()"
)


def decode_attention_cpu(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """One new token per request: store its key and value at `loc`, attend to the whole text, write `output`.

    `query` [requests, heads, width]; `key`, `value` [requests, key heads, width] or None when they are stored already;
    `k_buffer`, `v_buffer` [slots, key heads, width]; `seq_lens` [requests] counts the new token. `attn_logits` is the
    compiled kernel's scratch space and stays untouched. Raises NotImplementedError as the module says.
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross_attn, sliding_window, sinks)
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for b, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, :length]
        output[b] = _attend(query[b : b + 1], k_buffer[slots], v_buffer[slots], None, sm_scale)[0]


def extend_attention_cpu(
    q_extend: torch.Tensor,
    k_extend: torch.Tensor | None,
    v_extend: torch.Tensor | None,
    o_extend: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens per request, a prompt or a tree of drafts: attend to the text before and to each other.

    `q_extend` [tokens, heads, width] holds `extend_seq_lens[b]` tokens of request b from `extend_start_loc[b]` on;
    `seq_lens` counts them. Their keys and values are in the buffers before the call (set_kv_buffer), so that
    `k_extend` and `v_extend` need not be read. All new tokens see the text before them. Of the new ones a token sees
    those before it and itself, or, with `tree_mask` (bool, per request [new, new], flat), those that its row names.
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross_attn, sliding_window, sinks)
    if not is_causal and tree_mask is None:
        raise NotImplementedError("the CPU lab has causal attention only")
    mask_begin = 0
    requests = zip(*(t.tolist() for t in (req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc)), strict=True)
    for row, length, new, begin in requests:
        slots = req_to_token[row, :length]
        sees = torch.ones((new, length), dtype=torch.bool)
        if tree_mask is None:
            sees = sees.tril(diagonal=length - new)
        else:
            sees[:, length - new :] = tree_mask[mask_begin : mask_begin + new * new].view(new, new)
            mask_begin += new * new
        tokens = slice(begin, begin + new)
        o_extend[tokens] = _attend(q_extend[tokens], k_buffer[slots], v_buffer[slots], sees, sm_scale)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sees: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """[new, heads, width] from the same, keys and values [length, key heads, width] and a mask [new, length]."""
    q, k, v = (t.to(query.dtype).transpose(0, 1).unsqueeze(0) for t in (query, key, value))
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=sees, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return mixed[0].transpose(0, 1)


def _refuse(
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    sinks: torch.Tensor | None,
) -> None:
    """Raise NotImplementedError for what is not done here. `sliding_window` 0 (sglang passes its -1 plus 1) is none."""
    asked = {
        "a scaled (fp8) cache": k_scale != 1.0 or v_scale != 1.0,
        "capped logits": logit_cap > 0,
        "cross attention": is_cross_attn,
        "a sliding window": sliding_window > 0,
        "attention sinks": sinks is not None,
    }
    for what, wanted in asked.items():
        if wanted:
            raise NotImplementedError(f"the CPU lab's attention has no {what}: serve a plain model such as SmolLM2")
