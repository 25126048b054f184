"""Rows and sequences: whoever moves, leaves and comes back is recognised, and nobody is taken for another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slots import Engine, Request

from toolkit.proposers.identity import NEW, Rows

WIDTH = 400
rng = np.random.default_rng(0)


class Batch:
    """A batch laid out by hand."""

    def __init__(self, slots: int = 4) -> None:
        self.rows = Rows(slots, slots)
        self.token_ids = np.zeros((slots, WIDTH), np.int32)

    def call(self, *rows: tuple[list[int], int]) -> list[int]:
        """Seats of rows given as (tokens, how many of them are fresh)."""
        for slot, (tokens, _) in enumerate(rows):
            self.token_ids[slot, : len(tokens)] = tokens
        ends = np.array([len(tokens) for tokens, _ in rows], np.int32)
        fresh = np.array([new for _, new in rows], np.int32)
        return self.rows.recognise(ends, fresh, self.token_ids)[0].tolist()

    def seat(self, row: int, start: int, end: int) -> int:
        return self.rows.seat(row, start, end, self.token_ids[row])


def text(length: int) -> list[int]:
    return rng.integers(0, 1000, length).tolist()


@pytest.fixture
def batch() -> Batch:
    return Batch()


def two(batch: Batch, a: list[int], b: list[int]) -> None:
    """Both are in the batch, with one token beyond their prompts."""
    batch.call((a, 1), (b, 1))
    assert [batch.seat(row, len(one) - 1, len(one)) for row, one in enumerate((a, b))] == [0, 1]


def test_nobody_is_known_at_first(batch: Batch) -> None:
    assert batch.call((text(20), 1), (text(30), 0)) == [NEW, NEW]


def test_whoever_stays_is_recognised(batch: Batch) -> None:
    a, b = text(20), text(30)
    two(batch, a, b)
    assert batch.call(([*a, 1], 1), ([*b, 2, 3, 4], 3)) == [0, 1]


def test_whoever_moves_is_recognised(batch: Batch) -> None:
    a, b = text(20), text(20)
    two(batch, a, b)
    assert batch.call(([*b, 1], 1), ([*a, 2], 1)) == [1, 0]


def test_a_prompt_computed_in_chunks_is_one_sequence(batch: Batch) -> None:
    a = text(50)
    batch.call((a, 0))
    batch.seat(0, 50, 50)
    assert [batch.call((a, 0)), batch.call(([*a, 7], 1))] == [[0], [0]]


def test_whoever_comes_back_is_recognised_in_another_slot(batch: Batch) -> None:
    a, b = text(20), text(30)
    two(batch, a, b)
    batch.call(([*b, 1], 1))
    assert batch.call(([*b, 1, 2], 1), ([*a, 5], 1)) == [1, 0]


def test_the_next_turn_of_a_conversation_is_a_new_sequence(batch: Batch) -> None:
    """It begins with all of the last one, whose slot it takes."""
    a, b = text(20), text(30)
    two(batch, a, b)
    assert batch.call((a + text(15), 1), ([*b, 1], 1)) == [NEW, 1]


def test_a_prompt_that_came_before_is_a_new_sequence(batch: Batch) -> None:
    a, b = text(20), text(30)
    two(batch, a, b)
    assert batch.call((a, 1), ([*b, 1], 1)) == [NEW, 1]


@pytest.mark.parametrize("at", [0, 4, 13, 24, 27], ids="early token {}".format)
def test_the_same_length_and_end_are_not_enough(batch: Batch, at: int) -> None:
    a, b = text(50), text(30)
    other = a[:at] + [7777] * 8 + a[at + 8 :]
    two(batch, a, b)
    assert batch.call(([*b, 1], 1), ([*other, 1], 1)) == [1, NEW]


def test_rows_with_one_prompt_are_told_apart_by_their_slots(batch: Batch) -> None:
    a = text(20)
    two(batch, a, a)
    assert batch.call(([*a, 1], 1), ([*a, 1], 1)) == [0, 1]


def test_no_sequence_stands_in_two_rows(batch: Batch) -> None:
    a = text(20)
    batch.call((a, 1))
    batch.seat(0, 19, 20)
    assert batch.call(([*a, 1], 1), ([*a, 1], 1)) == [0, NEW]


def test_what_lies_behind_the_end_of_a_row_is_no_matter(batch: Batch) -> None:
    a, b = text(20), text(30)
    two(batch, a, b)
    batch.token_ids[:, 40:] = 99
    assert batch.call(([*a, 1], 1), ([*b, 2], 1)) == [0, 1]


class TestAbsent:
    def test_those_who_are_here_are_not(self, batch: Batch) -> None:
        a, b = text(20), text(30)
        two(batch, a, b)
        batch.call(([*a, 1], 1), ([*b, 1], 1))
        assert list(batch.rows.absent(2)) == []

    def test_who_left_is_at_once(self, batch: Batch) -> None:
        a, b = text(20), text(30)
        two(batch, a, b)
        batch.call(([*b, 1], 1))
        assert list(batch.rows.absent(1)) == [0]

    def test_who_left_is_not_for_longer_than_it_is(self, batch: Batch) -> None:
        a, b = text(20), text(30)
        two(batch, a, b)
        batch.call(([*b, 1], 1))
        batch.call(([*b, 1, 2], 1))
        assert [list(batch.rows.absent(1, steps)) for steps in (2, 3)] == [[0], []]

    def test_who_is_over_is_no_more(self, batch: Batch) -> None:
        a, b = text(20), text(30)
        two(batch, a, b)
        batch.call(([*b, 1], 1))
        batch.rows.leave(0)
        assert list(batch.rows.absent(1)) == []

    def test_who_is_over_is_new_when_it_comes_back(self, batch: Batch) -> None:
        a, b = text(20), text(30)
        two(batch, a, b)
        batch.call(([*b, 1], 1))
        batch.rows.leave(0)
        assert batch.call(([*b, 1, 2], 1), ([*a, 1], 1)) == [1, NEW]


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Engine, list[tuple[int, Request]]]:
    """An engine, and requests with the step at which each arrives; some share a prompt or its beginning."""
    slots = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    own = np.random.default_rng(seed)
    engine = Engine(slots, WIDTH, draw(st.sampled_from([16, 40, 200])), draw(st.sampled_from([150, 300, 10**6])), seed)
    shared = own.integers(0, 50, 60).tolist()
    arrivals = []
    for _ in range(draw(st.integers(1, 12))):
        prompt = shared[: draw(st.sampled_from([0, 20, 60]))] + own.integers(0, 50, draw(st.integers(1, 40))).tolist()
        output = own.integers(0, 50, draw(st.integers(1, 40))).tolist()
        copies = draw(st.integers(1, 2))
        when = draw(st.integers(0, 60))
        arrivals += [(when, Request(list(prompt), list(output) if same else output[::-1])) for same in range(copies)]
    return engine, arrivals


@given(traffic())
def test_every_row_is_whom_its_seat_was_given_to(given_: tuple[Engine, list[tuple[int, Request]]]) -> None:
    """Or one whose tokens are the same so far. And whoever left comes back to its seat."""
    engine, arrivals = given_
    rows = Rows(engine.slots, 100)
    owners: dict[int, list[int]] = {}
    met: dict[Request, int] = {}

    def propose(sampled: list[list[int]], lengths: np.ndarray, token_ids: np.ndarray) -> list[list[int]]:
        n = len(sampled)
        fresh = np.array([len(one) for one in sampled], np.int32)
        seats, known = rows.recognise(lengths[:n], fresh, token_ids)
        for row, (seat, one) in enumerate(zip(seats.tolist(), engine.rows, strict=True)):
            before = one.tokens[: len(one.tokens) - int(fresh[row])]
            if seat == NEW:
                twins = [other for other in engine.rows if other is not one and other.prompt == one.prompt]
                assert one not in met or twins, "met before, and not recognised"
                seat = rows.seat(row, len(before), len(one.tokens), token_ids[row])
            else:
                assert owners[seat] == before
            met[one] = seat
            owners[seat] = one.tokens
        assert len(set(seats.tolist()) - {NEW}) == (seats != NEW).sum() == known
        return [one.output[one.made : one.made + 3] for one in engine.rows]

    for step in range(10_000):
        engine.waiting.extend(one for when, one in arrivals if when == step)
        engine.step(propose)
        if engine.idle and step > 60:
            break
    assert all(one.over for _, one in arrivals)
