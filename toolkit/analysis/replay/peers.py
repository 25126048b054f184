"""The rivals of prompt-lookup, each driven as vLLM drives it; and the two ends of the scale: nothing, everything."""

import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from toolkit.analysis.replay.engine import Batch
from toolkit.analysis.replay.traces import Request, Tokens


class UnavailableError(Exception):
    """This proposer is not installed here. The message says what is missing and how to get it."""


class Nothing:
    """No speculation: a token a pass."""

    def start(self, prompt: Tokens) -> int:
        """See `Proposer`."""
        return 0

    def propose(self, batch: Batch) -> list[list[int]]:
        """See `Proposer`."""
        return [[] for _ in batch.sampled]

    def finish(self, handle: int) -> None:
        """See `Proposer`."""

    def bytes_used(self) -> int:
        """See `Proposer`."""
        return 0


class VllmNgram(Nothing):
    """vLLM's own class, `vllm/v1/spec_decode/ngram_proposer.py`: lookup of 2 to 5 tokens, all K drafted on a match.

    It keeps nothing between steps. Raises UnavailableError without vLLM.
    """

    def __init__(self, most: int, sequences: int, width: int) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        try:
            with redirect_stdout(sys.stderr):  # vLLM's log goes to the stdout that it finds when it is imported
                from vllm.v1.spec_decode.ngram_proposer import NgramProposer
        except ImportError as error:
            raise UnavailableError(f"vLLM cannot be imported ({error}); `make venv` installs it") from None
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(prompt_lookup_min=2, prompt_lookup_max=5, num_speculative_tokens=most),
            model_config=SimpleNamespace(max_model_len=width + most),  # no draft is cut short
            scheduler_config=SimpleNamespace(max_num_seqs=sequences),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
        self._most = most
        self._proposer = NgramProposer(config)

    def propose(self, batch: Batch) -> list[list[int]]:
        """See `Proposer`."""
        drafts: list[list[int]] = self._proposer.propose(self._most, batch.sampled, batch.ends, batch.token_ids)
        return drafts


class Suffix:
    """Arctic's suffix decoding (arXiv 2411.04975), driven as `vllm/v1/spec_decode/suffix_decoding.py` does.

    `factor` drafts so many tokens per matched one; vLLM's default is 1. All else is vLLM's default. Raises
    UnavailableError without `arctic_inference`.
    """

    DEPTH, REMEMBERED, LEAST_PROBABILITY = 24, 10_000, 0.1

    def __init__(self, most: int, factor: float) -> None:
        try:
            arctic = import_module("arctic_inference.suffix_decoding")  # has no types, and is seldom installed
        except ImportError as error:
            raise UnavailableError(
                f"suffix decoding cannot be imported ({error}); benchmarks/build_suffix_decoding.sh builds it"
            ) from None
        self._cache: Any = arctic.SuffixDecodingCache(max_tree_depth=self.DEPTH, max_cached_requests=self.REMEMBERED)
        self._most, self._factor = most, factor
        self._started = 0

    def start(self, prompt: Tokens) -> int:
        """See `Proposer`."""
        self._started += 1
        self._cache.start_request(self._started, prompt)
        return self._started

    def propose(self, batch: Batch) -> list[list[int]]:
        """See `Proposer`."""
        drafts: list[list[int]] = [[] for _ in batch.sampled]
        for row in batch.live:
            handle = int(batch.handles[row])
            end = batch.ends[row]
            self._cache.add_active_response(handle, batch.sampled[row])
            pattern = batch.token_ids[row, max(0, end - self.DEPTH) : end]
            draft = self._cache.speculate(
                handle,
                pattern,
                max_spec_tokens=self._most,
                max_spec_factor=self._factor,
                min_token_prob=self.LEAST_PROBABILITY,
            )
            drafts[row] = draft.token_ids
        return drafts

    def finish(self, handle: int) -> None:
        """See `Proposer`."""
        self._cache.stop_request(handle)

    def bytes_used(self) -> int:
        """See `Proposer`. By its own estimate."""
        trees = [self._cache._global_tree, *self._cache._local_trees.values()]
        return sum(int(tree.estimate_memory()) for tree in trees)


class Oracle(Nothing):
    """The limit of copying: at each step the longest true continuation that stands anywhere in what came before.

    Before are the earlier requests of the class, in order, the prompt, and the answer so far; the continuation need not
    follow an occurrence of the last tokens. No proposer that copies one stretch of earlier text can keep more tokens
    of an answer: a part of a copy is a copy, so to take the longest each time gives the fewest passes. A draft that is
    stitched from several places could. It knows the answers: `requests` must start in the order given.
    """

    def __init__(self, most: int, requests: list[Request]) -> None:
        self._requests = requests
        lengths = copied_lengths(requests, most)
        self._lengths = np.split(lengths, np.cumsum([request.length for request in requests])[:-1])
        self._started = -1

    def start(self, prompt: Tokens) -> int:
        """See `Proposer`."""
        self._started += 1
        return self._started

    def propose(self, batch: Batch) -> list[list[int]]:
        """See `Proposer`."""
        drafts: list[list[int]] = [[] for _ in batch.sampled]
        for row in batch.live:
            request = self._requests[batch.handles[row]]
            end = int(batch.ends[row])
            if end < request.length:
                at = end - len(request.prompt)
                drafts[row] = request.output[at : at + self._lengths[batch.handles[row]][end]].tolist()
        return drafts


def copied_lengths(requests: list[Request], most: int) -> Tokens:
    """At each token of all requests, one after the other: how many from there on stand together somewhere before it.

    Up to `most`, and never over the end of a request. For every length the stretches of that length are numbered,
    equal ones alike; the one at i is a copy when the first like it ended at i or before.
    """
    text = np.concatenate([part for request in requests for part in (request.prompt, request.output)])
    left = np.concatenate([np.arange(request.length, 0, -1) for request in requests])  # to the end of its request
    places = np.arange(len(text))
    found = np.zeros(len(text), dtype=np.int32)
    numbers = np.zeros(len(text), dtype=np.int64)
    for length in range(1, most + 1):
        fits = np.flatnonzero(left >= length)
        if not len(fits):
            break
        pairs = numbers[fits] * (int(text.max()) + 1) + text[fits + length - 1]
        _, first, same = np.unique(pairs, return_index=True, return_inverse=True)
        numbers[fits] = same
        copied = fits[first[same]] + length <= places[fits]
        found[fits[copied]] = length
    return found
