"""Proposers side by side on recorded traffic: what each guesses right, and what its guessing takes.

Counts come from each request once, in the file's order, so that a memory across requests fills on the way; each class
begins with fresh proposers. Times come from another run (`timing.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.analysis.forecast.cost import Curve, read_cost
from toolkit.analysis.replay.candidates import DraftLengths, Lookup, above, worth
from toolkit.analysis.replay.engine import Proposer, StepSeconds, Tally, serve
from toolkit.analysis.replay.peers import Nothing, Oracle, Suffix, UnavailableError, VllmNgram
from toolkit.analysis.replay.timing import BATCH, Times, batch_size, timings
from toolkit.analysis.replay.traces import Request, read_traces
from toolkit.errors import InputError

OURS, ORACLE, NONE = "prompt-lookup", "oracle", "none"
NAMES = (OURS, "vllm-ngram", "suffix", "suffix-factor-1", ORACLE, NONE)
FLOOR = 0.1
MOST_DRAFT = 256
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReplayAsk:
    """What `toolkit replay` is asked. `floor` decides how far ours drafts, unless `cost` tells what a step takes."""

    trace: Path
    max_draft: int = 16
    floor: float = FLOOR
    cost: Path | None = None
    concurrency: int = 1
    proposers: Sequence[str] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Who is compared; no speculation only where its tokens/s say something."""
        return tuple(self.proposers) or tuple(name for name in NAMES if name != NONE or self.cost)


@dataclass(frozen=True, slots=True)
class Row:
    """One proposer on one class of traffic, ratios of summed counts; None is what was not measured or has no meaning.

    `drafted_per_step`: per pass that could carry a draft. `us_per_step`: microseconds of drafting per request and step.
    `tokens_per_second`: predicted from a cost, tokens after each request's first. Where the proposer is not installed
    `unavailable` says why, and all else is None.
    """

    proposer: str
    kind: str
    tokens_per_pass: float | None = None
    draft_acceptance_rate: float | None = None
    us_per_step: float | None = None
    build_ns_per_token: float | None = None
    drafted_per_step: float | None = None
    bytes_per_token: float | None = None
    tokens_per_second: float | None = None
    requests: int | None = None
    completion_tokens: int | None = None
    passes: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    unavailable: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The keys of `toolkit replay --json`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def replay(ask: ReplayAsk, progress: Progress = lambda text: None) -> list[Row]:
    """A row per class and proposer. Raises InputError: a wrong option, a trace or a cost that cannot be read."""
    _check(ask)
    classes = read_traces(ask.trace)
    curve = read_cost(ask.cost).plain if ask.cost else None
    step_seconds = table(curve, max(BATCH, ask.concurrency) * (1 + ask.max_draft)) if curve else None
    return [row for kind, requests in classes.items() for row in _class(ask, kind, requests, step_seconds, progress)]


def table(curve: Curve, most: int) -> StepSeconds:
    """Steps of up to `most` tokens, requests and their drafts together, by a measured curve."""
    bare = np.array([curve.seconds(tokens, 0) for tokens in range(1, most + 1)])

    def seconds(requests: int, drafted: int, held: int) -> npt.NDArray[np.float64]:
        context = curve.seconds(1, held) - bare[0]
        return np.asarray(bare[requests - 1 : requests + drafted] + context)

    return seconds


def _check(ask: ReplayAsk) -> None:
    if not 1 <= ask.max_draft <= MOST_DRAFT:
        raise InputError(f"--max-draft {ask.max_draft}: from 1 to {MOST_DRAFT} draft tokens.")
    if not 0 <= ask.floor <= 1:
        raise InputError(f"--floor {ask.floor:g}: a probability, from 0 to 1.")
    if ask.concurrency < 1:
        raise InputError(f"--concurrency {ask.concurrency}: at least one request.")
    for name in ask.proposers:
        if name not in NAMES:
            raise InputError(f"--proposer {name}: there is none of that name. Known: {', '.join(NAMES)}.")


def _class(
    ask: ReplayAsk, kind: str, requests: list[Request], step_seconds: StepSeconds | None, progress: Progress
) -> list[Row]:
    draft_lengths = worth(step_seconds) if step_seconds else above(ask.floor)
    counts: dict[str, Tally] = {}
    missing: dict[str, str] = {}
    makers = {name: partial(make, name, requests, ask.max_draft, draft_lengths) for name in ask.names}
    for name, maker in makers.items():
        progress(f"{kind}: {name}")
        try:
            counts[name] = serve(maker(ask.concurrency), requests, ask.concurrency, step_seconds)
        except UnavailableError as error:
            missing[name] = str(error)
    progress(f"{kind}: timing")
    timed = {name: makers[name] for name in counts if name not in (ORACLE, NONE)}
    times = timings(timed, requests, batch_size(requests))
    return [
        _row(name, kind, counts[name], times.get(name))
        if name in counts
        else Row(name, kind, unavailable=missing[name])
        for name in ask.names
    ]


def _row(name: str, kind: str, count: Tally, times: Times | None) -> Row:
    return Row(
        proposer=name,
        kind=kind,
        tokens_per_pass=count.tokens / count.passes,
        draft_acceptance_rate=count.accepted / count.drafted if count.drafted else None,
        us_per_step=times.us_per_step if times else None,
        build_ns_per_token=times.build_ns_per_token if times else None,
        drafted_per_step=count.drafted / count.steps if count.steps else None,
        bytes_per_token=times.bytes_per_token if times else None,
        tokens_per_second=(count.tokens - count.requests) / count.engine_seconds if count.engine_seconds else None,
        requests=count.requests,
        completion_tokens=count.tokens,
        passes=count.passes,
        drafted=count.drafted,
        accepted=count.accepted,
    )


def make(name: str, requests: list[Request], most: int, draft_lengths: DraftLengths, in_flight: int) -> Proposer:
    """A fresh proposer of this name for requests of one class. Raises UnavailableError where it is not installed."""
    match name:
        case "prompt-lookup":
            return Lookup(most, in_flight, draft_lengths)
        case "vllm-ngram":
            return VllmNgram(most, in_flight, max(request.length for request in requests))
        case "suffix":
            return Suffix(most, factor=4.0)
        case "suffix-factor-1":
            return Suffix(most, factor=1.0)
        case "oracle":
            return Oracle(most, requests)
        case _:
            return Nothing()
