"""The search for layers to keep, on scores whose best sets are known."""

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.layers.search import ALL_EVERY, WIDTH, Layers, search


class Made:
    """Scores by a function of the kept layers."""

    def __init__(self, count: int, score: Callable[[Layers], float]) -> None:
        self.count = count
        self.known: dict[Layers, float] = {}
        self._score = score

    def agreement(self, layers: Layers) -> float:
        assert list(layers) == sorted(set(layers))
        if layers not in self.known:
            self.known[layers] = self._score(layers)
        return self.known[layers]

    def settle(self, layers: Layers) -> None:
        pass


def best_by_trying_all(made: Made, size: int) -> float:
    return max(made.agreement(layers) for layers in combinations(range(made.count), size))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=14))
def test_layers_that_do_not_depend_on_each_other_are_left_out_in_order(worth: list[float]) -> None:
    found = search(Made(len(worth), lambda kept: sum(worth[layer] for layer in kept)))
    ordered = sorted(worth, reverse=True)
    for size, layers in found.items():
        assert sum(worth[layer] for layer in layers) == pytest.approx(sum(ordered[:size]))


@given(st.integers(2, 20))
def test_every_size_has_a_set_of_that_size(count: int) -> None:
    found = search(Made(count, lambda kept: float(sum(kept))))
    assert {size: len(layers) for size, layers in found.items()} == {size: size for size in range(1, count)}


def test_a_set_that_removal_alone_misses_is_found_by_an_exchange() -> None:
    # Layer 0 is missed least of all five; but without it 3 is needed, and the best three are 0, 1 and 2.
    def score(kept: Layers) -> float:
        return {(1, 2, 3, 4): 0.9, (0, 1, 2): 0.8, (1, 2, 3): 0.5, (1, 2, 4): 0.4}.get(kept, 0.1 * len(kept) / 5)

    assert search(Made(5, score))[3] == (0, 1, 2)


def test_no_set_that_was_tried_is_better_than_the_one_found() -> None:
    made = Made(9, lambda kept: (sum(layer * layer for layer in kept) * 7919 % 101) / 101)
    found = search(made)
    for layers, score in made.known.items():
        if len(layers) < made.count:
            assert made.known[found[len(layers)]] >= score


def test_far_fewer_sets_are_tried_than_by_removal_that_tries_all() -> None:
    worth = [(layer * 37) % 30 for layer in range(30)]
    made = Made(30, lambda kept: float(sum(worth[layer] for layer in kept)))
    search(made)
    removal = 30 * (1 + 30 // ALL_EVERY) / 2 + 30 * WIDTH
    assert len(made.known) < removal + 30 * 8
