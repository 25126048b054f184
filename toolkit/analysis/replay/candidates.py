"""Our own lookup in a replay: what it could draft, and the rule that says how far.

Both are compiled by numba, which comes with vLLM and not with the base install: they are imported when they are used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from toolkit.analysis.replay.engine import Batch, Ints, StepSeconds
from toolkit.analysis.replay.peers import UnavailableError
from toolkit.analysis.replay.traces import Tokens

if TYPE_CHECKING:
    from toolkit.proposers.lookup import Candidates

DraftLengths = Callable[["Candidates", int], Ints]
"""Tokens to draft per request [n], of candidates and the tokens of context that the requests hold together."""


def above(floor: float) -> DraftLengths:
    """Where a token more costs nothing: all that survives with a probability of at least `floor`."""

    def lengths(candidates: "Candidates", held: int) -> Ints:
        likely: npt.NDArray[np.int64] = (candidates.survival >= floor).sum(axis=1)
        return np.minimum(candidates.lengths, likely).astype(np.int32)

    return lengths


def worth(step_seconds: StepSeconds) -> DraftLengths:
    """Where a step's time is known: what earns more than it costs (`toolkit.proposers.draft_length`)."""

    def lengths(candidates: "Candidates", held: int) -> Ints:
        from toolkit.proposers.draft_length import admit

        seconds = step_seconds(len(candidates.lengths), int(candidates.lengths.sum()), held)
        return admit(candidates.survival, candidates.lengths, seconds)

    return lengths


class Lookup:
    """`toolkit.proposers.lookup.PromptLookup` as a `Proposer` of a replay. Raises UnavailableError without numba."""

    def __init__(self, most: int, sequences: int, draft_lengths: DraftLengths) -> None:
        try:
            from toolkit.proposers.lookup import LookupOptions, PromptLookup
        except ImportError as error:
            raise UnavailableError(f"it cannot be compiled ({error}); `pip install numba`") from None
        self._lookup = PromptLookup(LookupOptions(max_draft=most), sequences)
        self._draft_lengths = draft_lengths

    def start(self, prompt: Tokens) -> int:
        """See `Proposer`."""
        return self._lookup.start(prompt)

    def propose(self, batch: Batch) -> list[list[int]]:
        """See `Proposer`."""
        live = batch.live
        ends = batch.ends[live]
        candidates = self._lookup.step(batch.handles[live], live, ends, batch.token_ids)
        lengths = self._draft_lengths(candidates, int(ends.sum()))
        drafts: list[list[int]] = [[] for _ in batch.sampled]
        for row, tokens, length in zip(live.tolist(), candidates.tokens.tolist(), lengths.tolist(), strict=True):
            drafts[row] = tokens[:length]
        return drafts

    def finish(self, handle: int) -> None:
        """See `Proposer`."""
        self._lookup.finish(handle)

    def bytes_used(self) -> int:
        """See `Proposer`."""
        return self._lookup.bytes_used()
