"""What catches a planted fault, and after how many tokens: the reference loop on the toy pair, watched from inside.

Nothing is estimated here: the target's exact p of every emitted token is known. So a number of tokens is the least that
a check of its kind can need on this pair, and what `toolkit audit` sees through a server's logprobs comes at no less.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy import stats

from toolkit.errors import InputError
from toolkit.lab.faults import FAULTS, Fault
from toolkit.lab.reference import EXACT, Drafter, Model, Rule, Sampling, generate
from toolkit.lab.toy import toy_pair, toy_target, toy_text
from toolkit.sampling import FloatArray, Verified

K = 4
SAMPLED = Sampling(temperature=1.0, top_k=16)
ALPHA = 0.01
"""Chance that a check names a sound loop, all its looks together."""

LOOKS = tuple(int(200 * 1.5**i) for i in range(12))
"""After how many tokens a running test looks: 200 to 17,300, each look at ALPHA / len(LOOKS) (Bonferroni)."""

BINS = 10
GREEDY_ANSWERS = 50
ANSWER_TOKENS = 64
OPENING = 12
"""Tokens of the text that open an answer's prompt."""


@dataclass(frozen=True, slots=True)
class Caught:
    """The emitted tokens that `check` looked at until it saw the fault; None: it did not within those it looks at."""

    check: str
    tokens: int | None


def break_report(fault_name: str, seed: int = 0) -> list[Caught]:
    """Each check of the toy pair (bigram draft, K = 4) with `fault_name` of `FAULTS` planted:

    - `greedy`: at temperature 0, the first token that plain decoding would not have emitted.
    - `distribution`: sampled, the randomised probability integral transform of the emitted tokens under p, against
      uniform (chi-square over 10 bins).
    - `acceptance`: sampled, the drafts kept against sum of min(p, q) over the p and q that the loop itself had.

    Ten seconds at most on a quiet machine. Raises InputError for an unknown fault.
    """
    if fault_name not in FAULTS:
        raise InputError(f"There is no fault {fault_name!r}: choose one of {', '.join(FAULTS)}.")
    fault = FAULTS[fault_name]
    return [
        Caught("greedy", first_divergence(fault, seed)),
        Caught("distribution", first_look(transform(fault, seed), uniformity)),
        Caught("acceptance", first_look(acceptance(fault, seed), surprise)),
    ]


def first_divergence(fault: Fault, seed: int) -> int | None:
    rng = np.random.default_rng(seed)
    target, draft = toy_pair()
    drafter = fault.drafter(draft)
    seen = 0
    for prompt in islice(_prompts(rng), GREEDY_ANSWERS):
        plain = _answer(target, prompt, Sampling(), rng, None, EXACT)
        for expected, emitted in zip(plain, _answer(target, prompt, Sampling(), rng, drafter, fault.rule), strict=True):
            seen += 1
            if emitted != expected:
                return seen
    return None


def transform(fault: Fault, seed: int) -> Iterator[float]:
    """Each emitted token as the mass of p that is likelier than it, plus a uniform share of its own.

    Uniform on [0, 1] for tokens that follow p. The first of an answer, which nothing speculated about, is left out.
    Source: Czado, Gneiting, Held, "Predictive Model Assessment for Count Data" (2009), section 2.
    """
    rng = np.random.default_rng(seed)
    target, draft = toy_pair()
    drafter, oracle = fault.drafter(draft), toy_target()
    for prompt in _prompts(rng):
        answer = _answer(target, prompt, SAMPLED, rng, drafter, fault.rule)
        oracle.crop(0)
        p = SAMPLED.of(oracle.extend([*prompt, *answer])[len(prompt) : -1])
        for row, token in zip(p, answer[1:], strict=True):
            likelier = (row > row[token]) | ((row == row[token]) & (np.arange(len(row)) < token))
            yield float(row[likelier].sum() + rng.random() * row[token])


def acceptance(fault: Fault, seed: int) -> Iterator[tuple[float, float]]:
    """Of each draft that was judged: 1.0 if it was kept and else 0.0, and its chance, the sum of min(p, q)."""
    rng = np.random.default_rng(seed)
    target, draft = toy_pair()
    drafter = fault.drafter(draft)
    judged: list[tuple[float, float]] = []

    def watched(p: FloatArray, q: FloatArray, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
        verified = fault.rule.verify(p, q, drafts, rng)
        chances = np.minimum(p[:-1], q).sum(axis=-1)[: verified.accepted + 1]
        judged.extend((float(i < verified.accepted), float(chance)) for i, chance in enumerate(chances))
        return verified

    for prompt in _prompts(rng):
        judged.clear()
        _answer(target, prompt, SAMPLED, rng, drafter, Rule(watched, fault.rule.rollback))
        yield from judged


def uniformity(seen: FloatArray) -> float:
    """p-value of chi-square over BINS equal bins of [0, 1]. `seen`: [n]"""
    counts, _ = np.histogram(seen, BINS, (0, 1))
    return float(stats.chisquare(counts).pvalue)


def surprise(seen: FloatArray) -> float:
    """p-value of as many kept, given each draft's own chance (the normal law of a sum of coins). `seen`: [n, 2]"""
    kept, chance = seen.T
    spread = np.sqrt((chance * (1 - chance)).sum())
    return float(2 * stats.norm.sf(abs((kept - chance).sum()) / spread))


def first_look(observations: Iterator[object], p_value: Callable[[FloatArray], float]) -> int | None:
    """How many observations there were when `p_value` of all so far first passed its level; None within LOOKS."""
    seen: list[object] = []
    for look in LOOKS:
        seen.extend(islice(observations, look - len(seen)))
        if p_value(np.array(seen, dtype=np.float64)) < ALPHA / len(LOOKS):
            return look
    return None


def _prompts(rng: np.random.Generator) -> Iterator[list[int]]:
    """Openings from anywhere in the toy's text, without end."""
    text = toy_text()
    while True:
        start = int(rng.integers(len(text) - OPENING))
        yield list(text[start : start + OPENING])


def _answer(
    target: Model,
    prompt: list[int],
    sampling: Sampling,
    rng: np.random.Generator,
    drafter: Drafter | None,
    rule: Rule,
) -> list[int]:
    steps = generate(target, prompt, sampling, rng, ANSWER_TOKENS, drafter, K, rule=rule)
    return [token for step in steps for token in step.tokens]
