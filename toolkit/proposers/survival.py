"""The probability that a drafted token is kept, learned from what was kept.

Four things tell a token's fate: how long the match is that it continues (with the draft before it), where its source
stands, and what was noted there when that was written: whether it had been foretold, and its support, how often it had
followed the four tokens before it (`continuations`). A token that surprised its own past is where text branches. These
four are its **cell**; each cell counts how many of its tokens came true, were they sent or not: a continuation that was
not drafted is scored too, in shadow. The position in the draft adds nothing: on the replay traces (seed 0) the log-loss
is 3762 by match length alone, 2657 with place and outcome, 2702 with the position too, 2288 with the support.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.compiled import compiled

# Where a source token stands.
PROMPT, OUTPUT, MEMORY, CORPUS = range(4)

_EDGES = np.array([2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 65])
LENGTHS = len(_EDGES) + 1
"""Classes of match length: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, 25-32, 33-64, more."""
LONGEST = 128
CLASS_OF_LENGTH: NDArray[np.int32] = np.digitize(np.arange(LONGEST + 1), _EDGES).astype(np.int32)
OUTCOMES = 3
SHARES = 1 + 6 * 3
"""Classes of support: none known; six of the share of the token among what followed, by three of how much is known."""
COARSE = 4 * OUTCOMES * LENGTHS
CELLS = COARSE * SHARES

KEPT, SEEN = range(2)
PRIOR = 16.0
"""Tokens that the guess without support is worth in a cell with support; and a first guess without any."""
# The first guess of a cell with support lies between the one without and the middle of its share: so far towards that.
WEIGHTS = (0.2, 0.5, 0.8)
MIDDLES = (0.05, 0.18, 0.35, 0.57, 0.8, 0.97)
HORIZON = 1000.0
"""A cell halves its counts here, and so follows its traffic."""


def first_counts() -> NDArray[np.float32]:
    """[COARSE + CELLS, 2], KEPT and SEEN: a first guess by the length of the match, then nothing for each cell."""
    by_length = np.array([0.3, 0.45, 0.55, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97], np.float32)
    counts = np.zeros((COARSE + CELLS, 2), np.float32)
    counts[:COARSE, KEPT] = PRIOR * np.tile(by_length, 4 * OUTCOMES)
    counts[:COARSE, SEEN] = PRIOR
    return counts


@compiled
def cell_of(length: int, place: int, told: int) -> int:
    """The cell of a token that continues a match of `length` >= 1.

    Its source is at `place`; `told` is what was noted when that was written: outcome + OUTCOMES * support.
    """
    outcome, support = told % OUTCOMES, told // OUTCOMES
    return ((place * OUTCOMES + outcome) * LENGTHS + CLASS_OF_LENGTH[min(length, LONGEST)]) * SHARES + support


@compiled
def is_branch(support: int) -> bool:
    """Whether a token of this class of support was not what followed most of the time."""
    return support > 0 and support <= 9


@compiled
def support_of(times: int, total: int) -> int:
    """The class of a token that followed its context `times` of `total`; 0 where nothing is known."""
    if total == 0:
        return 0
    share = times / total
    level = (share >= 0.1) + (share >= 0.25) + (share >= 0.45) + (share >= 0.7) + (share >= 0.9)
    return 1 + level * 3 + (total > 1) + (total > 4)


@compiled
def survival_of(counts: Any, cell: int) -> float:
    """The probability that a token of `cell` is kept."""
    coarse, fine = cell // SHARES, COARSE + cell
    guess = counts[coarse, KEPT] / counts[coarse, SEEN]
    support = cell % SHARES
    if support:
        weight = WEIGHTS[(support - 1) % 3]
        guess += weight * (MIDDLES[(support - 1) // 3] - guess)
    return (counts[fine, KEPT] + PRIOR * guess) / (counts[fine, SEEN] + PRIOR)


@compiled
def score(counts: Any, cell: int, kept: bool) -> None:
    """Count one token of `cell`."""
    for place in (cell // SHARES, COARSE + cell):
        if counts[place, SEEN] > HORIZON:
            counts[place, SEEN] *= 0.5
            counts[place, KEPT] *= 0.5
        counts[place, SEEN] += 1.0
        if kept:
            counts[place, KEPT] += 1.0
