"""What acceptance and speedup to expect of a pair, from its places, and whether to stop here.

Two averages are told apart: *everywhere*, a draft starting at every place of the text, and *stepping*, drafts starting
where rounds end. Engines do the latter, and after a rejection the next draft starts in a hard place: that figure is the
one to trust.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toolkit import theory
from toolkit.analysis.forecast.estimate import Estimate, estimate, per_unit, share, units
from toolkit.analysis.forecast.rounds import Places, joined, reach, written_by_target
from toolkit.sampling import FloatArray

ENOUGH = 0.5  # acceptance below which a draft step must be cheap
CHEAP = 0.2  # cost of a draft step over that of a target step, up to which it is

Verdict = Literal["stop", "pays", "costs", "inconclusive"]
Rounds = Sequence[tuple[int, int]]
"""(drafted, kept) of each round that wrote a text."""


@dataclass(frozen=True, slots=True)
class Length:
    """Rounds of `k` drafts: first drafts kept, tokens per target step, and the speedup where c is known."""

    k: int
    acceptance: Estimate
    tokens_per_step: Estimate
    speedup: Estimate | None

    def as_json(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "acceptance": self.acceptance.as_json(),
            "tokens_per_step": self.tokens_per_step.as_json(),
            "speedup": self.speedup.as_json() if self.speedup else None,
        }


@dataclass(frozen=True, slots=True)
class Expectation:
    """What `texts` texts say of rounds of `k` drafts, a draft step costing `c` of a target step (None: unknown)."""

    k: int
    c: float | None
    texts: int
    exact: bool
    """Whether the texts are the target's own, which is what makes the stepping exact."""
    predicted: Estimate
    """Mean of sum min(p, q) over all places."""
    observed: Estimate
    """The share of drafts that the rule kept, run once at each of these places."""
    everywhere: list[Estimate]
    """By position in the draft, given that those before were kept; a draft at every place."""
    stepping: list[Estimate]
    """The same for drafts that start where rounds of `k` end."""
    loop: list[Estimate] | None
    """The same as counted in the rounds of the reference loop that wrote the texts; None for logged files."""
    lengths: list[Length]
    """Rounds of 1, 2, ... `k` drafts by stepping, as far as the texts are long enough."""

    @property
    def acceptance(self) -> Estimate:
        """Of the first draft of a round, by stepping: the figure to trust."""
        return self.stepping[0]

    @property
    def everywhere_best(self) -> tuple[int, float] | None:
        """Best K and its speedup by acceptance everywhere; None where c is unknown."""
        return None if self.c is None else theory.best_k_by_position([one.value for one in self.everywhere], self.c)

    @property
    def best(self) -> tuple[int, Estimate] | None:
        """Best K and its speedup by stepping, the smaller K of equals; None where c is unknown."""
        known = [(one.k, one.speedup) for one in self.lengths if one.speedup is not None]
        return max(known, key=lambda one: (one[1].value, -one[0]), default=None)

    @property
    def break_even(self) -> tuple[float, int]:
        """The c below which some K pays, and that K: (tokens per step - 1) / K at its highest."""
        found = [((one.tokens_per_step.value - 1) / one.k, one.k) for one in self.lengths]
        return max(found, key=lambda one: (one[0], -one[1]))

    @property
    def verdict(self) -> Verdict | None:
        """None where c is unknown."""
        if self.c is None or self.best is None:
            return None
        if self.acceptance.value < ENOUGH and self.c > CHEAP:
            return "stop"
        _, speedup = self.best
        if speedup.low is not None and speedup.low > 1:
            return "pays"
        return "costs" if speedup.high is not None and speedup.high < 1 else "inconclusive"

    def as_json(self) -> dict[str, Any]:
        everywhere, best = self.everywhere_best, self.best
        c, k = self.break_even
        return {
            "k": self.k,
            "c": self.c,
            "texts": self.texts,
            "predicted": self.predicted.as_json(),
            "observed": self.observed.as_json(),
            "everywhere": {
                "by_position": [one.as_json() for one in self.everywhere],
                "best_k": everywhere[0] if everywhere else None,
                "speedup": everywhere[1] if everywhere else None,
            },
            "stepping": {
                "exact": self.exact,
                "acceptance": self.acceptance.as_json(),
                "by_position": [one.as_json() for one in self.stepping],
                "by_k": [one.as_json() for one in self.lengths],
                "best_k": best[0] if best else None,
                "speedup": best[1].as_json() if best else None,
            },
            "loop": {"by_position": [one.as_json() for one in self.loop]} if self.loop is not None else None,
            "break_even": {"c": c, "k": k},
            "verdict": self.verdict,
        }


def expect(texts: Sequence[Places], k: int, c: float | None, loop: Sequence[Rounds] | None = None) -> Expectation:
    """From the places of one or more texts (one place at least), and the rounds of the loop, if one wrote them."""
    own = written_by_target(texts)
    everything = joined(texts)
    unit = units([len(one) for one in texts])
    chances = [_chance(one) if own else one.overlap for one in texts]

    def by_position(length: int, everywhere: bool = False) -> tuple[FloatArray, FloatArray]:
        reached = np.concatenate([reach(kept, length, everywhere) for kept in chances])
        return per_unit(reached * everything.overlap[:, None], unit), per_unit(reached, unit)

    every = per_unit(np.ones(len(everything)), unit)
    lengths = [_length(*by_position(length), c) for length in range(1, k + 1)]
    return Expectation(
        k=k,
        c=c,
        texts=len(texts),
        exact=own,
        predicted=_known(share(per_unit(everything.overlap, unit), every)),
        observed=_known(share(per_unit(everything.kept, unit), every)),
        everywhere=_shares(*by_position(k, everywhere=True)),
        stepping=_shares(*by_position(k)),
        loop=_shares(*_counted(loop, k)) if loop is not None else None,
        lengths=[one for one in lengths if one is not None],
    )


def _chance(text: Places) -> FloatArray:
    """The chance that a draft was kept, given the token that followed where it is known."""
    return np.where(np.isnan(text.given_token), text.overlap, text.given_token)


def _shares(kept: FloatArray, reached: FloatArray) -> list[Estimate]:
    """By position, `kept` of `reached` (both [units, k]), up to the first position that no round reached."""
    found = []
    for position in range(kept.shape[1]):
        one = share(kept[:, position], reached[:, position])
        if one is None:
            break
        found.append(one)
    return found


def _length(kept: FloatArray, reached: FloatArray, c: float | None) -> Length | None:
    """Rounds as long as `kept` and `reached` [units, k] are wide; None where none got that far."""
    k = kept.shape[1]
    shares = _shares(kept, reached)
    if len(shares) < k:
        return None
    totals, rounds = np.concatenate([kept, reached], axis=1), float(reached[:, 0].sum())

    def given(sums: FloatArray) -> list[float]:
        return [min(1.0, float(a / b)) if b > 0 else 0.0 for a, b in zip(sums[:k], sums[k:], strict=True)]

    tokens = estimate(totals, lambda sums: theory.expected_tokens_by_position(given(sums)), rounds)
    if c is None:
        return Length(k, shares[0], tokens, None)
    speedup = estimate(totals, lambda sums: theory.speedup_by_position(given(sums), k, c), rounds)
    return Length(k, shares[0], tokens, speedup)


def _counted(loop: Sequence[Rounds], k: int) -> tuple[FloatArray, FloatArray]:
    """Drafts kept and reached by position [units, k] in rounds of a loop."""
    rounds = np.array([one for text in loop for one in text], dtype=np.int64).reshape(-1, 2)
    position, drafted, kept = np.arange(k), rounds[:, :1], rounds[:, 1:]
    unit = units([len(text) for text in loop])
    return per_unit(kept > position, unit), per_unit((drafted > position) & (kept >= position), unit)


def _known(found: Estimate | None) -> Estimate:
    assert found is not None  # every text has a place
    return found
