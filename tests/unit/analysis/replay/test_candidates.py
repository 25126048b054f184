"""How far ours drafts in a replay: by a floor where verifying is free, by seconds where they are known."""

import numpy as np
import pytest

from toolkit.analysis.replay.candidates import above, worth
from toolkit.proposers.lookup import Candidates

SURVIVAL = np.array([[0.9, 0.6, 0.3, 0.1], [0.5, 0.2, 0.0, 0.0]], dtype=np.float32)
CANDIDATES = Candidates(np.zeros((2, 4), dtype=np.int32), SURVIVAL, np.array([4, 2], dtype=np.int32))


@pytest.mark.parametrize(
    ("floor", "lengths"), [(0.0, [4, 2]), (0.25, [3, 1]), (0.5, [2, 1]), (0.55, [2, 0]), (1.0, [0, 0])]
)
def test_a_floor_drafts_what_survives_it(floor: float, lengths: list[int]) -> None:
    assert above(floor)(CANDIDATES, 0).tolist() == lengths


def test_free_tokens_are_all_drafted() -> None:
    assert worth(lambda requests, most, held: np.ones(most + 1))(CANDIDATES, 0).tolist() == [4, 2]


def test_tokens_as_dear_as_their_own_pass_are_not_drafted() -> None:
    assert worth(lambda requests, most, held: requests + np.arange(most + 1.0))(CANDIDATES, 0).tolist() == [0, 0]


def test_the_rule_is_told_the_batch_and_its_context() -> None:
    asked: list[tuple[int, int, int]] = []

    def seconds(requests: int, most: int, held: int) -> np.ndarray:
        asked.append((requests, most, held))
        return np.ones(most + 1)

    worth(seconds)(CANDIDATES, 77)
    assert asked == [(2, 6, 77)]
