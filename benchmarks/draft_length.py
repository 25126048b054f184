"""The draft-length rule on simulated engines: its throughput against an oracle and the fixed rules, and its own time.

usage: draft_length.py [STEPS]     steps per load, 2000 by default

Each row is one engine (its true step times), one kind of text (what drafts survive) and one load. The rule sees step
times with 10 % lognormal noise and 1 % outliers; the columns are its true tokens per second, learning included, over
those of an oracle that knows the step times, of no speculation, and of the best of 0, 2, 4 and 8 tokens for everyone.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.draft_length import DraftLength, admit

K = 16
NOISE, OUTLIERS, OUTLIER = 0.1, 0.01, 10.0
STATIC = (0, 2, 4, 8)
ORACLE, RULE = len(STATIC), len(STATIC) + 1  # columns of Run.seconds and Run.tokens, after the fixed rules

Truth = Callable[[int, int], float]
Text = Callable[[np.random.Generator, int], NDArray[np.float32]]


def padded(tokens: int) -> int:
    """The size of the captured graph that holds these tokens, as vLLM pads."""
    return next((size for size in (1, 2, 4) if tokens <= size), -(-tokens // 8) * 8)


# Milliseconds of a step of r requests that verifies v tokens.
ENGINES: dict[str, Truth] = {
    "lab CPU": lambda r, v: 37 + 1.7 * max(0, r + v - 8),
    "linear CPU": lambda r, v: 20 + 0.65 * (r + v),
    "staircase": lambda r, v: 6 + 0.04 * padded(r + v),
    "steep stairs": lambda r, v: 6 + 3 * ((r + v - 1) // 64) + 0.01 * r,
    "GPU": lambda r, v: 6 * (1 + ((r + v) / 300) ** 4) ** 0.25 + 0.03 * r + 0.5 * (v > 0),
}


def _fixed(rate: float) -> Text:
    return lambda rng, n: np.tile(rate ** np.arange(1, K + 1), (n, 1)).astype(np.float32)


def _mixture(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    rate = np.where(rng.random(n) < 0.3, 0.95, 0.15)
    return np.asarray(rate[:, None] ** np.arange(1, K + 1), np.float32)


def _scattered(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    return np.asarray(np.cumprod(rng.beta(2.0, 1.0, (n, K)), axis=1), np.float32)


TEXTS: dict[str, Text] = {
    "copy": _fixed(0.95),
    "chat": _fixed(0.15),
    "nothing": _fixed(0.01),
    "half": _fixed(0.5),
    "mixture": _mixture,
    "scattered": _scattered,
}


@dataclass(frozen=True, slots=True)
class Run:
    """By step and policy [steps, policies]: true seconds and expected tokens; what the rule drafted; its load."""

    seconds: NDArray[np.float64]
    tokens: NDArray[np.float64]
    drafted: NDArray[np.int64]
    load: NDArray[np.int64]
    rule: DraftLength

    def over(self, rivals: Sequence[int], skip: int = 0) -> float:
        """The rule's true tokens per second over the best of these policies', by load, their geometric mean.

        `skip` steps after each change of the load are left out.
        """
        starts = [0, *(np.flatnonzero(np.diff(self.load)) + 1), len(self.load)]
        ratios = []
        for start, end in pairwise(starts):
            rates = self.tokens[start + skip : end].sum(axis=0) / self.seconds[start + skip : end].sum(axis=0)
            ratios.append(rates[RULE] / max(rates[rival] for rival in rivals))
        return float(np.exp(np.mean(np.log(ratios))))


def simulate(
    engine: Truth,
    text: Text,
    loads: Sequence[tuple[int, int]],
    seed: int = 0,
    factor: Callable[[int], float] = lambda _: 1.0,
) -> Run:
    """Serve `loads`, (requests, steps) each, after one another; `factor(step)` slows the machine down."""
    rng = np.random.default_rng(seed)
    rule = DraftLength(most=K, requests=max(requests for requests, _ in loads))
    seconds, tokens, drafted, load = [], [], [], []
    for requests, steps in loads:
        curve = np.array([engine(requests, v) for v in range(requests * K + 1)]) / 1000
        for _ in range(steps):
            survival = text(rng, requests)
            lengths = np.full(requests, K, np.int32)
            ours = rule.choose(survival, lengths)
            chosen = [np.full(requests, k, np.int32) for k in STATIC] + [admit(survival, lengths, curve), ours]
            slow = factor(len(load))
            seconds.append([curve[c.sum()] * slow for c in chosen])
            tokens.append([requests + survival[np.arange(K) < c[:, None]].sum(dtype=float) for c in chosen])
            drafted.append(int(ours.sum()))
            load.append(requests)
            noisy = seconds[-1][RULE] * rng.lognormal(0.0, NOISE) * (OUTLIER if rng.random() < OUTLIERS else 1.0)
            rule.observe(requests, drafted[-1], float(noisy))
    return Run(np.array(seconds), np.array(tokens), np.array(drafted), np.array(load), rule)


def microseconds(requests: int, calls: int = 3000) -> tuple[float, float]:
    """(choose, observe) microseconds per request."""
    rng = np.random.default_rng(0)
    rule = DraftLength(most=K, requests=requests)
    survival, lengths = _scattered(rng, requests), np.full(requests, K, np.int32)
    took = np.empty((calls, 2))
    for call in range(calls):
        began = time.perf_counter()
        drafted = int(rule.choose(survival, lengths).sum())
        chose = time.perf_counter()
        rule.observe(requests, drafted, 0.02 * (1 + (requests + drafted) / 200))
        took[call] = chose - began, time.perf_counter() - chose
    choose, observe = np.median(took, axis=0) / requests * 1e6
    return float(choose), float(observe)


def main(steps: int) -> None:
    print(f"{'engine':14}{'text':11}{'load':>11}  over oracle  over none  over best fixed  probes  probing")
    lowest = [np.inf, np.inf]
    for engine, truth in ENGINES.items():
        for text, survival in TEXTS.items():
            for loads in ([(1, steps)], [(4, steps)], [(16, steps)], [(64, steps)], [(1, 300), (64, 300), (1, 300)]):
                run = simulate(truth, survival, loads)
                report = run.rule.report()
                name = "-".join(str(requests) for requests, _ in loads)
                over = run.over([ORACLE]), run.over([0]), run.over(range(len(STATIC)))
                lowest = [min(lowest[0], over[0]), min(lowest[1], over[2])]
                print(
                    f"{engine:14}{text:11}{name:>11}{over[0]:13.3f}{over[1]:11.3f}{over[2]:17.3f}"
                    f"{report.probes:8}{report.probing_share:9.2%}"
                )
    print(f"\nlowest: {lowest[0]:.3f} of the oracle, {lowest[1]:.3f} of the best fixed rule")
    for requests in (1, 16, 64, 256):
        choose, observe = microseconds(requests)
        print(f"{requests:4} requests: choose {choose:.3f} us per request, observe {observe:.3f} us per request")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
