"""The engine without a model counts as a real one does: with proposers that know the truth, or nothing, or lie."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.replay.engine import Batch, serve
from toolkit.analysis.replay.peers import Nothing
from toolkit.analysis.replay.traces import Request, Tokens

Draft = Callable[[list[int]], list[int]]
"""What to draft, of the tokens that will come."""


def request(output: Sequence[int], prompt: Sequence[int] = (90, 91, 92)) -> Request:
    return Request("any", np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


class Knowing(Nothing):
    """Drafts by the true rest of an answer; checks that the engine tells it all that a real one would."""

    def __init__(self, requests: Sequence[Request], draft: Draft) -> None:
        self.requests, self.draft = requests, draft
        self.seen: dict[int, list[int]] = {}
        self.ended: list[int] = []
        self.most_live = 0

    def start(self, prompt: Tokens) -> int:
        self.seen[len(self.seen)] = prompt.tolist()
        return len(self.seen) - 1

    def propose(self, batch: Batch) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in batch.sampled]
        self.most_live = max(self.most_live, len(batch.live))
        for row in batch.live:
            handle = int(batch.handles[row])
            one = self.requests[handle % len(self.requests)]
            self.seen[handle] += batch.sampled[row]
            text = batch.token_ids[row, : batch.ends[row]].tolist()
            assert text == self.seen[handle] == [*one.prompt, *one.output][: len(text)]
            drafts[row] = self.draft([*one.prompt, *one.output][len(text) :])
        return drafts

    def finish(self, handle: int) -> None:
        self.ended.append(handle)

    def whole(self) -> bool:
        """Whether it was told of every token of every answer, and of every end."""
        told = all(self.seen[n] == [*one.prompt, *one.output] for n, one in enumerate(self.requests))
        return told and sorted(self.ended) == list(range(len(self.requests)))


def truth(most: int) -> Draft:
    return lambda rest: [int(token) for token in rest[:most]]


def garbage(most: int) -> Draft:
    return lambda rest: [-1] * most


def test_without_drafts_each_token_takes_a_pass() -> None:
    tally = serve(Nothing(), [request(range(10))])
    assert (tally.tokens, tally.passes, tally.drafted) == (10, 10, 0)


def test_the_prefill_is_a_pass_and_gives_a_token() -> None:
    tally = serve(Nothing(), [request([5])])
    assert (tally.tokens, tally.passes, tally.steps) == (1, 1, 0)


def test_a_kept_draft_brings_one_token_more() -> None:
    requests = [request(range(11))]  # 1, then twice 4 + 1
    tally = serve(Knowing(requests, truth(4)), requests)
    assert (tally.passes, tally.drafted, tally.accepted) == (3, 8, 8)


def test_a_draft_is_kept_up_to_its_first_error() -> None:
    requests = [request(range(7))]
    tally = serve(Knowing(requests, lambda rest: [*rest[:2], -1, *rest[3:4]]), requests)
    assert (tally.passes, tally.accepted) == (3, 4)


def test_garbage_is_drafted_and_never_accepted() -> None:
    requests = [request(range(10))]
    tally = serve(Knowing(requests, garbage(3)), requests)
    assert (tally.passes, tally.drafted, tally.accepted) == (10, 27, 0)


def test_what_runs_past_the_end_is_drafted_and_not_accepted() -> None:
    requests = [request(range(4))]
    tally = serve(Knowing(requests, lambda rest: [*map(int, rest), 7, 7]), requests)
    assert (tally.passes, tally.drafted, tally.accepted) == (2, 5, 3)


def test_a_last_pass_without_room_for_its_own_token_gives_none() -> None:
    requests = [request(range(5))]  # 1, then all 4 as drafted
    tally = serve(Knowing(requests, truth(4)), requests)
    assert (tally.tokens, tally.passes) == (5, 2)


def test_over_and_over_ends_with_the_steps_asked_for() -> None:
    requests = [request(range(3)), request(range(4))]
    proposer = Knowing(requests, truth(0))
    tally = serve(proposer, requests, in_flight=5, most_steps=50)
    assert (tally.proposals, proposer.most_live) == (250, 5)


def test_seconds_are_those_of_the_batch_after_the_prefill() -> None:
    asked: list[tuple[int, int]] = []

    def seconds(requests: int, most: int, held: int) -> np.ndarray:
        asked.append((requests, most))
        return np.arange(most + 1) + 10.0 * requests

    requests = [request(range(3)), request(range(3)), request(range(3))]
    tally = serve(Knowing(requests, truth(1)), requests, in_flight=2, step_seconds=seconds)
    assert asked == [(2, 2), (1, 1)]
    assert tally.engine_seconds == 22 + 11


class Hungry(Nothing):
    """Takes 100 bytes a token, beside a fixed megabyte."""

    held = 1_000_000

    def start(self, prompt: Tokens) -> int:
        self.held += 100 * len(prompt)
        return 0

    def bytes_used(self) -> int:
        return self.held


def test_memory_is_what_the_first_prompts_add() -> None:
    tally = serve(Hungry(), [request([1], prompt=range(7)), request([1]), request([1])], in_flight=2)
    assert (tally.index_bytes, tally.index_tokens) == (1000, 10)


answers = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=6)


@given(answers, st.integers(1, 4), st.integers(0, 5), st.integers(0, 4))
def test_answers_arrive_whole_whatever_is_drafted(
    outputs: list[list[int]], in_flight: int, right: int, wrong: int
) -> None:
    requests = [request(output) for output in outputs]
    proposer = Knowing(requests, lambda rest: [*map(int, rest[:right]), *[-1] * wrong])
    tally = serve(proposer, requests, in_flight)
    assert proposer.whole()
    assert tally.tokens == sum(map(len, outputs))


@pytest.mark.parametrize("in_flight", [1, 2, 3, 8])
def test_counts_do_not_depend_on_the_batch(in_flight: int) -> None:
    requests = [request(range(n)) for n in (1, 9, 4, 17, 2)]
    tally = serve(Knowing(requests, truth(3)), requests, in_flight)
    assert (tally.requests, tally.tokens, tally.passes, tally.accepted) == (5, 33, 13, 22)
