"""A lookup and a draft-length rule that are plainly right, to test what stands between them and the engine."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Candidates(NamedTuple):
    """`toolkit.proposers.lookup.Candidates`, without what it takes to import that."""

    tokens: np.ndarray
    survival: np.ndarray
    lengths: np.ndarray


class Finished(NamedTuple):
    """What a sequence started with, and what came after."""

    prompt: list[int]
    output: list[int]


class StubLookup:
    """Continues the latest earlier occurrence of the last two tokens; remembers every call."""

    def __init__(self, most: int = 4, sequences: int = 100) -> None:
        self.most, self.sequences = most, sequences
        self.texts: dict[int, list[int]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.finished: list[Finished] = []
        self.started = 0

    def start(self, tokens: np.ndarray) -> int:
        free = next(handle for handle in range(self.sequences + 1) if handle not in self.texts)
        assert free < self.sequences, "more sequences live than were announced"
        self.texts[free] = self.prompts[free] = tokens.tolist()
        self.started += 1
        return free

    def finish(self, handle: int) -> None:
        prompt, text = self.prompts.pop(handle), self.texts.pop(handle)
        self.finished.append(Finished(prompt, text[len(prompt) :]))

    def bytes_used(self) -> int:
        return sum(4 * len(text) for text in self.texts.values())

    def step(self, handles: np.ndarray, rows: np.ndarray, ends: np.ndarray, token_ids: np.ndarray) -> Candidates:
        n = len(handles)
        tokens = np.zeros((n, self.most), np.int32)
        survival = np.zeros((n, self.most), np.float32)
        lengths = np.zeros(n, np.int32)
        for i, (handle, row, end) in enumerate(zip(handles.tolist(), rows.tolist(), ends.tolist(), strict=True)):
            text = self.texts[handle]
            self.texts[handle] = text = text + token_ids[row, len(text) : end].tolist()
            found = following(text)[: self.most]
            tokens[i, : len(found)] = found
            survival[i, : len(found)] = 0.9 ** np.arange(1, len(found) + 1)
            lengths[i] = len(found)
        return Candidates(tokens, survival, lengths)


def following(text: list[int]) -> list[int]:
    """What followed the latest earlier occurrence of the last two tokens."""
    at = next((i for i in range(len(text) - 3, -1, -1) if text[i : i + 2] == text[-2:]), None)
    return [] if at is None else text[at + 2 :]


@dataclass
class StubRule:
    """Drafts whatever there is, and remembers what it was told."""

    observed: list[tuple[int, int, float]] = field(default_factory=list)

    def choose(self, survival: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        assert (lengths <= (survival > 0).sum(axis=1)).all()
        return lengths

    def observe(self, requests: int, verified: int, seconds: float) -> None:
        self.observed.append((requests, verified, round(seconds, 6)))
