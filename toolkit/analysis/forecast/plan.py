"""What to expect before trying: the speedup for K x concurrency on a machine, with what binds at each point."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from toolkit import theory
from toolkit.analysis.acceptance import by_position
from toolkit.analysis.forecast.cost import Drafting, MeasuredCost, StepCost
from toolkit.analysis.forecast.predict import NONE, Drafts, Load, speedup, throughput
from toolkit.analysis.forecast.roofline import IN_FLIGHT, Roofline, step_curve
from toolkit.analysis.run import RANDOM, SYNTHETIC, Run
from toolkit.engines.contract import LOOKUPS, Method
from toolkit.errors import InputError
from toolkit.launch.machines import load_machine
from toolkit.launch.model_size import model_size
from toolkit.launch.profile import load_profile

ALPHA = 0.7  # where nothing is known of the draft: between the 0.5 of free text and the 0.8 of code
MOST_K = 64


@dataclass(frozen=True, slots=True)
class PlanAsk:
    """What `toolkit plan` is asked. Either `hardware` with `target`, or `calibrate`."""

    hardware: str | None = None
    target: str | None = None
    draft: str | None = None
    method: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    memory_fraction: float | None = None
    calibrate: MeasuredCost | None = None
    acceptance: Run | None = None
    alpha: float | None = None
    ks: Sequence[int] = (1, 2, 4, 8)
    levels: Sequence[int] = (1, 4, 16, 64)
    prompt_tokens: int = 512
    answer_tokens: int = 256


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One K at one concurrency, predicted. `break_even_alpha` gives a speedup of 1, None when no acceptance does."""

    concurrency: int
    k: int
    speedup: float
    tokens_per_second: float
    limit: str
    break_even_alpha: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A prediction, and everything that was assumed for it."""

    source: str
    target: str
    method: str
    draft: str | None
    c: float
    acceptance: str
    prompt_tokens: int
    answer_tokens: int
    curve: list[tuple[int, float, str]]
    """(tokens in flight, seconds of a target pass, what binds it), no context held."""
    plain: list[tuple[int, float]]
    """(concurrency, output tokens/s without speculation)."""
    points: list[PlanPoint]
    names_best: bool
    """Whether a best K can be named: not for a lookup of which nobody measured how often it finds something."""
    notes: list[str]

    def best(self, concurrency: int) -> PlanPoint | None:
        """Of the K tried the one with the highest predicted speedup, None where none is above 1."""
        here = [point for point in self.points if point.concurrency == concurrency and point.speedup > 1]
        return max(here, key=lambda point: (point.speedup, -point.k), default=None)

    def as_json(self) -> dict[str, Any]:
        """The keys of `toolkit plan --json`."""
        return {
            "schema": 1,
            "prediction": True,
            **{name: getattr(self, name) for name in ("source", "target", "method", "draft", "c", "acceptance")},
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "curve": [{"tokens": t, "seconds": s, "limit": limit} for t, s, limit in self.curve],
            "plain": [{"concurrency": n, "tokens_per_second": rate} for n, rate in self.plain],
            "points": [asdict(point) for point in self.points],
            "best_k": {str(n): best.k if (best := self.best(n)) else 0 for n, _ in self.plain}
            if self.names_best
            else None,
            "notes": self.notes,
        }


def plan(ask: PlanAsk) -> Plan:
    """Predict. Raises InputError for an ask that cannot be met: an unknown machine or model, a K without acceptance."""
    _check(ask)
    method, draft = _drafting(ask)
    cost, target, share = _cost(ask, method, draft)
    notes = []
    if method in LOOKUPS and ask.acceptance is None:
        notes.append("a lookup drafts only where it finds a match; this is as if it always did, so it names no best K")
    kept = _acceptance(ask, method, draft)
    most = kept.most
    ks = [k for k in sorted(set(ask.ks)) if most is None or k <= most]
    if not ks:
        raise InputError(f"--k: acceptance was measured up to position {most}, so no K above it can be predicted.")
    if left_out := [k for k in ask.ks if k not in ks]:
        notes.append(f"K = {', '.join(map(str, left_out))} left out: acceptance was measured up to position {most}")
    loads = [Load(n, ask.prompt_tokens, ask.answer_tokens) for n in sorted(set(ask.levels))]
    fits = cost.fits(loads[0].held_per_request, drafting=True)
    if fits is not None and fits < 1:
        raise InputError(
            f"{target}: weights and one request of {ask.prompt_tokens + ask.answer_tokens} tokens do not fit into the "
            "memory of this machine."
        )
    points = [_point(cost, load, kept, k) for load in loads for k in ks]
    return Plan(
        source=cost.source,
        target=target,
        method=method,
        draft=draft,
        c=share,
        acceptance=kept.said,
        prompt_tokens=ask.prompt_tokens,
        answer_tokens=ask.answer_tokens,
        curve=[(tokens, s.seconds, s.limit) for tokens, s in step_curve(cost, 0, IN_FLIGHT)],
        plain=[(load.concurrency, throughput(cost, load, NONE)[0]) for load in loads],
        points=points,
        names_best=method not in LOOKUPS or ask.acceptance is not None,
        notes=notes,
    )


def of_profile(ask: PlanAsk, name: str) -> PlanAsk:
    """`ask` with target, draft, method, precision and memory of a profile, unless it says them itself."""
    profile = load_profile(name)
    if profile.limits.tensor_parallel > 1:
        raise InputError(f"profile {name}: it runs on {profile.limits.tensor_parallel} devices; a plan is for one.")
    speculation = profile.speculation
    if speculation is None and ask.method is None and ask.draft is None:
        raise InputError(f"profile {name} does not speculate: name one that does, or give --draft or --method.")
    limits, longest = profile.limits, ask.prompt_tokens + ask.answer_tokens
    if limits.max_num_seqs is not None and max(ask.levels, default=0) > limits.max_num_seqs:
        raise InputError(
            f"--concurrency {max(ask.levels)}: {name} runs at most {limits.max_num_seqs} requests at once."
        )
    if limits.max_model_len is not None and longest > limits.max_model_len:
        raise InputError(f"{name} takes at most {limits.max_model_len} tokens, prompt and answer; asked for {longest}.")
    return replace(
        ask,
        target=ask.target or profile.target.model,
        draft=ask.draft or (speculation.draft if speculation else None),
        method=ask.method or (speculation.method if speculation else None),
        dtype=profile.target.dtype,
        quantization=profile.target.quantization,
        memory_fraction=profile.limits.memory_fraction,
    )


def _check(ask: PlanAsk) -> None:
    if ask.method is not None and ask.method not in get_args(Method):
        raise InputError(f"--method {ask.method}: one of {', '.join(get_args(Method))}.")
    if ask.calibrate is None and (ask.hardware is None or ask.target is None):
        raise InputError("a plan needs --hardware with --target (or --profile), or --calibrate with a verify-cost run.")
    if not ask.ks or any(not 1 <= k <= MOST_K for k in ask.ks):
        raise InputError(f"--k: whole numbers from 1 to {MOST_K} with commas between them, like 1,2,4,8.")
    if not ask.levels or any(n < 1 for n in ask.levels):
        raise InputError("--concurrency: whole numbers from 1, like 1,4,16,64.")
    if ask.alpha is not None and ask.acceptance is not None:
        raise InputError("--alpha and --acceptance both say what is accepted: give one of them.")
    if ask.alpha is not None and not 0 <= ask.alpha <= 1:
        raise InputError(f"--alpha {ask.alpha:g}: a probability, from 0 to 1.")
    if ask.prompt_tokens < 0 or ask.answer_tokens < 1:
        raise InputError("--prompt-tokens: 0 or more; --answer-tokens: 1 or more.")


def _drafting(ask: PlanAsk) -> tuple[str, str | None]:
    """Method and draft: as asked, or the one whose cost was measured."""
    if ask.method in LOOKUPS and ask.draft:
        raise InputError(f"--method {ask.method} takes no --draft.")
    if ask.method is not None or ask.draft is not None:
        return ask.method or "draft_model", ask.draft
    measured = ask.calibrate.drafting if ask.calibrate else []
    if len(measured) > 1:
        raise InputError(f"--calibrate measured several ({_names(measured)}): choose with --method or --draft.")
    return (measured[0].method, measured[0].draft) if measured else ("ngram", None)


def _cost(ask: PlanAsk, method: str, draft: str | None) -> tuple[StepCost, str, float]:
    """What passes cost, the target's name, and c."""
    if ask.calibrate is not None:
        if ask.hardware is not None or ask.target not in (None, ask.calibrate.model):
            other = ask.hardware or ask.target
            raise InputError(
                f"--calibrate holds costs of {ask.calibrate.model} as measured, not of {other}: leave one of them out."
            )
        step = ask.calibrate.step_cost(method, draft)
        if step is None:
            raise InputError(
                f"--calibrate: the cost of drafting with {method} {draft or ''} was not measured there "
                f"(measured: {_names(ask.calibrate.drafting) or 'none'}). Run `toolkit verify-cost` with its profile."
            )
        return step, ask.calibrate.model, step.c if step.drafting else 0.0
    assert ask.hardware is not None
    assert ask.target is not None
    if method not in LOOKUPS and draft is None:
        raise InputError(
            f"--method {method}: what it costs depends on its draft. Name it with --draft, or measure it with "
            "`toolkit verify-cost` and use --calibrate."
        )
    machine = load_machine(ask.hardware)
    if ask.memory_fraction is not None:
        machine = machine.model_copy(update={"memory_fraction": ask.memory_fraction})
    size = model_size(draft, ask.dtype) if draft else None
    roofline = Roofline(machine, model_size(ask.target, ask.dtype, ask.quantization), size)
    return roofline, ask.target, roofline.c or 0.0


def _names(measured: Sequence[Drafting]) -> str:
    return ", ".join(f"{one.method} {one.draft or ''}".strip() for one in measured)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is assumed of acceptance: tokens that a drafted pass gives for a K, and the share of passes that draft.

    `most` is the largest K it is known for, None for any.
    """

    said: str
    tokens: Callable[[int], float]
    share: float = 1.0
    most: int | None = None


def _acceptance(ask: PlanAsk, method: str, draft: str | None) -> _Kept:
    if ask.acceptance is None:
        alpha = ALPHA if ask.alpha is None else ask.alpha
        said = f"alpha {alpha:g}" + (" assumed" if ask.alpha is None else "")
        said += ", every pass drafted" if method in LOOKUPS else ""
        return _Kept(said, lambda k: theory.expected_tokens(alpha, k))
    run = ask.acceptance
    if run.info.workload.random:
        raise InputError(f"{run.folder}: {RANDOM}; give --alpha, or a Run over prompts of your own traffic.")
    arm = next((one for one in run.info.arms if (one.method, one.draft) == (method, draft)), None)
    if arm is None:
        there = ", ".join(f"{one.method or 'unknown'} {one.draft or ''}".strip() for one in run.info.arms)
        raise InputError(f"{run.folder} measured no {method} {draft or ''}: its arms are {there}.")
    given = []
    for position in by_position(run, arm.name):
        if position.given is None:
            break
        given.append(position.given)
    share = _drafted_share(run, arm.name)
    if not given or share is None:
        raise InputError(f"{run.folder}: acceptance by position is unavailable for {arm.name}; give --alpha.")
    synthetic = f" ({SYNTHETIC})" if arm.synthetic else ""
    return _Kept(
        f"by position, as {arm.name} had it in {run.folder.name}, {share:.0%} of its passes drafted{synthetic}",
        lambda k: theory.expected_tokens_by_position(given[:k]),
        share,
        len(given),
    )


def _drafted_share(run: Run, arm: str) -> float | None:
    """Of the passes after the prefill those that carried a draft; None when passes are unknown."""
    records = [r for r in run.requests() if (r.cell.arm, r.cell.side) == (arm, "arm") and r.error is None]
    if not records or any(record.passes is None or record.steps is None for record in records):
        return None
    passes = sum(sum(record.passes or (0, 0)) / 2 - 1 for record in records)
    return min(1.0, sum(record.steps or 0 for record in records) / passes) if passes > 0 else None


def drafts_of(tokens: float, k: int, answer_tokens: float, share: float = 1.0) -> Drafts:
    """What drafts of K tokens bring when a drafted pass gives `tokens` and a `share` of the passes is drafted.

    The prefill is a pass too, which gives one token.
    """
    decoding = (answer_tokens - 1) / (1 + share * (tokens - 1))
    passes = 1 + decoding
    return Drafts(answer_tokens / passes, share * k * decoding / passes, k)


def _point(cost: StepCost, load: Load, kept: _Kept, k: int) -> PlanPoint:
    def drafts(tokens: float) -> Drafts:
        return drafts_of(tokens, k, load.answer_tokens, kept.share)

    def at(alpha: float) -> float:
        return speedup(cost, load, drafts(theory.expected_tokens(alpha, k)))[0]

    ratio, limit = speedup(cost, load, drafts(kept.tokens(k)))
    return PlanPoint(
        concurrency=load.concurrency,
        k=k,
        speedup=ratio,
        tokens_per_second=throughput(cost, load, drafts(kept.tokens(k)))[0],
        limit=limit,
        break_even_alpha=_break_even(at),
    )


def _break_even(ratio: Callable[[float], float]) -> float | None:
    """The smallest alpha at which `ratio`, which rises with it, reaches 1; None when it never does."""
    if ratio(1.0) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if ratio(middle) >= 1 else (middle, high)
    return high
