"""A batch that changes: every sequence is indexed once and whole, clean steps are timed, drafts stay within bounds."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slots import Engine, Request
from stub_lookup import Finished, StubLookup, StubRule

from toolkit.proposers.drafting import HELD, BatchDrafter

WIDTH = 200


def seconds(requests: int, tokens: int) -> float:
    """What a pass of the simulated engine takes."""
    return round(1.0 + 0.1 * requests + 0.01 * tokens, 6)


class Served:
    """An engine with our drafter behind it, and a clock."""

    def __init__(self, engine: Engine, most: int = 4, caps: Sequence[int] | None = None) -> None:
        self.engine = engine
        self.lookup = StubLookup(most, engine.slots)
        self.rule = StubRule()
        self.drafter = BatchDrafter(self.lookup, self.rule, engine.slots, caps or [most] * (engine.slots + 1))
        self.now = 0.0
        self.drafts: list[list[int]] = []

    def step(self, *arriving: Request) -> list[list[int]]:
        """One step; returns its drafts."""
        self.engine.waiting.extend(arriving)

        def propose(sampled: list[list[int]], lengths: np.ndarray, token_ids: np.ndarray) -> list[list[int]]:
            self.now += seconds(len(sampled), self.engine.passed)
            self.drafts = self.drafter.draft(sampled, lengths, token_ids, self.now)
            return self.drafts

        self.drafts = []
        self.engine.step(propose)
        return self.drafts

    def until_idle(self) -> None:
        for _ in range(10_000):
            self.step()
            if self.engine.idle:
                return
        raise AssertionError("the engine does not come to an end")


def copying(length: int, seed: int = 0) -> Request:
    """A request whose output is its prompt again."""
    prompt = np.random.default_rng(seed).integers(0, 1000, length).tolist()
    return Request(prompt, list(prompt))


def periodic(first: int, length: int = 40) -> Request:
    """A request whose output goes on as its prompt did, so that every step drafts all that it may."""
    return Request([first, 20, 21, 22, 23] * 4, ([first, 20, 21, 22, 23] * 40)[:length])


def served(slots: int = 4, **limits: int) -> Served:
    return Served(Engine(slots, WIDTH, **limits))


class TestDrafts:
    def test_a_copy_is_drafted_and_kept(self) -> None:
        one = served()
        one.step(Request([5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 5, 6, 1]))
        assert one.step() == [[7, 8, 9, 5]]
        one.step()
        assert one.engine.rows[0].made == 7

    def test_each_row_gets_its_own(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [1, 2, 3, 4, 5]), Request([11, 12, 13, 14], [11, 12, 13, 14, 15]))
        assert one.step() == [[3, 4, 1, 2], [13, 14, 11, 12]]

    def test_a_prompt_that_is_not_yet_computed_gets_none(self) -> None:
        one = served(budget=8)
        assert one.step(Request([1, 2] * 10, [1, 2, 1, 2])) == [[]]

    def test_none_is_drafted_past_the_longest_sequence(self) -> None:
        """The engine of these tests refuses it, as vLLM would cut it."""
        one = served(budget=500)
        endless = list(range(20)) * 10
        drafted = one.step(Request(endless[: WIDTH - 8], endless[WIDTH - 8 : WIDTH]))
        while not one.engine.idle:
            drafted += one.step()
        assert [len(draft) for draft in drafted] == [4, 1, 0]

    def test_the_schedule_by_load_bounds_them(self) -> None:
        one = Served(Engine(4, WIDTH), caps=[4, 4, 1, 0, 0])
        found = []
        for k in range(3):
            found.append([len(draft) for draft in one.step(periodic(k))])
        assert found == [[4], [1, 1], [0, 0, 0]]

    def test_a_schedule_shorter_than_the_batch_goes_on_as_it_ends(self) -> None:
        one = Served(Engine(4, WIDTH), caps=[4, 4, 1])
        drafts = one.step(*(periodic(k) for k in range(3)))
        assert [len(draft) for draft in drafts] == [1, 1, 1]

    def test_more_rows_than_were_announced_are_refused(self) -> None:
        """Compiled code checks no bounds."""
        one = BatchDrafter(StubLookup(), StubRule(), 2, [4] * 3)
        with pytest.raises(ValueError, match="a batch of 3, where 2 were announced"):
            one.draft([[1]] * 3, np.full(3, 5, np.int32), np.zeros((3, WIDTH), np.int32), 0.0)


class TestMemory:
    def test_who_ended_is_finished_when_the_next_one_comes(self) -> None:
        one = served()
        one.step(Request([1, 2, 3], [4, 5]))
        one.step()
        one.step(Request([6, 7, 8], [9, 10]))
        assert one.lookup.finished == [Finished([1, 2, 3], [4, 5])]

    def test_before_the_next_one_is_looked_up(self) -> None:
        """So that it finds what was just written."""
        one = served()
        one.step(Request([1, 2, 3], [4]))
        started: list[int] = []
        finish = one.lookup.finish
        one.lookup.finish = lambda handle: (started.append(one.lookup.started), finish(handle))[1]  # type: ignore[method-assign]
        one.step(Request([6, 7, 8], [9]))
        assert started == [1]

    def test_or_after_a_while(self) -> None:
        one = served(budget=500)
        one.step(Request([1, 2, 3], [4]), Request([6], list(range(100, 100 + WIDTH - 1))))
        one.step()
        steps = 0
        while not one.lookup.finished:
            one.step()
            steps += 1
        assert HELD <= steps + 1 <= 2 * HELD

    def test_who_was_preempted_is_not_finished_and_not_indexed_again(self) -> None:
        one = served(cache=100)
        requests = [copying(40, seed) for seed in range(2)]
        one.step(*requests)
        one.until_idle()
        assert one.engine.preemptions > 0
        assert (one.lookup.started, one.lookup.finished) == (2, [])

    def test_who_found_no_place_in_a_step_neither(self) -> None:
        one = served(budget=20)
        short, long = Request([1, 2, 3], list(range(10, 30))), copying(90)
        one.step(short)
        one.step(long)
        one.engine.running.reverse()  # the long one is served first
        one.step()
        assert [row is long for row in one.engine.rows] == [True]
        one.until_idle()
        assert one.lookup.started == 2


class TestCleanSteps:
    def test_steps_that_only_decode_are_timed(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [5, 6, 7]), Request([11, 12, 13, 14], [15, 16, 17]))
        one.step()
        one.step()
        assert one.rule.observed == [(2, 0, seconds(2, 2))] * 2

    def test_with_the_drafts_that_they_verified(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [1, 2, 3, 4, 1, 2, 9]), Request([11, 12, 13, 14], [15, 16, 17, 18]))
        one.step()
        one.step()
        assert one.rule.observed == [(2, 0, seconds(2, 2)), (2, 4, seconds(2, 6))]

    def test_of_those_that_are_still_there(self) -> None:
        """Of two with drafts one ended in the step before: its draft was not verified."""
        one = served()
        one.step(periodic(1, 3), periodic(2))
        one.step()
        one.step()
        assert one.rule.observed == [(2, 8, seconds(2, 10)), (1, 4, seconds(1, 5))]

    def test_a_new_request_spoils_a_step(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [5, 6, 7]))
        one.step(Request([11, 12, 13, 14], [15, 16, 17]))
        assert one.rule.observed == []

    def test_a_prompt_in_chunks_spoils_every_step_to_its_last(self) -> None:
        one = served(budget=11)
        one.step(Request([1, 2, 3, 4], list(range(10, 30))))
        one.step(copying(35))
        for _ in range(3):
            one.step()
        assert one.rule.observed == []
        one.step()
        assert len(one.rule.observed) == 1

    def test_one_that_was_preempted_spoils_the_step_of_its_return(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [5, 6, 7, 8]), Request([11, 12, 13, 14], [15, 16, 17]))
        one.engine._preempt()
        preempted = one.engine.waiting.popleft()
        one.step()
        one.step(preempted)
        assert one.rule.observed == [(1, 0, seconds(1, 1))]

    def test_rows_that_change_places_do_not(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [5, 6, 7]), Request([11, 12, 13, 14], [15, 16, 17]))
        one.engine.rows.reverse()
        one.step()
        assert one.rule.observed == [(2, 0, seconds(2, 2))]

    def test_more_tokens_than_one_step_can_give_spoil_it(self) -> None:
        """As when the engine stepped without asking."""
        one = served()
        request = Request([1, 2, 3, 4], list(range(10, 20)))
        one.step(request)
        one.engine.step(lambda sampled, lengths, token_ids: [[]])
        before = one.lookup.started
        one.step()
        assert one.rule.observed == []
        assert one.lookup.started == before + 1, "its length was not what it had to be"


class TestTotals:
    def test_they_count_what_was_drafted_verified_and_kept(self) -> None:
        one = served()
        one.step(periodic(1, 13), copying(30), Request([1, 2] * 4, [1, 2, 9, 1, 2, 8, 8]))
        one.until_idle()
        totals = one.drafter.totals
        assert (totals.verified, totals.accepted) == (one.engine.verified, one.engine.accepted)
        assert 0 < totals.accepted < totals.verified

    def test_own_time_is_that_of_the_clean_steps(self) -> None:
        one = served()
        one.step(Request([1, 2, 3, 4], [5, 6, 7]))
        one.drafter.took(0.25)
        one.step()
        assert (one.drafter.totals.clean, one.drafter.totals.clean_own) == (1, 0.25)


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Engine, list[tuple[int, Request]]]:
    own = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    engine = Engine(
        draw(st.integers(1, 6)), WIDTH, draw(st.sampled_from([16, 200])), draw(st.sampled_from([150, 10**6])), 7
    )
    alphabet = draw(st.sampled_from([3, 1000]))
    arrivals = []
    for _ in range(draw(st.integers(1, 10))):
        prompt = own.integers(0, alphabet, draw(st.integers(1, 60))).tolist()
        output = draw(st.sampled_from([prompt, own.integers(0, alphabet, 20).tolist()]))
        arrivals += [(draw(st.integers(0, 40)), Request(prompt, list(output))) for _ in range(draw(st.integers(1, 2)))]
    return engine, arrivals


@given(traffic())
def test_every_index_is_the_text_of_its_row(traffic: tuple[Engine, list[tuple[int, Request]]]) -> None:
    """Or of one that agrees in length and in the tokens that are compared; of 1000 words it is the same text."""
    engine, arrivals = traffic
    one = Served(engine)
    for step in range(10_000):
        one.step(*(request for when, request in arrivals if when == step))
        texts = list(one.lookup.texts.values())
        if max(token for _, request in arrivals for token in request.prompt) > 3:
            assert [row.tokens for row in engine.rows if row.tokens not in texts] == []
        if engine.idle and step > 40:
            break
    assert all(request.over for _, request in arrivals)
    assert one.drafter.totals.accepted <= one.drafter.totals.verified


@pytest.mark.parametrize("seed", range(3))
def test_observed_times_are_those_of_the_passes(seed: int) -> None:
    """Of a long mix with arrivals, preemption and moves, no step with a prompt in it slips through."""
    own = np.random.default_rng(seed)
    one = Served(Engine(6, WIDTH, budget=120, cache=150, seed=seed))
    for step in range(400):
        arriving = [copying(int(own.integers(1, 60)), 1000 * seed + step)] if own.random() < 0.15 else []
        one.step(*arriving)
    wrong = [(n, v, t) for n, v, t in one.rule.observed if t != seconds(n, n + v)]
    assert (len(one.rule.observed) > 50, wrong, one.engine.preemptions > 0) == (True, [], True)
