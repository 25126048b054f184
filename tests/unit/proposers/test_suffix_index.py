"""The index against a scan of the text, on sequences of few tokens, where everything repeats."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.proposers import suffix_index
from toolkit.proposers.suffix_index import (
    AT,
    BEST,
    EDGES,
    FULL,
    LENGTH,
    RIGHT,
    STATES,
    UNKNOWN,
    WRONG,
    advance,
    append,
    bytes_used,
    empty,
    extend,
    grown,
    longest,
)

tokens = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), min_size=1, max_size=80))


def suffix_lengths(text, other):
    """Lengths of the suffixes of `text` that occur in `other`."""
    return [
        n for n in range(1, len(text) + 1) if any(other[at : at + n] == text[-n:] for at in range(len(other) - n + 1))
    ]


def index_of(text):
    index = empty(len(text), 2 * len(text))
    extend(index, np.array(text, np.int32))
    return index


@given(tokens)
@settings(max_examples=200, deadline=None)
def test_finds_the_longest_suffix_that_occurred_before(text):
    index = empty(len(text), 2 * len(text))
    for end, token in enumerate(text, 1):
        append(index, token)
        assert longest(index)[1] == max(suffix_lengths(text[:end], text[: end - 1]), default=0)


@given(tokens)
@settings(max_examples=200, deadline=None)
def test_copies_from_the_end_of_an_occurrence(text):
    index = index_of(text)
    state, length = longest(index)
    if state:
        end = int(index.states[state, AT]) + 1
        assert text[end - length : end] == text[-length:]
        assert index.states[state, BEST] == text[end]


@given(tokens, tokens)
@settings(max_examples=200, deadline=None)
def test_a_cursor_finds_the_longest_suffix_of_another_stream(text, stream):
    index = index_of(text)
    state = length = 0
    for end, token in enumerate(stream, 1):
        state, length = advance(index, state, length, token)
        assert length == max(suffix_lengths(stream[:end], text), default=0)


@given(tokens, st.lists(st.integers(0, 2), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_a_cursor_outlives_changes_of_the_index(text, stream):
    index = empty(len(text), 2 * len(text))
    state = length = 0
    for turn in range(max(len(text), len(stream))):
        if turn < len(text):
            append(index, text[turn])
        if turn < len(stream):
            state, length = advance(index, state, length, stream[turn])
            suffix = stream[: turn + 1][-length:] if length else []
            assert length in [0, *suffix_lengths(suffix, text[: turn + 1])]


@given(tokens)
@settings(max_examples=100, deadline=None)
def test_an_index_that_grows_is_the_index_that_had_room(text):
    small = empty(4, 4)
    for token in text:
        if small.sizes[LENGTH] == len(small.text) or small.sizes[FULL] or small.sizes[EDGES] * 2 > len(small.edges):
            small = grown(small, 2 * len(small.text))
        append(small, token)
    assert longest(small if not small.sizes[FULL] else grown(small, len(small.text)))[1] == longest(index_of(text))[1]


def test_an_index_whose_table_is_full_says_so_and_is_built_anew():
    text = [number % 7 for number in range(40)] + [0, 2, 4, 6, 1, 3, 5] * 5 + [0] * 10 + [3, 0, 0, 1, 0, 0, 2]
    index = empty(len(text), 0)
    extend(index, np.array(text, np.int32))
    assert index.sizes[FULL]
    while index.sizes[FULL]:
        index = grown(index, len(text))
    assert longest(index)[1] == longest(index_of(text))[1]


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        ([1, 2, 3], [UNKNOWN, UNKNOWN, UNKNOWN]),
        ([1, 2, 1, 2], [UNKNOWN, UNKNOWN, UNKNOWN, RIGHT]),
        ([1, 2, 1, 3], [UNKNOWN, UNKNOWN, UNKNOWN, WRONG]),
    ],
)
def test_notes_what_the_longest_match_had_said(text, outcomes):
    assert index_of(text).outcome[: len(text)].tolist() == outcomes


def test_the_token_that_followed_most_is_expected():
    follow = [9, 8, 9, 9, 8, 9]
    text = [token for number, after in enumerate(follow) for token in (100 + number, 1, after)] + [200, 1]
    index = index_of(text)
    assert index.states[longest(index)[0], BEST] == 9


def test_is_never_larger_than_two_states_and_two_edges_a_token():
    rng = np.random.default_rng(5)
    for letters in (1, 2, 3, 50):
        text = rng.integers(0, letters, 3000).astype(np.int32)
        index = empty(len(text), 2 * len(text))
        extend(index, text)
        assert index.sizes[STATES] <= 2 * len(text)
        assert index.sizes[EDGES] <= 2 * len(text)
        assert bytes_used(index) < (5 + 64 + 32) * len(text) + 1000


def test_a_state_is_half_a_cache_line_and_begins_one():
    index = empty(10)
    assert index.states.ctypes.data % 64 == 0
    assert index.states.strides[0] == suffix_index.STATE_BYTES == 32
