"""What a pass costs by a Run's own baseline: for runs beside which nobody ran verify-cost.

At each level the baseline's iterations took so many seconds over so many tokens: one of each request, and the prompts
that arrived meanwhile. That is a curve, as far as the levels reach. Of a draft's cost it says nothing.
"""

from collections.abc import Sequence

import numpy as np

from toolkit.analysis.factors import factors
from toolkit.analysis.forecast.cost import Curve, MeasuredCost, Point
from toolkit.analysis.records import RequestRecord
from toolkit.analysis.run import Run


def own_cost(run: Run) -> MeasuredCost | None:
    """The cost curve of the baseline's iterations; None with fewer than two levels, or without a counter of them."""
    baseline = run.info.baseline
    if baseline is None or baseline.speculates:
        return None
    found: dict[int, list[tuple[float, float]]] = {}
    for arm in run.info.arms:
        for level in factors(run, arm.name):
            seconds, passes = level.baseline.seconds_per_iteration, level.baseline.passes_per_iteration
            records = [
                record
                for record in run.requests()
                if (record.cell.side, record.cell.concurrency) == ("baseline", level.concurrency) and not record.error
            ]
            if seconds and passes and records:
                found.setdefault(level.concurrency, []).append((passes * _tokens_per_pass(records), seconds))
    means = [np.mean(pairs, axis=0) for _, pairs in sorted(found.items())]
    points = [
        Point(tokens=round(tokens), seconds=seconds, low=seconds, high=seconds, repeats=1) for tokens, seconds in means
    ]
    rising = [point for number, point in enumerate(points) if number == 0 or point.tokens > points[number - 1].tokens]
    if len(rising) < 2:
        return None
    return MeasuredCost(
        created=run.info.created,
        name=baseline.name,
        model=baseline.model,
        hardware=run.info.hardware,
        plain=Curve(points=rising, context=0),
        kv_tokens=baseline.kv_tokens,
        overhead=0.0,
        source=f"the iterations of {baseline.name} in this Run",
    )


def _tokens_per_pass(records: Sequence[RequestRecord]) -> float:
    """Tokens that the engine passes over for one of the answer: itself, and its part of the prompt."""
    prompt = sum(record.prompt_tokens or 0 for record in records)
    answer = sum(record.completion_tokens or 0 for record in records)
    return 1 + prompt / answer if answer else 1.0
