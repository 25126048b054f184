"""A seed gives the same tokens however the prompt was cut, on a CPU whose generators have no offset."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from toolkit.engines.vllm_seeds import mend


class Runner:
    """As far as it matters vLLM's: rows sample with their generators, and thrown away ones are set back by offset."""

    def __init__(self, seeds: dict[int, int], rows: int = 3) -> None:
        self.input_batch = SimpleNamespace(generators={}, num_reqs=rows)
        for row, seed in seeds.items():
            self.input_batch.generators[row] = torch.Generator().manual_seed(seed)
        self.discard_request_mask = SimpleNamespace(np=np.zeros(8, bool))
        self.seen_in_the_books: list[int] = []

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> dict[int, float]:
        return {row: float(torch.rand((), generator=one)) for row, one in self.input_batch.generators.items()}

    def _bookkeeping_sync(self, *_: Any) -> str:
        self.seen_in_the_books = sorted(self.input_batch.generators)
        for row in np.nonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])[0]:
            generator = self.input_batch.generators.get(int(row))
            if generator is not None:
                generator.set_offset(generator.get_offset() - 4)
        return "books"

    def step(self, *thrown_away: int) -> dict[int, float]:
        self.discard_request_mask.np[:] = False
        self.discard_request_mask.np[list(thrown_away)] = True
        found = self._sample(None, None)
        assert self._bookkeeping_sync(1, 2) == "books"
        return found


@pytest.fixture
def runner() -> type[Runner]:
    class Mended(Runner):
        pass

    mend(SimpleNamespace(CPUModelRunner=Mended))
    return Mended


def test_as_it_comes_it_dies() -> None:
    with pytest.raises(RuntimeError, match="offset"):
        Runner({0: 5}).step(0)


def test_what_was_thrown_away_is_drawn_again(runner: type[Runner]) -> None:
    mended = runner({0: 5})
    assert mended.step(0) == mended.step(0) == mended.step()


def test_a_cut_prompt_gives_the_tokens_of_a_whole_one(runner: type[Runner]) -> None:
    whole, cut = runner({1: 9}), runner({1: 9})
    cut.step(1)
    cut.step(1)
    assert [cut.step() for _ in range(4)] == [whole.step() for _ in range(4)]


def test_the_others_of_the_batch_draw_on(runner: type[Runner]) -> None:
    mended = runner({0: 5, 1: 6})
    first, second = mended.step(0), mended.step(0)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_rows_without_a_seed_and_beyond_the_batch_are_no_matter(runner: type[Runner]) -> None:
    mended = runner({0: 5}, rows=2)
    assert len(mended.step(1, 5)) == 1


def test_the_batch_keeps_its_generators(runner: type[Runner]) -> None:
    mended = runner({0: 5, 1: 6})
    before = dict(mended.input_batch.generators)
    mended.step(0)
    assert mended.input_batch.generators == before
    assert mended.seen_in_the_books == [1]


def test_they_are_kept_when_the_books_fail(runner: type[Runner]) -> None:
    mended = runner({0: 5})
    mended.discard_request_mask.np[0] = True
    mended.input_batch.num_reqs = 1

    def fails(*_: Any) -> None:
        raise KeyError("books")

    class Failing(Runner):
        _bookkeeping_sync = fails  # type: ignore[assignment]

    mend(SimpleNamespace(CPUModelRunner=Failing))
    failing = Failing({0: 5}, rows=1)
    failing.discard_request_mask.np[0] = True
    with pytest.raises(KeyError):
        failing._bookkeeping_sync()
    assert list(failing.input_batch.generators) == [0]


def test_mending_twice_is_mending_once(runner: type[Runner]) -> None:
    before = runner._sample
    mend(SimpleNamespace(CPUModelRunner=runner))
    assert runner._sample is before
