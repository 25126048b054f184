"""What followed the longest earlier occurrence of this suffix? A suffix automaton, grown token by token.

The automaton is that of Blumer et al. ("The smallest automaton recognizing the subwords of a text", 1985); SAM
Decoding (2411.10666) speculates with it, too. A state stands for the strings that end at the same places of the text;
the link of the state of the whole text is the state of its longest suffix that occurred before, so the answer is
there after every token, at an amortised constant cost whatever the length of the text.

Nearly every state has one successor, so the first one lies in the state itself and only further ones go to a hash
table. A state is half a cache line, and nothing else is read to pass it: that is what makes it fast.

A **cursor** `(state, length)` follows any other stream of tokens through an index: the longest suffix of the stream
that occurs in the text.

Each state remembers which continuation to copy. It takes a vote among its visits as the longest context, which is
PPM's update exclusion (Moffat, "Implementing the PPM data compression scheme", 1990): a token counts in the longest
context that it was met in, not in all shorter ones.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.compiled import compiled

Int32 = NDArray[np.int32]

NONE = -1
"""No token: it separates the texts of one index and ends what can be copied."""

# Columns of `states`. A state's strings have lengths LEN(link) + 1 to LEN. NEXT is its first successor, by FIRST; MORE
# its latest edge plus 1. BEST is the token to expect, text[AT + 1], and LEAD its lead in the vote.
LEN, LINK, NEXT, FIRST, MORE, AT, BEST, LEAD = range(8)
# Columns of `edges`, a hash table by (STATE, TOKEN). TARGET 0 is an empty place; CHAIN the state's edge before, plus 1.
STATE, TOKEN, TARGET, CHAIN = range(4)
# Entries of `sizes`. FULL is set when an edge found no place: the index must be built anew with more.
LENGTH, STATES, EDGES, LAST, FULL = range(5)
# What the longest match said when a token was appended.
UNKNOWN, RIGHT, WRONG = range(3)

STATE_BYTES = 32
MOST_LEAD = 4
SPARE = 8
"""Places and states beyond the capacity."""


class Automaton(NamedTuple):
    """The arrays of one index: `text` and `outcome` [capacity], `states` [2 capacity + 8, 8], `edges` [places, 4]."""

    text: Int32
    outcome: NDArray[np.int8]
    states: Int32
    edges: Int32
    sizes: NDArray[np.int64]


def empty(capacity: int, places: int | None = None) -> Automaton:
    """An automaton with room for `capacity` tokens and `places` edges. Pages that are never written cost no memory.

    Text needs about 0.7 places a token; 2 always suffice.
    """
    index = Automaton(
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int8),
        _aligned((2 * capacity + SPARE, 8)),
        np.zeros(((capacity if places is None else places) + SPARE, 4), np.int32),
        np.zeros(5, np.int64),
    )
    index.states[0] = (0, NONE, 0, NONE, 0, 0, NONE, 0)
    index.sizes[STATES] = 1
    return index


def _aligned(shape: tuple[int, int]) -> Int32:
    """An int32 array that starts at a cache line."""
    size = shape[0] * shape[1]
    memory = np.empty(size + 16, np.int32)
    begin = -memory.ctypes.data % 64 // 4
    return memory[begin : begin + size].reshape(shape)


def grown(index: Automaton, capacity: int) -> Automaton:
    """A copy with room for `capacity` tokens."""
    length, states = int(index.sizes[LENGTH]), int(index.sizes[STATES])
    larger = empty(capacity, max(capacity, 2 * index.edges.shape[0]))
    larger.text[:length] = index.text[:length]
    if index.sizes[FULL]:
        extend(larger, index.text[:length])
        return larger
    larger.outcome[:length] = index.outcome[:length]
    larger.states[:states] = index.states[:states]
    larger.sizes[:] = index.sizes
    _move_edges(index, larger)
    return larger


def bytes_used(index: Automaton) -> int:
    """What the index occupies: the written part of its text and states, all of its hash table."""
    length, states = int(index.sizes[LENGTH]), int(index.sizes[STATES])
    return 5 * length + 32 * states + index.edges.nbytes


@compiled
def place_of(edges: Any, state: int, token: int) -> Any:
    """Where the search for the edge (state, token) begins in the table."""
    key = (np.uint64(state) << np.uint64(32)) | np.uint64(np.uint32(token))
    mixed = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return (mixed * np.uint64(edges.shape[0])) >> np.uint64(32)


@compiled
def _place(edges: Any, state: int, token: int) -> Any:
    """Where the edge (state, token) is in the table, or the empty place where it belongs."""
    places = np.uint64(edges.shape[0])
    place = place_of(edges, state, token)
    while edges[place, TARGET] != 0 and not (edges[place, STATE] == state and edges[place, TOKEN] == token):
        place += np.uint64(1)
        if place == places:
            place = np.uint64(0)
    return place


@compiled
def _add(index: Any, place: int, state: int, token: int, target: int) -> None:
    edges, states, sizes = index.edges, index.states, index.sizes
    if sizes[EDGES] + 1 >= edges.shape[0]:
        sizes[FULL] = 1
        return
    edges[place, STATE] = state
    edges[place, TOKEN] = token
    edges[place, TARGET] = target
    edges[place, CHAIN] = states[state, MORE]
    states[state, MORE] = place + 1
    sizes[EDGES] += 1


@compiled
def _move_edges(index: Any, larger: Any) -> None:
    """Enter all edges of `index` into the table of `larger`."""
    larger.sizes[EDGES] = 0
    for state in range(index.sizes[STATES]):
        chain = index.states[state, MORE]
        larger.states[state, MORE] = 0
        while chain != 0:
            token, target = index.edges[chain - 1, TOKEN], index.edges[chain - 1, TARGET]
            _add(larger, _place(larger.edges, state, token), state, token, target)
            chain = index.edges[chain - 1, CHAIN]


@compiled
def longest(index: Any) -> tuple[int, int]:
    """(state, length) of the longest suffix of the text that occurred before; (0, 0) when there is none."""
    last = index.sizes[LAST]
    if last == 0:
        return 0, 0
    state = index.states[last, LINK]
    return state, index.states[state, LEN]


@compiled
def follow(index: Any, state: int, token: int) -> int:
    """The state of the strings of `state` with `token` after them; 0 when they never were followed by it."""
    states = index.states
    if states[state, FIRST] == token:
        return states[state, NEXT]
    if states[state, MORE] == 0:
        return 0
    return index.edges[_place(index.edges, state, token), TARGET]


@compiled
def advance(index: Any, state: int, length: int, token: int) -> tuple[int, int]:
    """The cursor after one more token of its stream. The index is not changed; it may have been since the last."""
    states = index.states
    while state != 0 and length <= states[states[state, LINK], LEN]:
        state = states[state, LINK]
    while True:
        target = follow(index, state, token)
        if target != 0:
            return target, length + 1
        if state == 0:
            return 0, 0
        state = states[state, LINK]
        length = states[state, LEN]


@compiled
def _vote(states: Any, state: int, end: int, token: int) -> int:
    """Count that `token`, at `end`, followed the longest match. Returns RIGHT if it was expected, else WRONG."""
    if states[state, BEST] == token:
        states[state, LEAD] = min(states[state, LEAD] + 1, MOST_LEAD)
        states[state, AT] = end - 1
        return RIGHT
    states[state, LEAD] -= 1
    if states[state, LEAD] <= 0:
        states[state, LEAD] = 1
        states[state, BEST] = token
        states[state, AT] = end - 1
    return WRONG


@compiled
def append(index: Any, token: int) -> None:
    """Append a token to the text; there must be room for it."""
    states, edges, sizes = index.states, index.edges, index.sizes
    end, last = sizes[LENGTH], sizes[LAST]
    index.text[end] = token
    matched, _ = longest(index)
    index.outcome[end] = _vote(states, matched, end, token) if matched != 0 else UNKNOWN

    new = sizes[STATES]
    states[new, LEN] = end + 1
    states[new, LINK] = 0
    states[new, NEXT] = 0
    states[new, FIRST] = NONE
    states[new, MORE] = 0
    states[new, AT] = end
    states[new, BEST] = NONE
    states[new, LEAD] = 1
    used = new + 1
    states[last, NEXT] = new
    states[last, FIRST] = token
    states[last, BEST] = token

    state = states[last, LINK]
    target = 0
    while state >= 0:
        if states[state, FIRST] == token:
            target = states[state, NEXT]
            break
        place = _place(edges, state, token)
        target = edges[place, TARGET]
        if target != 0:
            break
        _add(index, place, state, token, new)
        state = states[state, LINK]

    if state >= 0:
        if states[state, LEN] + 1 == states[target, LEN]:
            states[new, LINK] = target
        else:
            clone = used
            used += 1
            for column in range(8):
                states[clone, column] = states[target, column]
            states[clone, LEN] = states[state, LEN] + 1
            states[clone, MORE] = 0
            chain = states[target, MORE]
            while chain != 0:
                further = edges[chain - 1, TOKEN]
                _add(index, _place(edges, clone, further), clone, further, edges[chain - 1, TARGET])
                chain = edges[chain - 1, CHAIN]
            while state >= 0:
                if states[state, FIRST] == token:
                    if states[state, NEXT] != target:
                        break
                    states[state, NEXT] = clone
                else:
                    place = _place(edges, state, token)
                    if edges[place, TARGET] != target:
                        break
                    edges[place, TARGET] = clone
                state = states[state, LINK]
            states[target, LINK] = clone
            states[new, LINK] = clone
    sizes[LENGTH] = end + 1
    sizes[STATES] = used
    sizes[LAST] = new


@compiled
def extend(index: Any, tokens: Int32) -> None:
    """Append tokens; there must be room for them."""
    for token in tokens:
        append(index, token)
