"""Predicting the speedup at a load from what passes cost and from how many drafts are kept.

An iteration of the engine passes over n requests at once: over 1 + k tokens of each (k drafted ones), and now and then
over a whole new prompt, n times in the passes of one answer. The time of an iteration is the mean of the two kinds. So
is its drafting: one draft pass over the same tokens and K - 1 over one token of each request. Then

    speedup = tokens per pass x seconds per iteration without / seconds per iteration with speculation.

With one request, no prompt and free context this is Leviathan et al. (2023), Theorem 3.8: E(tokens) / (1 + K c).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.analysis.crossover import crossover
from toolkit.analysis.forecast.cost import MeasuredCost, Seconds, StepCost
from toolkit.analysis.records import RequestRecord
from toolkit.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Load:
    """n requests at once, each with a prompt and an answer of so many tokens."""

    concurrency: int
    prompt_tokens: float
    answer_tokens: float

    @property
    def held_per_request(self) -> float:
        """Tokens of context that a request holds, on average over its answer."""
        return self.prompt_tokens + self.answer_tokens / 2


@dataclass(frozen=True, slots=True)
class Drafts:
    """What speculation does in a pass: tokens kept and drafted, both means over all passes; and K."""

    tokens_per_pass: float
    drafted_per_pass: float
    k: int


NONE = Drafts(tokens_per_pass=1.0, drafted_per_pass=0.0, k=0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted speedup of an arm at a load, beside what was measured when it was."""

    arm: str
    concurrency: int
    k: int
    speedup: float
    limit: str
    source: str
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return self.speedup / self.measured - 1 if self.measured else None


def iteration(cost: StepCost, load: Load, drafts: Drafts) -> Seconds:
    """Mean seconds of an engine iteration with `load.concurrency` requests, and what binds its decoding passes."""
    n = load.concurrency
    passes = load.answer_tokens / drafts.tokens_per_pass
    arriving = n / passes  # prompts per iteration
    share, prompts = min(1.0, arriving), max(1.0, arriving)
    held = n * load.held_per_request
    decoding = n * (1 + drafts.drafted_per_pass)
    both = decoding + prompts * load.prompt_tokens
    without = cost.target(decoding, held)
    seconds = (1 - share) * without.seconds + share * cost.target(both, held).seconds
    if drafts.k:
        first = (1 - share) * cost.draft(decoding, held) + share * cost.draft(both, held)
        seconds += first + (drafts.k - 1) * cost.draft(n, held)
    return Seconds(seconds, without.limit)


def throughput(cost: StepCost, load: Load, drafts: Drafts) -> tuple[float, str]:
    """Output tokens/s at `load`, and what binds.

    Where the KV cache holds fewer requests than are asked for, only those run, and that is the limit. A draft's own
    cache takes its part of the room.
    """
    fits = cost.fits(load.held_per_request, drafting=drafts.k > 0)
    if fits is None or fits >= load.concurrency:
        seconds = iteration(cost, load, drafts)
        return load.concurrency * drafts.tokens_per_pass / seconds.seconds, seconds.limit
    running = replace(load, concurrency=max(1, int(fits)))
    rate = running.concurrency * drafts.tokens_per_pass / iteration(cost, running, drafts).seconds
    return rate, f"KV cache: {running.concurrency} of {load.concurrency} requests fit"


def speedup(cost: StepCost, load: Load, drafts: Drafts) -> tuple[float, str]:
    """The predicted speedup at `load`, and what binds the passes of the arm that drafts."""
    ours, limit = throughput(cost, load, drafts)
    return ours / throughput(cost, load, NONE)[0], limit


def predictions(run: Run, cost: MeasuredCost | None) -> list[Prediction]:
    """For every arm and level of a run the speedup that its own acceptance and a cost measured elsewhere imply.

    Empty without a cost, or where neither tokens per pass nor the drafting's cost is known.
    """
    if cost is None:
        return []
    measured = {
        (one.arm, level.concurrency): (level.speedup, level.tokens_per_pass)
        for one in crossover(run).results
        for level in one.levels
    }
    found = []
    for arm in (arm for arm in run.info.arms if arm.speculates is not False):
        step = cost.step_cost(arm.method, arm.draft)
        for level in sorted(run.info.levels):
            real, per_pass = measured.get((arm.name, level), (None, None))
            records = [
                record
                for record in run.requests()
                if (record.cell.arm, record.cell.side, record.cell.concurrency) == (arm.name, "arm", level)
                and record.error is None
            ]
            if step is None or per_pass is None or not records or any(record.drafted is None for record in records):
                continue
            load, drafts = _seen(level, per_pass, records)
            ratio, limit = speedup(step, load, drafts)
            found.append(Prediction(arm.name, level, drafts.k, ratio, limit, step.source, real))
    return found


def _seen(level: int, per_pass: float, records: Sequence[RequestRecord]) -> tuple[Load, Drafts]:
    """The load and the drafting of one level. K is what a drafted step carried there, under a schedule too."""
    answer = sum(record.completion_tokens or 0 for record in records) / len(records)
    prompt = sum(record.prompt_tokens or 0 for record in records) / len(records)
    drafted = sum(record.drafted or 0 for record in records)
    steps = sum(record.steps or 0 for record in records)
    k = round(drafted / steps) if steps else 0
    return Load(level, prompt, answer), Drafts(per_pass, drafted / len(records) * per_pass / answer, k)
