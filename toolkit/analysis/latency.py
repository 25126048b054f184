"""How long a person waits: the spread of TTFT, TPOT and the gap between chunks, of both sides of a pair."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from toolkit.analysis.levels import tpot
from toolkit.analysis.records import RequestRecord, Side
from toolkit.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of `count` latencies, in milliseconds."""

    count: int
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float


@dataclass(frozen=True, slots=True)
class Latency:
    """One side at one concurrency. A chunk can carry several tokens: `itl` is the gap between chunks, not tokens."""

    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None


@dataclass(frozen=True, slots=True)
class LevelLatency:
    """Arm and baseline at one concurrency, over all rounds, the answered requests alone."""

    concurrency: int
    arm: Latency
    baseline: Latency


def latencies(run: Run, arm: str) -> list[LevelLatency]:
    """Of every level of `arm` that has answered requests, by rising concurrency."""
    by_side: dict[tuple[int, Side], list[RequestRecord]] = {}
    for record in run.requests():
        if record.cell.arm == arm and record.error is None:
            by_side.setdefault((record.cell.concurrency, record.cell.side), []).append(record)
    return [
        LevelLatency(level, _latency(by_side.get((level, "arm"), [])), _latency(by_side.get((level, "baseline"), [])))
        for level in sorted({level for level, _ in by_side})
    ]


def spread(seconds: Iterable[float | None]) -> Spread | None:
    """Quantiles of what is known of `seconds`; None when nothing is.

    >>> spread([0.001, None, 0.003])
    Spread(count=2, p5=1.1, p25=1.5, p50=2.0, p75=2.5, p95=2.9)
    """
    known = [1000 * value for value in seconds if value is not None]
    if not known:
        return None
    return Spread(len(known), *(round(float(q), 6) for q in np.percentile(known, [5, 25, 50, 75, 95])))


def _latency(records: Sequence[RequestRecord]) -> Latency:
    gaps = (after - before for record in records for (before, _), (after, _) in pairwise(record.chunks))
    return Latency(spread(record.ttft for record in records), spread(map(tpot, records)), spread(gaps))
