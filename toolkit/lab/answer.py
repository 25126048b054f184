"""One request through the reference loop: its steps become text, log probabilities and counts, as a server tells them.

Tokens first: a stop string or an end mark ends the answer with the token that completes it, also in the middle of a
step, so that an answer does not depend on how many tokens a step had.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.lab.reference import EXACT, Drafter, Model, Rule, Sampling, generate
from toolkit.lab.tokenizer import Tokenizer
from toolkit.sampling import FloatArray

INCOMPLETE = "\ufffd"  # what a decoder puts for the first bytes of a character whose last bytes are not there yet


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for. `top` and `prompt_top` are how many log probabilities a token is to have; None is none."""

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    top: int | None = None
    prompt_top: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A token with its log probability and its rank, 1 the likeliest."""

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Scored:
    """A token under the target's own distribution, before temperature, top-k and top-p; and the likeliest ones."""

    choice: Choice
    top: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step, a pass of the target, added. `accepted` is counted before a stop trims `tokens`.

    `scores` is per token, `prompt_scores` (of the first piece) per token of the prompt but its first; None when not
    asked for. `finish_reason` is `stop` or `length` in the last piece, `stop_reason` the string or id that ended it.
    """

    tokens: tuple[int, ...]
    text: str
    drafted: int
    accepted: int
    scores: tuple[Scored, ...] | None = None
    prompt_scores: tuple[Scored, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Watched:
    """A target that remembers the rows of its last pass."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.rows: FloatArray = np.empty((0, model.size))

    @property
    def size(self) -> int:
        return self._model.size

    @property
    def length(self) -> int:
        return self._model.length

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        self.rows = self._model.extend(tokens)
        return self.rows

    def crop(self, length: int) -> None:
        self._model.crop(length)


def answer(
    target: Model, tokenizer: Tokenizer, job: Job, drafter: Drafter | None = None, k: int = 0, rule: Rule = EXACT
) -> Iterator[Piece]:
    """The pieces of the answer to `job`, one per step, the last with a finish reason. Raises as `generate` does."""
    watched, written = Watched(target), Written(tokenizer, job)
    rng = np.random.default_rng(None if job.seed is None else job.seed % 2**64)
    first = True
    for step in generate(watched, job.prompt, job.sampling, rng, job.max_tokens, drafter, k, written.ends, rule):
        tokens, text = written.add(step.tokens)
        prompt_scores = scores = None
        if first and job.prompt_top is not None:
            prompt_scores = _scored(watched.rows[:-1], job.prompt[1:], job.prompt_top)
        if job.top is not None:
            scores = _scored(watched.rows[-step.drafted - 1 :], tokens, job.top)
        yield Piece(
            tokens=tokens,
            text=text,
            drafted=step.drafted,
            accepted=step.accepted,
            scores=scores,
            prompt_scores=prompt_scores,
            finish_reason=written.finish_reason,
            stop_reason=written.stop_reason,
        )
        first = False
        if written.finish_reason is not None:
            return


class Written:
    """The text of an answer as far as it may be shown, and whether it has ended.

    Held back until more is known: the first bytes of a character, and what may turn out to begin a stop string. A stop
    string is no part of the text; its tokens are part of the answer (vllm/v1/engine/detokenizer.py).
    """

    def __init__(self, tokenizer: Tokenizer, job: Job) -> None:
        self.ends = job.stop_ids | (frozenset() if job.ignore_eos else {tokenizer.eos})
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._tokenizer, self._job = tokenizer, job
        self._ids: list[int] = []
        self._count = self._shown = 0

    def add(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Those of `tokens` that belong to the answer, and the text that can be shown now."""
        taken, text = 0, None
        for token in tokens:
            taken += 1
            text = self._take(token)
            if self.finish_reason is not None:
                break
        visible = self._decoded() if text is None else text
        if self.finish_reason is None:
            visible = visible.rstrip(INCOMPLETE)
            visible = visible[: len(visible) - _begun(visible, self._job.stops)]
        fresh = visible[self._shown :]
        self._shown += len(fresh)
        return tuple(tokens[:taken]), fresh

    def _take(self, token: int) -> str | None:
        """Count one token. The whole text, where this token ended the answer with a stop string."""
        self._count += 1
        if token in self.ends:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self._job.stop_ids else None
            return None
        self._ids.append(token)
        if self._job.stops:
            text = self._decoded()
            found = [(at, stop) for stop in self._job.stops if (at := text.find(stop)) >= 0]
            if found:
                at, self.stop_reason = min(found)
                self.finish_reason = "stop"
                return text[:at]
        if self._count == self._job.max_tokens:
            self.finish_reason = "length"
        return None

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._ids)


def _begun(text: str, stops: Sequence[str]) -> int:
    """How many last characters of `text` may be the beginning of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    tails = (text[-n:] for n in range(min(longest, len(text)), 0, -1))
    return next((len(tail) for tail in tails if any(stop.startswith(tail) for stop in stops)), 0)


def _scored(logits: FloatArray, tokens: Sequence[int], top: int) -> tuple[Scored, ...]:
    """Each of `tokens` [n] under its row of `logits` [n or more, V], with the `top` likeliest, the lower id first."""
    return tuple(_score(row, token, top) for row, token in zip(logits, tokens, strict=False))


def _score(logits: FloatArray, token: int, top: int) -> Scored:
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    likeliest = _highest(logprobs, top)
    return Scored(
        Choice(token, float(logprobs[token]), int((logprobs >= logprobs[token]).sum())),
        tuple(Choice(int(one), float(logprobs[one]), rank) for rank, one in enumerate(likeliest, 1)),
    )


def _highest(values: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """Places of the `count` highest of `values`, the highest first, the lower place first among equals."""
    if count == 0:
        return np.empty(0, dtype=np.intp)
    least = np.partition(values, -count)[-count] if count < len(values) else -np.inf
    places = np.flatnonzero(values >= least)  # more than `count` where several tie with the last
    return places[np.argsort(-values[places], kind="stable")][:count]
