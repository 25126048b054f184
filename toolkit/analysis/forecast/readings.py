"""From the single readings of verify-cost to curves: medians, outliers and strangers left out."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from toolkit.analysis.forecast.cost import Curve, Drafting, MeasuredCost, Point
from toolkit.errors import EngineError

Kind = Literal["pass", "decode"]


class Reading(BaseModel):
    """One request: seconds from sending to the end of its answer. A decode is timed per further token."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: str
    kind: Kind
    tokens: int
    context: int
    seconds: float


def cost_of(
    readings: Sequence[Reading],
    plain: str,
    drafting: Sequence[tuple[str, str, str | None, int]],
    kv_tokens: Mapping[str, float | None] | None = None,
) -> MeasuredCost:
    """The curves that the readings give. `drafting` lists name, method, draft and K of the engines that draft.

    Raises EngineError when there are too few readings.
    """
    room = kv_tokens or {}
    decode = [one.seconds for one in readings if (one.engine, one.kind) == (plain, "decode")]
    passes = _passes(readings, plain)
    single = [one.seconds for one in passes if (one.tokens, one.context) == (1, _contexts(passes)[0])]
    if not decode or not single:
        raise EngineError(f"{plain}: no pass over a single new token was seen: is its prefix cache on?")
    overhead = max(0.0, statistics.median(single) - statistics.median(decode))
    return MeasuredCost(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        name=plain,
        model="",
        hardware={},
        plain=_curve(readings, plain, overhead),
        drafting=[
            Drafting(
                name=name,
                method=method,
                draft=draft,
                num_speculative_tokens=k,
                curve=_curve(readings, name, overhead),
                kv_tokens=room.get(name),
            )
            for name, method, draft, k in drafting
        ],
        overhead=overhead,
        kv_tokens=room.get(plain),
    )


def _passes(readings: Iterable[Reading], engine: str) -> list[Reading]:
    return [one for one in readings if (one.engine, one.kind) == (engine, "pass")]


def _contexts(passes: Sequence[Reading]) -> list[int]:
    """The shorter context, at which nearly all passes were read, and the longer one if there is.

    Whatever else was found cached, somebody else's requests were in the way: those readings are left out.
    """
    counts = Counter(one.context for one in passes)
    short = counts.most_common(1)[0][0] if counts else 0
    longer = [context for context, _ in counts.most_common() if context > short]
    return [short, *longer[:1]]


def _curve(readings: Sequence[Reading], engine: str, overhead: float) -> Curve:
    """Points at the shorter context; what the longer one adds to the smallest pass is the price of held tokens."""
    passes = _passes(readings, engine)
    contexts = _contexts(passes)
    short = [one for one in passes if one.context == contexts[0]]
    points = []
    for tokens in sorted({one.tokens for one in short}):
        seconds = sorted(one.seconds - overhead for one in short if one.tokens == tokens)
        low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        points.append(Point(tokens=tokens, seconds=max(middle, 1e-6), low=low, high=high, repeats=len(seconds)))
    per_held = 0.0
    if len(contexts) > 1:
        long = [one for one in passes if one.context == contexts[1]]
        least = min(one.tokens for one in long)
        beside = [one.seconds for one in short if one.tokens == least]
        if beside:
            more = statistics.median(one.seconds for one in long if one.tokens == least) - statistics.median(beside)
            per_held = max(0.0, more / (contexts[1] - contexts[0]))
    return Curve(points=points, context=contexts[0], per_held_token=per_held)
