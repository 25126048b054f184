"""Which layers to leave out: one after another the one that is missed least, then exchanges of two.

Removing layers singly finds no pair that can only be spared together, and never takes one back. So for each number of
layers, from few to many, a kept layer is exchanged for one that was left out, as long as that helps. What was scored on
the way counts for the sizes beside it too.
"""

from collections.abc import Callable
from typing import Protocol

Layers = tuple[int, ...]

WIDTH = 6
"""Of a set's layers, how many are tried for removal between two rounds that try all: those missed least so far."""
ALL_EVERY = 5
"""Removals from one round that tries all layers to the next."""
EXCHANGED = 3
"""Layers tried on either side of an exchange."""


class Scores(Protocol):
    """Scores sets of layers of a model that has `count` of them; more is better."""

    @property
    def count(self) -> int: ...

    def agreement(self, layers: Layers) -> float:
        """The score of `layers`, rising; the same each time, and free the second time."""

    def settle(self, layers: Layers) -> None:
        """Say that sets like `layers` come next."""


def search(scores: Scores, told: Callable[[str], None] = lambda _: None) -> dict[int, Layers]:
    """The best set found of each size, from all layers but one down to a single one. `told` hears how far it is."""
    best = _Best(scores)
    left_out = _remove(best, told)
    for size in range(2, scores.count):
        told(f"exchanging layers: {size} of {scores.count} kept")
        _exchange(best, size, left_out)
    return best.sets


class _Best:
    """The best set of each size among all that were scored, and what leaving a layer out of a set of some size lost."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.sets: dict[int, Layers] = {}
        self._lost: dict[int, dict[int, float]] = {}

    def score(self, layers: Layers) -> float:
        found = self.scores.agreement(layers)
        if len(layers) < self.scores.count:
            beaten = self.sets.get(len(layers))
            if beaten is None or found > self.scores.agreement(beaten):
                self.sets[len(layers)] = layers
        return found

    def without(self, layers: Layers, layer: int) -> float:
        """The score of `layers` without `layer`."""
        found = self.score(tuple(kept for kept in layers if kept != layer))
        self._lost.setdefault(len(layers), {})[layer] = self.scores.agreement(layers) - found
        return found

    def least_missed(self, layers: Layers, most: int) -> list[int]:
        """Of `layers` those that were missed least in the smallest set that has no fewer layers."""
        known: dict[int, float] = {}
        for size in sorted(self._lost, reverse=True):
            if size >= len(layers):
                known |= self._lost[size]
        return sorted(layers, key=lambda layer: known.get(layer, 0.0))[:most]


def _remove(best: _Best, told: Callable[[str], None]) -> list[int]:
    """From all layers to one. The layers left out, in that order."""
    kept = tuple(range(best.scores.count))
    left_out: list[int] = []
    while len(kept) > 1:
        told(f"leaving layers out: {len(kept)} of {best.scores.count} kept")
        best.scores.settle(kept)
        tried = kept if len(left_out) % ALL_EVERY == 0 else best.least_missed(kept, WIDTH)
        gone = max(tried, key=lambda layer: best.without(kept, layer))
        kept = tuple(layer for layer in kept if layer != gone)
        left_out.append(gone)
    return left_out


def _exchange(best: _Best, size: int, left_out: list[int]) -> None:
    """Exchange one of `size` kept layers for one that was left out, until none of those tried is better."""
    while True:
        kept = best.sets[size]
        best.scores.settle(kept)
        # Those left out last were missed most.
        outside = [layer for layer in reversed(left_out) if layer not in kept][: 2 * EXCHANGED]
        added = sorted(outside, key=lambda layer: best.score(_with(kept, layer)), reverse=True)[:EXCHANGED]
        for new in added:
            for old in best.least_missed(kept, EXCHANGED):
                best.score(_with(tuple(layer for layer in kept if layer != old), new))
        if best.sets[size] == kept:
            return


def _with(layers: Layers, layer: int) -> Layers:
    return tuple(sorted((*layers, layer)))
