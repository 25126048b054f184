"""The vLLM adapter of prompt lookup: `{"method": "custom_class", "model": "toolkit.proposers.PromptLookupProposer"}`.

The contract is that of vllm/v1/spec_decode/custom_class_proposer.py and of the two places in
vllm/v1/worker/gpu_model_runner.py that call it, version 0.32.0. It imports vLLM only to read a corpus.

Options come in `--additional-config '{"toolkit": {...}}'`, which vLLM carries to its workers: SpeculativeConfig refuses
keys that it does not know. A profile writes them under `speculation`, and validates them before an engine boots.
"""

import copy
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit import proposers
from toolkit.errors import InputError
from toolkit.proposers.corpus import corpus_texts
from toolkit.proposers.draft_length import DraftLength
from toolkit.proposers.drafting import BatchDrafter, Totals
from toolkit.proposers.lookup import LookupOptions, PromptLookup

log = logging.getLogger("vllm.toolkit")  # below vLLM's own logger, so that its settings apply

LOG_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a profile may say beside K. `memory_tokens` 0 keeps requests apart: a memory that all share can be timed."""

    max_match: int = LookupOptions().max_match
    memory_tokens: int = LookupOptions().memory_tokens
    corpus: str | None = None
    probe_budget: float = 0.01

    @classmethod
    def read(cls, additional_config: Any) -> "Options":
        """From vLLM's `additional_config`. Raises InputError for a key that is not known here, or a wrong type."""
        given = additional_config.get("toolkit", {}) if isinstance(additional_config, Mapping) else {}
        for name, value in given.items():
            if name not in _TYPES:
                raise InputError(f"additional_config.toolkit.{name}: unknown, known are {', '.join(_TYPES)}.")
            if type(value) not in _TYPES[name]:
                raise InputError(f"additional_config.toolkit.{name}: {value!r} is no {_TYPES[name][0].__name__}.")
        return cls(**given)


_TYPES: dict[str, tuple[type, ...]] = {
    "max_match": (int,),
    "memory_tokens": (int,),
    "corpus": (str,),
    "probe_budget": (float, int),
}


class PromptLookupProposer:
    """Built once per worker process; `propose` is called at the end of every step."""

    def __init__(self, vllm_config: Any) -> None:
        """Raises InputError for bad options or an unusable corpus, which ends the boot and names them."""
        began = time.perf_counter()
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        most, requests = speculative.num_speculative_tokens, vllm_config.scheduler_config.max_num_seqs
        options = Options.read(vllm_config.additional_config)
        lookup = LookupOptions(
            max_draft=most,
            max_match=options.max_match,
            memory_tokens=options.memory_tokens,
            corpus=Path(options.corpus) if options.corpus else None,
        )
        corpus = None if lookup.corpus is None else tokens_of(lookup.corpus, model)
        caps = caps_by_load(most, requests, speculative.num_speculative_tokens_per_batch_size)

        def drafter(lookup: LookupOptions, corpus: NDArray[np.int32] | None = None) -> BatchDrafter:
            rule = DraftLength(most=most, requests=requests, probe_budget=options.probe_budget)
            return BatchDrafter(PromptLookup(lookup, requests, corpus), rule, requests, caps)

        _compile(drafter(LookupOptions(max_draft=most, max_match=options.max_match, memory_tokens=1000)), requests)
        self._drafter: BatchDrafter | None = drafter(lookup, corpus)
        self._logged: float | None = None
        _draft_up_to_the_last_token(speculative, most)
        log.info(
            "prompt lookup drafts up to %d tokens for %d requests in process %d (%s); memory across requests: %s; "
            "corpus: %s; ready after %.1f s",
            most,
            requests,
            os.getpid(),
            "registered by the entry point" if proposers.registered else "the entry point did not run here",
            f"{lookup.memory_tokens} tokens" if lookup.memory_tokens else "none",
            f"{len(corpus)} tokens of {lookup.corpus}" if corpus is not None else "none",
            time.perf_counter() - began,
        )

    def load_model(self, *_: Any, **__: Any) -> None:
        """vLLM hands over the target's module, of which a lookup needs nothing."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
        **_: Any,
    ) -> list[list[int]]:
        """The draft of each request, [] for none.

        A fault in here must not end everyone's requests, and what it left behind cannot be trusted: it is logged once,
        and nothing is drafted from then on.
        """
        if self._drafter is None:
            return [[] for _ in sampled_token_ids]
        began = time.perf_counter()
        try:
            drafts = self._drafter.draft(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, began)
        except Exception:
            log.exception("prompt lookup failed and drafts no more; generation goes on without speculation")
            self._drafter = None
            return [[] for _ in sampled_token_ids]
        ended = time.perf_counter()
        self._drafter.took(ended - began)
        self._report(self._drafter, ended)
        return drafts

    def _report(self, drafter: BatchDrafter, now: float) -> None:
        if self._logged is None:
            self._logged = now
        elif now - self._logged >= LOG_SECONDS:
            log.info("prompt lookup: %s; %.1f MB", told(drafter.totals), drafter.lookup.bytes_used() / 1e6)
            self._logged = now
            drafter.totals = Totals()


def told(totals: Totals) -> str:
    """The totals of a while, in words."""
    steps = max(totals.steps, 1)
    kept = f"{totals.accepted / totals.verified:.2f}" if totals.verified else "unavailable (nothing was verified)"
    own = (
        f"{totals.clean_own / totals.clean * 1e6:.0f} us, {totals.clean_own / totals.clean_seconds:.2%} of the step"
        if totals.clean
        else "unavailable"
    )
    return (
        f"{totals.steps} steps of {totals.requests / steps:.1f} requests, {totals.drafted / steps:.1f} tokens drafted "
        f"a step, draft acceptance rate {kept}; own time where all only decode {own}, "
        f"{totals.own / steps * 1e6:.0f} us over all steps"
    )


def caps_by_load(most: int, requests: int, schedule: Sequence[Sequence[int]] | None) -> list[int]:
    """The most tokens to draft at each batch size, [requests + 1]: K, or what a schedule of K by load allows.

    vLLM does not tell a custom_class proposer the K of `num_speculative_tokens_per_batch_size`; beyond its last range
    the last K holds, as in vllm/v1/spec_decode/dynamic/utils.py.
    """
    caps = [most] * (requests + 1)
    for first, _, k in sorted(map(tuple, schedule or ())):
        caps[first:] = [min(k, most)] * len(caps[first:])
    return caps


def tokens_of(corpus: Path, model_config: Any) -> NDArray[np.int32]:
    """The tokens of a corpus [length] in the target's vocabulary, an end of text after each of its files."""
    texts = list(corpus_texts(corpus))  # refused, if it is, before the seconds that the import takes
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    parts = [np.array([*tokenizer.encode(text, add_special_tokens=False), *end], np.int32) for text in texts]
    return np.concatenate(parts)


def _draft_up_to_the_last_token(speculative: Any, most: int) -> None:
    """Keep vLLM from verifying K zeros for every request while one of them is within K tokens of max_model_len.

    Its model runner then asks no proposer and drafts zeros instead (`_input_fits_in_drafter`), because a draft *model*
    would run past its positions; it reads that length from the draft's config after this class is built. A lookup has
    no positions, and `BatchDrafter` ends its drafts at max_model_len.
    """
    if speculative.draft_model_config is not None:
        speculative.draft_model_config = copy.copy(speculative.draft_model_config)
        speculative.draft_model_config.max_model_len += most + 1


def _compile(drafter: BatchDrafter, requests: int) -> None:
    """Steps with arrays like vLLM's, so that no request waits for the compiler: a new one, it goes on, another one."""
    token_ids = np.zeros((requests, 64), np.int32)
    token_ids[:, :40] = np.arange(40) % 10
    for end in (30, 31, 40):
        drafter.draft([[int(token_ids[0, end - 1])]], np.full(requests, end, np.int32), token_ids, float(end))
