"""Layer skip in vLLM: the target drafts for itself with some of its layers. Imported in the worker that drafts.

`SharedCacheProposer` reads and writes the target's own paged KV cache. Why that is exact: a step drafts from the token
that was just sampled, at the position after the last one that the target has computed, and onwards. Its layers write
their keys and values at those positions only, which lie in slots that the scheduler reserves for drafts, and the next
pass of the target computes the same positions in all layers before anything reads them as context. What stock drafting
does first, running the draft model over the tokens that the target has just computed, is left out: over a shared cache
it would overwrite what was accepted.

`OwnCacheProposer` is the fallback: the kept layers with a cache of their own, drafted by vLLM as any draft model is.

Sources: Zhang et al., "Draft & Verify" (arXiv 2309.08168); Elhoushi et al., "LayerSkip" (2404.16710). Facts of vLLM
0.32.0: v1/spec_decode/llm_base_proposer.py (propose, set_inputs_first_pass), v1/worker/gpu_model_runner.py (who calls
them), v1/core/sched/scheduler.py (lookahead slots).
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from toolkit.proposers.layer_set import LayerSkip, format_layers, of_config
from toolkit.proposers.layer_skip_model import attention_names, bytes_of_its_own, view, view_with_own_cache
from toolkit.proposers.layer_skip_start import form, refuse

log = logging.getLogger("vllm.toolkit")  # below vLLM's own logger, so that its settings apply


def proposer_for(vllm_config: Any) -> type[DraftModelProposer]:
    """The proposer of a draft directory of ours on model runner V1."""
    return SharedCacheProposer if form(vllm_config)[0] == "shared" else OwnCacheProposer


class SharedCacheProposer(DraftModelProposer):  # type: ignore[misc]
    """Drafts with layers of the target over the target's KV cache."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        """Raises ValueError, before any weights are loaded, for a target that it cannot serve; it says why."""
        refuse(vllm_config, "shared")
        super().__init__(vllm_config=vllm_config, device=device, runner=runner)
        # Stock drafting keeps room for the hidden states and embeddings of a whole batch of tokens. Here a request
        # has one token a pass, and neither is read.
        kept = {"hidden_states": self.max_batch_size, "inputs_embeds": 0}
        self.__dict__.update({name: self.__dict__[name][:rows].clone() for name, rows in kept.items()})

    def load_model(self, target_model: nn.Module) -> None:
        """Nothing is loaded: the draft is a view of `target_model`."""
        draft = draft_of(self.vllm_config)
        self.model = view(target_model, draft.layers)
        self._draft_attn_layer_names = attention_names(self.model)
        announce(self.vllm_config, draft, bytes_of_its_own([self, self.model], [target_model]), 0)

    def initialize_attn_backend(self, kv_cache_config: Any, kernel_block_sizes: list[int] | None = None) -> None:
        """Raises ValueError for a target with more than one KV cache group."""
        groups = len(kv_cache_config.kv_cache_groups)
        if groups != 1:
            raise ValueError(f"layer skip: the target keeps its KV cache in {groups} groups; one is what a draft reads")
        super().initialize_attn_backend(kv_cache_config, kernel_block_sizes)

    def initialize_cudagraph_keys(self, cudagraph_mode: CUDAGraphMode) -> None:
        """None: a view is not compiled, so there is no graph of it, and no batch to be padded for one."""
        self.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.NONE)

    def set_inputs_first_pass(
        self,
        target_token_ids: torch.Tensor,
        next_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        cad: CommonAttentionMetadata,
        num_rejected_tokens_gpu: torch.Tensor | None,
    ) -> tuple[int, torch.Tensor, CommonAttentionMetadata]:
        """One token per request: the one just sampled, after the last that was accepted.

        Shapes: `next_token_ids` [requests], `target_positions` [tokens of the target's pass], `token_indices_to_sample`
        [requests] or None (nothing was drafted in that pass). Lengths and slots are of new tensors: vLLM goes on to add
        to them in place, and those in `cad` are the runner's.
        """
        requests = cad.batch_size()
        last = cad.query_start_loc[1:] - 1 if token_indices_to_sample is None else token_indices_to_sample
        positions = target_positions[last] + 1
        blocks = cad.block_table_tensor.gather(1, (positions // self.block_size).unsqueeze(1).to(torch.int64))
        slots = blocks.squeeze(1).to(torch.int64) * self.block_size + positions % self.block_size
        self.input_ids[:requests] = next_token_ids
        self._set_positions(requests, positions)
        longest = cad.seq_lens_cpu_upper_bound
        one_each = CommonAttentionMetadata(
            query_start_loc=self.arange[: requests + 1],
            query_start_loc_cpu=torch.arange(requests + 1, dtype=torch.int32),
            seq_lens=(positions + 1).to(cad.seq_lens.dtype),
            seq_lens_cpu_upper_bound=None if longest is None else longest + 1,
            num_reqs=requests,
            num_actual_tokens=requests,
            max_query_len=1,
            max_seq_len=min(cad.max_seq_len + 1, self.max_model_len),
            block_table_tensor=cad.block_table_tensor,
            slot_mapping=slots,
        )
        return requests, self.arange[:requests], one_each

    def propose(self, num_speculative_tokens: int, **given: Any) -> torch.Tensor:
        """Draft token ids [requests, num_speculative_tokens].

        Without `num_rejected_tokens_gpu`: the lengths are already without what was rejected, and vLLM would take it
        off once more.
        """
        if num_speculative_tokens == 0:  # a schedule of K by load; there is no cache to keep up
            self._last_draft_probs = None
            return torch.empty(given["next_token_ids"].shape[0], 0, dtype=torch.int64, device=self.device)
        return super().propose(num_speculative_tokens, **{**given, "num_rejected_tokens_gpu": None})


class OwnCacheProposer(DraftModelProposer):  # type: ignore[misc]
    """Drafts as vLLM drafts with any model, one whose layers alias the target's and keep a KV cache of their own."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        """Raises ValueError, before any weights are loaded, for a target that it cannot serve; it says why."""
        refuse(vllm_config, "own")
        super().__init__(vllm_config=vllm_config, device=device, runner=runner)
        self._target: nn.Module | None = None

    def load_model(self, target_model: nn.Module) -> None:
        """vLLM's own, which finds the attention layers that are new; no weights are read."""
        self._target = target_model
        super().load_model(target_model)
        own_bytes = bytes_of_its_own([self, self.model], [target_model])
        announce(self.vllm_config, draft_of(self.vllm_config), own_bytes, len(self._draft_attn_layer_names))

    def _get_model(self) -> Any:
        assert self._target is not None
        return aliased(self.vllm_config, self._target)


def aliased(vllm_config: Any, target_model: nn.Module) -> Any:
    """The layers of the draft directory, of `target_model`, with caches of their own."""
    context = vllm_config.compilation_config.static_forward_context
    return view_with_own_cache(target_model, draft_of(vllm_config).layers, context)


def draft_of(vllm_config: Any) -> LayerSkip:
    """What the draft directory says."""
    config: Mapping[str, Any] = vllm_config.speculative_config.draft_model_config.hf_config.to_dict()
    return of_config(config)


def announce(vllm_config: Any, draft: LayerSkip, own_bytes: int, own_caches: int) -> None:
    """Say in the engine's log which layers draft, in which form, why, and what it takes.

    `own_bytes` are those of tensors that the target has not, the KV cache apart, to which `own_caches` layers were
    added.
    """
    log.info(
        "layer skip drafts up to %d tokens with %d of %d layers (%s) in process %d. It %s: %s. Beside the target's it "
        "takes %.2f MB of tensors and a KV cache for %d layers more",
        vllm_config.speculative_config.num_speculative_tokens,
        len(draft.layers),
        draft.num_hidden_layers,
        format_layers(draft.layers),
        os.getpid(),
        "keeps a KV cache of its own" if own_caches else "shares the target's KV cache",
        form(vllm_config)[1],
        own_bytes / 1e6,
        own_caches,
    )
