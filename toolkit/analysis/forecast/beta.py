"""`toolkit beta`: what acceptance to expect of a target and a draft, before a GPU-hour is spent.

Leviathan et al. (2211.17192, section 3.1) call beta the chance that a draft token is kept, which is sum of min(p, q) at
a place of the text, and alpha its mean. Here it comes from two models, which write and judge texts of their own, or
from two files of logged distributions (`toolkit.analysis.forecast.distributions`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from toolkit.analysis.forecast.distributions import chunks, is_logged, matched, read_logged
from toolkit.analysis.forecast.estimate import ENOUGH_SEQUENCES
from toolkit.analysis.forecast.expectation import CHEAP, ENOUGH, Expectation, expect
from toolkit.analysis.forecast.rounds import Places, joined, judge
from toolkit.analysis.forecast.two_models import Answer, DraftSampleMethod, answers, load_two
from toolkit.analysis.workload import in_language, load_workload
from toolkit.errors import InputError
from toolkit.lab.reference import Sampling
from toolkit.sampling import FloatArray, one_hot

MOST_K = 64
PROMPTS = 16
TOKENS = 128


@dataclass(frozen=True, slots=True)
class BetaAsk:
    """What `toolkit beta` is asked. None is what was not said; steps are in milliseconds."""

    target: str
    draft: str
    prompts: str | None = None
    k: int = 8
    c: float | None = None
    target_step: float | None = None
    draft_step: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    draft_sample_method: str = "probabilistic"
    requests: int | None = None
    tokens: int | None = None
    seed: int = 0

    @property
    def method(self) -> DraftSampleMethod:
        return cast(DraftSampleMethod, self.draft_sample_method)

    @property
    def sampling(self) -> Sampling | None:
        """None where logged distributions are taken as they are."""
        if is_logged(self.target) and self.temperature is None and self.top_k is None and self.top_p is None:
            return None
        return Sampling(1.0 if self.temperature is None else self.temperature, self.top_k, self.top_p)

    @property
    def sampling_words(self) -> str:
        sampling = self.sampling
        if sampling is None:
            said = "as logged"
        else:
            cuts = [f"{name} {value}" for name, value in (("top-k", self.top_k), ("top-p", self.top_p)) if value]
            said = ", ".join([f"temperature {sampling.temperature:g}", *cuts])
        return f"{said}, greedy drafts" if self.method == "greedy" else said


@dataclass(frozen=True, slots=True)
class Beta:
    """A prediction of acceptance, and what it rests on."""

    ask: BetaAsk
    expected: Expectation
    notes: list[str]

    @property
    def source(self) -> str:
        return "two files of logged distributions" if is_logged(self.ask.target) else "two models"

    @property
    def exit_code(self) -> int:
        """1 where the check found a fault: nobody should serve the pair like this."""
        return 1 if self.expected.verdict in ("stop", "costs") else 0

    @property
    def sentence(self) -> str:
        """The verdict in words; what c would have to be where it is unknown."""
        found = self.expected
        kept = f"rounds of {found.k} keep {found.acceptance.percent} of their first drafts"
        even, k = found.break_even
        if found.c is None or found.best is None:
            if even <= 0:
                return f"{kept}: no draft is cheap enough for that"
            return (
                f"{kept}: at K = {k} this pays while a draft step costs less than {even:.2f} of a target step; what it "
                "costs is unknown (--c, or --target-step with --draft-step; `toolkit verify-cost` measures it)"
                + (f", and over {CHEAP:g} the answer is stop: fix the pair" if found.acceptance.value < ENOUGH else "")
            )
        best, speedup = found.best
        interval = f" [{speedup.low:.2f}, {speedup.high:.2f}]" if speedup.low is not None else ""
        gain = f"{speedup.value:.2f}x{interval} at K = {best}"
        limit = "for one request at a time, on hardware with compute to spare; load takes it away (`toolkit plan`)"
        if found.verdict == "stop":
            return (
                f"stop: fix the pair: {kept}, under {ENOUGH:.0%}, while a draft step costs {found.c:.2f} of a target "
                f"step, over {CHEAP:g}: {gain} at best, {limit}"
            )
        if found.verdict == "costs":
            return f"do not speculate with this pair: {gain} is the best of K up to {found.lengths[-1].k}, {limit}"
        word = "expect" if found.verdict == "pays" else "inconclusive: expect"
        return f"{word} {gain}, c = {found.c:.2f}, {limit}"

    def as_json(self) -> dict[str, Any]:
        """The keys of `toolkit beta --json`. A temperature of null is that of the log."""
        sampling = self.ask.sampling
        return {
            "schema": 1,
            "prediction": True,
            "source": self.source,
            "target": self.ask.target,
            "draft": self.ask.draft,
            "sampling": {
                "temperature": sampling.temperature if sampling else None,
                "top_k": self.ask.top_k,
                "top_p": self.ask.top_p,
                "draft_sample_method": self.ask.method,
            },
            **self.expected.as_json(),
            "sentence": self.sentence,
            "notes": self.notes,
        }


def beta(ask: BetaAsk, progress: Callable[[str], None] = lambda _: None) -> Beta:
    """Predict. Raises InputError for an ask that cannot be met, files that do not match, models that are no pair."""
    c = _check(ask)
    rng = np.random.default_rng(ask.seed)
    if is_logged(ask.target):
        expected = expect(list(_logged(ask, rng)), ask.k, c)
    else:
        written = _written(ask, rng, progress)
        expected = expect([one.places for one in written], ask.k, c, [one.rounds for one in written])
    return Beta(ask, expected, list(_notes(ask, expected)))


def _check(ask: BetaAsk) -> float | None:
    """c, as far as it is known."""
    if is_logged(ask.target) != is_logged(ask.draft):
        raise InputError("--target and --draft: two models, or two files of distributions (.jsonl, .npy, .npz).")
    if is_logged(ask.target):
        given = [("--prompts", ask.prompts), ("--tokens", ask.tokens), ("--requests", ask.requests)]
        if extra := [flag for flag, value in given if value is not None]:
            raise InputError(f"{', '.join(extra)}: logged distributions have their own places; leave it out.")
    elif ask.prompts is None:
        raise InputError("--prompts: two models need prompts to answer: a .jsonl file, or the name of a workload.")
    if ask.draft_sample_method not in get_args(DraftSampleMethod):
        raise InputError(f"--draft-sample-method {ask.draft_sample_method}: probabilistic or greedy.")
    if not 1 <= ask.k <= MOST_K:
        raise InputError(f"--k {ask.k}: a whole number from 1 to {MOST_K}.")
    if ask.temperature is not None and not 0 <= ask.temperature < np.inf:
        raise InputError(f"--temperature {ask.temperature:g}: 0 or more.")
    if ask.top_k is not None and ask.top_k < 1:
        raise InputError(f"--top-k {ask.top_k}: 1 or more.")
    if ask.top_p is not None and not 0 < ask.top_p <= 1:
        raise InputError(f"--top-p {ask.top_p:g}: above 0, up to 1.")
    if ask.requests is not None and ask.requests < 1:
        raise InputError(f"--requests {ask.requests}: 1 or more.")
    if ask.tokens is not None and ask.tokens < 2:
        raise InputError(f"--tokens {ask.tokens}: 2 or more; the first token of an answer has no draft.")
    if ask.seed < 0:
        raise InputError(f"--seed {ask.seed}: 0 or more.")
    return _cost(ask)


def _cost(ask: BetaAsk) -> float | None:
    steps = (ask.target_step, ask.draft_step)
    if ask.c is not None:
        if steps != (None, None):
            raise InputError("--c is --draft-step over --target-step: give it or them.")
        if not 0 <= ask.c < np.inf:
            raise InputError(f"--c {ask.c:g}: 0 or more, a draft step's time over a target step's.")
        return ask.c
    if ask.target_step is None and ask.draft_step is None:
        return None
    if ask.target_step is None or ask.draft_step is None:
        raise InputError("--target-step and --draft-step: both, in milliseconds.")
    if not (0 < ask.target_step < np.inf and 0 <= ask.draft_step < np.inf):
        raise InputError("--target-step: above 0 milliseconds; --draft-step: 0 or more.")
    return ask.draft_step / ask.target_step


def _logged(ask: BetaAsk, rng: np.random.Generator) -> Iterator[Places]:
    """The places of each text of two files."""
    target, draft = read_logged(Path(ask.target)), read_logged(Path(ask.draft))
    tokens = matched(target, draft)

    def sampled(rows: FloatArray) -> FloatArray:
        if ask.sampling is None:
            return rows
        with np.errstate(divide="ignore"):
            return ask.sampling.of(np.log(rows))

    for text in target.texts():
        parts = []
        for where in chunks(text):
            p, q = sampled(target.rows(where)), draft.rows(where)
            q = one_hot(q.argmax(axis=1), q.shape[1]) if ask.method == "greedy" else sampled(q)
            parts.append(judge(p, q, tokens[where], rng))
        yield joined(parts)


def _written(ask: BetaAsk, rng: np.random.Generator, progress: Callable[[str], None]) -> list[Answer]:
    """The answers of two models."""
    assert ask.prompts is not None
    assert ask.sampling is not None
    workload = in_language(load_workload(ask.prompts, ask.seed), "acceptance")
    most = ask.requests or PROMPTS
    count = most if workload.size is None else min(most, workload.size)
    progress(f"loading {ask.target} and {ask.draft}")
    models = load_two(ask.target, ask.draft)
    prompts = [workload.prompt(index) for index in range(count)]
    found = []
    for number, one in enumerate(
        answers(models, prompts, ask.sampling, ask.method, ask.k, ask.tokens or TOKENS, rng), start=1
    ):
        progress(f"{number} of {count} prompts answered and judged")
        found.append(one)
    if not found:
        raise InputError(f"--prompts {ask.prompts}: the target ended every answer at once; nothing was drafted.")
    return found


def _notes(ask: BetaAsk, found: Expectation) -> Iterator[str]:
    if not found.exact:
        yield (
            "the tokens of these texts are unknown or not the target's own at this sampling, so the stepping is an "
            "approximation: it takes drafts to be kept as the places say on average, whatever token followed"
        )
    if found.texts < ENOUGH_SEQUENCES:
        yield (
            f"the intervals are of stretches of {found.texts} text{'s' if found.texts > 1 else ''}: they cannot say "
            f"how other prompts would come out ({ENOUGH_SEQUENCES} texts or more can)"
        )
    if ask.method != "greedy" and (ask.sampling is None or ask.sampling.temperature > 0):
        yield (
            "drafts are drawn from q here; vLLM drafts greedily unless its draft_sample_method is probabilistic, and "
            "--draft-sample-method greedy predicts that"
        )
    if ask.temperature is None and not is_logged(ask.target):
        yield "at temperature 1; `toolkit sweep` measures at 0 unless told otherwise, and --temperature 0 predicts that"
