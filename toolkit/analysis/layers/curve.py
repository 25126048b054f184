"""What sets of kept layers agree, cost and win: tokens of rounds along the target's own texts, over what a round takes.

Which set and which K are best is chosen on the texts that were searched with. What they win is said of other texts:
of the first they were made the best ones there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from toolkit.analysis.forecast.estimate import Estimate, IntArray, estimate, per_unit, share, units

Verdict = Literal["pays", "costs", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Of drafts from each start of some texts, how many tokens were kept: `counts` [starts]; `text` [starts] rises.

    `left` [starts]: tokens of the text behind each start.
    """

    counts: IntArray
    text: IntArray
    left: IntArray

    @property
    def agreement(self) -> Estimate:
        """The share of starts whose first draft token is kept."""
        unit = units(np.bincount(self.text).tolist())
        found = share(per_unit(self.counts >= 1, unit), per_unit(np.ones(len(unit)), unit))
        assert found is not None
        return found

    def rounds(self, k: int) -> "Rounds":
        """Rounds of `k` drafts along each text: the first at its first start, each further one where the last ended."""
        starts: list[int] = []
        begin = 0
        for count in np.bincount(self.text):
            at = begin
            while at < begin + count:
                starts.append(at)
                at += min(int(self.counts[at]), k) + 1
            begin += int(count)
        chosen = np.array(starts)
        return Rounds(k, np.minimum(self.counts[chosen], k), self.text[chosen], self.left[chosen])


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of `k` drafts: of each how many were `kept`, and its text; `left` bounds what it can emit."""

    k: int
    kept: IntArray
    text: IntArray
    left: IntArray

    @property
    def tokens(self) -> Estimate:
        """Tokens per target step, the fix or bonus token among them."""
        return self._per_round(1.0)

    def speedup(self, cost: float) -> Estimate:
        """Over plain decoding, when a round takes as long as `cost` target steps."""
        return self._per_round(cost)

    @property
    def given(self) -> tuple[float | None, ...]:
        """The share kept at each position, given that those before were kept; None where none came so far."""
        reached = [int((self.kept >= position).sum()) for position in range(self.k + 1)]
        return tuple(after / before if before else None for before, after in pairwise(reached))

    def _per_round(self, cost: float) -> Estimate:
        emitted = np.minimum(self.kept + 1, self.left)
        unit = units(np.bincount(self.text).tolist())
        totals = per_unit(np.stack([emitted, np.ones(len(emitted))], axis=1), unit)
        return estimate(totals, lambda sums: float(sums[0] / sums[1] / cost), len(self.kept))


@dataclass(frozen=True, slots=True)
class Point:
    """A set of layers: what it keeps on the texts searched with and on those held out, and its c.

    `cost(k)` is what a round takes in target steps.
    """

    layers: tuple[int, ...]
    c: float
    cost: Callable[[int], float]
    searched: Kept
    held_out: Kept
    k: int
    """The best K, on the texts searched with."""

    @property
    def rounds(self) -> Rounds:
        """Rounds of the best K, on the texts held out."""
        return self.held_out.rounds(self.k)

    @property
    def speedup(self) -> Estimate:
        """Predicted for the best K, on the texts held out."""
        return self.rounds.speedup(self.cost(self.k))

    @property
    def searched_speedup(self) -> float:
        return self.searched.rounds(self.k).speedup(self.cost(self.k)).value

    def as_json(self) -> dict[str, Any]:
        rounds = self.rounds
        return {
            "kept": len(self.layers),
            "layers": list(self.layers),
            "c": self.c,
            "agreement_searched": self.searched.agreement.as_json(),
            "agreement_held_out": self.held_out.agreement.as_json(),
            "k": self.k,
            "given": list(rounds.given),
            "tokens_per_step": rounds.tokens.as_json(),
            "speedup": self.speedup.as_json(),
            "speedup_searched": self.searched_speedup,
        }


class Enough:
    """Whether longer drafts can pay: asked after each depth, of the texts searched with.

    A further draft token costs c at least and is kept by no more rounds than the one before. Once those are fewer than
    c times the best speedup so far, all longer drafts are worse.
    """

    def __init__(self, c: float, cost: Callable[[int], float], text: IntArray, left: IntArray) -> None:
        self.depth = 0
        self._c, self._cost, self._text, self._left = c, cost, text, left
        self._best = 0.0

    def __call__(self, depth: int, counts: IntArray) -> bool:
        self.depth = depth
        rounds = Kept(counts, self._text, self._left).rounds(depth)
        self._best = max(self._best, rounds.speedup(self._cost(depth)).value)
        alive = max(float((rounds.kept == depth).mean()), float((counts >= depth).mean()))
        return alive <= self._c * self._best


def round_cost(c: float, verify: Callable[[int], float]) -> Callable[[int], float]:
    """What a round of K drafts takes in target steps; `verify(n)` is a pass over n tokens, in passes over one."""
    return lambda k: verify(k + 1) + k * c


def point(
    layers: Sequence[int], c: float, cost: Callable[[int], float], searched: Kept, held_out: Kept, most: int
) -> Point:
    """The point of `layers` with its best K of 1 to `most`."""
    best = max(range(1, most + 1), key=lambda k: searched.rounds(k).speedup(cost(k)).value)
    return Point(tuple(layers), c, cost, searched, held_out, best)


@dataclass(frozen=True, slots=True)
class LayerSearch:
    """What `toolkit layer-skip search` found: the points from many kept layers to few, and where the numbers are from.

    `count` is the target's layers; `texts` and `places` are of the texts searched with, and of those held out.
    """

    target: str
    prompts: str
    count: int
    points: tuple[Point, ...]
    cost_source: str
    precision: str
    texts: tuple[int, int]
    places: tuple[int, int]
    evaluations: int
    seconds: float
    cpu_seconds: float

    @property
    def best(self) -> Point:
        """The set with the highest speedup on the texts searched with."""
        return max(self.points, key=lambda one: one.searched_speedup)

    @property
    def verdict(self) -> Verdict:
        found = self.best.speedup
        if found.low is not None and found.high is not None and (found.low > 1 or found.high < 1):
            return "pays" if found.low > 1 else "costs"
        return "inconclusive"

    @property
    def sentence(self) -> str:
        """The verdict, in words without a full stop."""
        best = self.best
        what = f"{len(best.layers)} of {self.count} layers with K = {best.k}, predicts {interval(best.speedup)}"
        return {
            "pays": f"a set pays: the best, {what}",
            "costs": f"no set pays here: the best, {what}",
            "inconclusive": f"whether a set pays is open: the best, {what}",
        }[self.verdict]

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "prompts": self.prompts,
            "num_hidden_layers": self.count,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "best": self.best.as_json(),
            "curve": [one.as_json() for one in self.points],
            "cost": self.cost_source,
            "precision": self.precision,
            "texts": {"searched": self.texts[0], "held_out": self.texts[1]},
            "places": {"searched": self.places[0], "held_out": self.places[1]},
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }


def interval(one: Estimate) -> str:
    """`0.98x [0.97, 0.99]`, as far as it is known."""
    if one.low is None or one.high is None:
        return f"{one.value:.2f}x"
    return f"{one.value:.2f}x [{one.low:.2f}, {one.high:.2f}]"
