"""What engines get wrong in speculation, planted on purpose: seven faults, each a `Rule` or a drafter of the loop.

Five are lossy: tokens no longer follow the target. Two are merely slow: the draft is bad and the rule is kept, so the
answers are the target's own and an audit must not flag them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.lab.reference import EXACT, Choose, Drafter, Model, ModelDrafter, Rule, Sampling
from toolkit.sampling import FloatArray, Verified, adjust, draw, verify

SHARPENED = 0.5
"""Factor on the request's temperature at which the undeclared draft is drawn."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`rule` and `drafter` take the place of the exact ones; `drafter` makes a drafter of the draft model."""

    name: str
    lossy: bool
    what: str
    rule: Rule = EXACT
    drafter: Callable[[Model], Drafter] = ModelDrafter

    @property
    def needs_draft_model(self) -> bool:
        """Whether it lies in the draft, so that prompt lookup cannot have it."""
        return self.drafter is not ModelDrafter


def resample_from_p(p: FloatArray, q: FloatArray, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
    """`verify`, but a fix is drawn from p instead of the residual."""
    for i, draft in enumerate(drafts):
        if rng.random() * q[i, draft] >= p[i, draft]:
            return Verified((*drafts[:i], draw(p[i], rng)), i)
    return Verified((*drafts, draw(p[-1], rng)), len(drafts))


def resample_from_p_output(p: FloatArray, q: FloatArray) -> FloatArray:
    """What a position emits when the fix is drawn from p: min(p, q) + (1 - alpha) p, alpha = sum of min(p, q). [V]"""
    kept = np.minimum(p, q)
    emitted: FloatArray = kept + (1 - kept.sum()) * p
    return emitted


def bonus_from_wrong_row(p: FloatArray, q: FloatArray, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
    """`verify`, but the bonus is drawn from the row that judged the last draft."""
    rows = np.concatenate([p[:-1], p[-2:-1]]) if drafts else p
    return verify(rows, q, drafts, rng)


def greedy_as_softmax(logits: FloatArray, sampling: Sampling, rng: np.random.Generator) -> tuple[int, FloatArray]:
    """`honest`, but drawn without chance and declared with it."""
    return int(logits.argmax()), sampling.of(logits)


def tempered_undeclared(logits: FloatArray, sampling: Sampling, rng: np.random.Generator) -> tuple[int, FloatArray]:
    """`honest`, but drawn at a lower temperature than it declares."""
    drawn_from = adjust(logits, SHARPENED * sampling.temperature, sampling.top_k, sampling.top_p)
    return draw(drawn_from, rng), sampling.of(logits)


def untempered_honest(logits: FloatArray, sampling: Sampling, rng: np.random.Generator) -> tuple[int, FloatArray]:
    """Drawn and declared from the bare softmax, whatever the request asks. Exact, and kept less often."""
    q = adjust(logits)
    return draw(q, rng), q


@dataclass(frozen=True, slots=True)
class OtherFamily:
    """A draft whose token ids mean other tokens: it reads and guesses sense, under the ids of another vocabulary."""

    model: Model

    @property
    def size(self) -> int:
        return self.model.size

    @property
    def length(self) -> int:
        return self.model.length

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        return np.roll(self.model.extend(tokens), 1, axis=-1)

    def crop(self, length: int) -> None:
        self.model.crop(length)


def _choosing(choose: Choose) -> Callable[[Model], Drafter]:
    return lambda model: ModelDrafter(model, choose)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "resample-from-p",
            lossy=True,
            what="a fix is drawn from all of p, not from what p has above q",
            rule=Rule(verify=resample_from_p),
        ),
        Fault(
            "no-rollback",
            lossy=True,
            what="rejected drafts stay in the target's cache",
            rule=Rule(rollback=False),
        ),
        Fault(
            "greedy-as-softmax",
            lossy=True,
            what="the draft is the argmax, and claimed to be drawn from its softmax",
            drafter=_choosing(greedy_as_softmax),
        ),
        Fault(
            "tempered-undeclared",
            lossy=True,
            what=f"the draft is drawn at {SHARPENED} of the temperature that its q is declared at",
            drafter=_choosing(tempered_undeclared),
        ),
        Fault(
            "bonus-from-wrong-row",
            lossy=True,
            what="the bonus token is drawn from the row that judged the last draft",
            rule=Rule(verify=bonus_from_wrong_row),
        ),
        Fault(
            "other-family",
            lossy=False,
            what="the draft is of another family: its ids mean other tokens",
            drafter=lambda model: ModelDrafter(OtherFamily(model)),
        ),
        Fault(
            "untempered-honest",
            lossy=False,
            what="the draft ignores temperature, top-k and top-p, and says so",
            drafter=_choosing(untempered_honest),
        ),
    )
}
