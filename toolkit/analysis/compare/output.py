"""A comparison as stable JSON, and the sentences that go with its tables wherever they are shown."""

from collections.abc import Iterator
from typing import Any

from toolkit.analysis.compare.comparison import Comparison, Difference, LevelComparison, Row
from toolkit.analysis.compare.dialects import OwnFigure
from toolkit.analysis.compare.interval import ENOUGH_PROMPTS, Estimate
from toolkit.analysis.compare.quantities import BY_POSITION, DEFINITIONS, NAMES

INTERVAL = (
    "95 % intervals: delete-one jackknife over prompts, Student's t; a difference is paired, each prompt left out of "
    "both at once"
)
UNPAIRED = "95 % intervals: delete-one jackknife over prompts, Student's t (Welch); not paired, the prompts differ"


def as_json(found: Comparison) -> dict[str, Any]:
    """The keys of `toolkit compare --json`. Unavailable is null, with a reason; never 0."""
    return {
        "schema": 1,
        "definitions": {**DEFINITIONS, **BY_POSITION},
        "contenders": [
            {
                "name": one.name,
                "run": str(one.run.folder),
                "arm": one.info.name,
                "engine": one.info.engine,
                "engine_version": one.info.engine_version,
                "method": one.info.method,
                "k": found.depths[one.name].k,
                "verified_per_step": found.depths[one.name].verified,
                "draft": one.info.draft,
                "model": one.info.model,
                "model_identity": one.info.model_identity,
                "precision": one.info.precision,
            }
            for one in found.contenders
        ],
        "left_out": found.left_out,
        "allowed": found.allowed,
        "idle": found.idle,
        "labels": found.labels,
        "caveats": found.caveats,
        "disagreements": found.disagreements,
        "levels": [_level(level) for level in found.levels],
    }


def _level(level: LevelComparison) -> dict[str, Any]:
    return {
        "concurrency": level.concurrency,
        "prompts": level.prompts,
        "paired": level.paired,
        "contenders": [_row(row) for row in level.rows],
        "differences": [
            {
                "one": one.one,
                "other": one.other,
                "quantity": one.quantity,
                "position": one.position,
                **_estimate(one.estimate, "difference"),
                "word": one.word,
                "reason": one.reason or None,
            }
            for one in level.differences
        ],
        "answers": [
            {
                "one": one.one,
                "other": one.other,
                "same": one.same,
                "prompts": one.prompts,
                "reason": one.reason or None,
            }
            for one in level.answers
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    counts = row.counts
    return {
        "name": row.name,
        "requests": counts.requests,
        "dropped": row.dropped,
        "steps": counts.steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "completion_tokens": counts.completion_tokens,
        "passes": list(counts.passes) if counts.passes else None,
        **{
            name: {**_estimate(row.estimates.get(name), "value"), "reason": row.reasons.get(name)}
            for name in DEFINITIONS
        },
        "by_position": [
            {
                "position": one.position,
                "unconditional": _estimate(one.unconditional, "value"),
                "given": _estimate(one.given, "value"),
            }
            for one in row.positions
        ],
        "by_position_reason": counts.no_positions or None,
        "own": [
            {
                "name": one.name,
                "mean": one.mean,
                "requests": one.requests,
                "quantity": one.quantity or None,
                "formula": one.formula or None,
                "of_sums": one.of_sums,
                "ours": one.ours,
                "why": (None if one.agrees else one.why) or None,
            }
            for one in row.own
        ],
        "aggregate": row.aggregate or None,
    }


def _estimate(found: Estimate | None, name: str) -> dict[str, Any]:
    if found is None:
        return {name: None, "low": None, "high": None, "prompts": None}
    return {name: found.value, "low": found.low, "high": found.high, "prompts": found.prompts}


def before(found: Comparison) -> list[str]:
    """What is said before any number: counts that cannot be true first, then drafts that do nothing, then what was
    allowed, then doubts. Sentences without their full stops."""
    wrong = [text.removesuffix(".") for text in found.disagreements]
    return [*wrong, *found.idle, *(f"allowed: {label}" for label in found.labels), *found.caveats]


def after(found: Comparison, level: LevelComparison) -> Iterator[str]:
    """What must be said of one level: dropped prompts, the engines' own figures, what is unavailable and why."""
    for row in level.rows:
        if row.dropped:
            yield f"{row.name}: {row.dropped} prompts dropped, not every contender answered them."
    explained: set[str] = set()
    for row in level.rows:
        for figure in row.own:
            yield own_sentence(row.name, figure, figure.why not in explained)
            explained |= set() if figure.agrees else {figure.why}
    for row in level.rows:
        for reason in dict.fromkeys(row.reasons.values()):
            names = [NAMES[name] for name, said in row.reasons.items() if said == reason]
            yield f"{row.name}: {' and '.join(names)} unavailable, {reason}."
        if row.counts.no_positions and row.counts.no_positions not in row.reasons.values():
            yield f"{row.name}: acceptance by position unavailable, {row.counts.no_positions}."
        if row.aggregate:
            told = ", ".join(f"{NAMES[name]} {value:.3f}" for name, value in row.aggregate.items())
            yield f"{row.name}: by its server's counters, warm-up and other prompts included: {told}."
    few = [one for one in level.differences if one.estimate and one.estimate.prompts < ENOUGH_PROMPTS]
    if few:
        yield f"Inconclusive under {ENOUGH_PROMPTS} prompts that drafted."


def own_sentence(name: str, one: OwnFigure, explain: bool = True) -> str:
    """An engine's own figure beside ours, its formula, and where they differ why, unless that was said already."""
    said = f"{name}: the engine's own {one.name} is {one.mean:.3f}, the mean of {one.requests} requests"
    if not one.quantity:
        return f"{said}; we do not know its formula."
    ours = "unavailable" if one.ours is None else f"{one.ours:.3f}"
    sums = "" if one.of_sums is None else f", from summed counts {one.of_sums:.3f}"
    why = "" if one.agrees or not explain else f" {one.why}."
    return f"{said} ({one.formula}{sums}); our {NAMES[one.quantity]} is {ours}.{why}"


def headline(level: LevelComparison) -> list[str]:
    """Each pair's tokens per pass in a few words; of more than three pairs their range."""
    known = {row.name: found.value for row in level.rows if (found := row.estimates.get("tokens_per_pass"))}
    if len(level.rows) > 3 and known:
        least, most = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
        return [f"from {known[least]:.2f} ({least}) to {known[most]:.2f} tokens per pass ({most})"]
    said = []
    for one in level.differences:
        if one.quantity == "tokens_per_pass":
            against = "than" if one.word in ("more", "less") else "against"
            said.append(f"{one.one}: {_words(one)} {against} {one.other}")
    return said


def _words(one: Difference) -> str:
    if one.estimate is None:
        return "tokens per pass unavailable"
    if one.word in ("more", "less"):
        return f"{abs(one.estimate.value):.2f} tokens per pass {one.word}"
    return f"{one.word} in tokens per pass"


def formulas() -> list[str]:
    """The definitions, to be printed under the numbers."""
    return [f"{NAMES[name]} = {formula}" for name, formula in DEFINITIONS.items()]
