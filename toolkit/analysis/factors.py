"""The exact factors of a speedup, per level: tokens/s = tokens per pass x passes per iteration / seconds per iteration.

An iteration is one step of the engine's scheduler, in which many requests can take their pass. Tokens/s is the
client's, over the window, as a geometric mean over the pairs, so that the ratio is the speedup of `crossover`. Tokens
per pass comes from the summed counts of the requests, as in `level_stats`. Iterations come from the engine's counter,
read at the window's two edges, and their seconds from the readings' own times, again as geometric means over the pairs:
what slows both cells of a pair cancels. Passes per iteration is derived, and not a gauge that somebody sampled, so that
the product is exact.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes import Evidence, Factor, cause, room
from toolkit.analysis.levels import LevelStats, level_stats, tokens_per_pass
from toolkit.analysis.pairs import ENOUGH_PAIRS, Pair, mean_and_half, pairs_of, running_peaks
from toolkit.analysis.records import CellKey, CellRecord, RequestRecord, Side
from toolkit.analysis.run import ArmInfo, Run

Floats = NDArray[np.float64]
Stats = Mapping[tuple[str, Side, int], LevelStats]
Requests = Mapping[CellKey, Sequence[RequestRecord]]


@dataclass(frozen=True, slots=True)
class Terms:
    """One side at one concurrency; None is unavailable."""

    tokens_per_second: float | None
    tokens_per_pass: float | None
    passes_per_iteration: float | None
    seconds_per_iteration: float | None
    passes_per_second: float | None


@dataclass(frozen=True, slots=True)
class LevelFactors:
    """The ratios of one level, arm over baseline, and what they are ratios of.

    speedup = tokens_per_pass x passes_per_iteration / seconds_per_iteration = tokens_per_pass x passes_per_second,
    wherever these are known. `reason` says why one is not, `sentence` what they imply; both can be empty.
    """

    concurrency: int
    speedup: float | None
    tokens_per_pass: float | None
    passes_per_iteration: float | None
    seconds_per_iteration: float | None
    passes_per_second: float | None
    arm: Terms
    baseline: Terms
    reason: str
    sentence: str


def factors(run: Run, arm: str) -> list[LevelFactors]:
    """The factors of every level of `arm` that has a pair with two rates, by rising concurrency."""
    info = next(one for one in run.info.arms if one.name == arm)
    stats: Stats = {(one.arm, one.side, one.concurrency): one for one in level_stats(run)}
    requests: dict[CellKey, list[RequestRecord]] = {}
    for record in run.requests():
        if record.error is None:
            requests.setdefault(record.cell, []).append(record)
    measured = [_measured(pairs, stats, requests) for pairs in _usable(run, arm).values()]
    sentences = _sentences(run, info, stats, [one for one, _ in measured])
    return [_level_factors(one, sides, _reason(info, one), sentences[one.concurrency]) for one, sides in measured]


def _usable(run: Run, arm: str) -> dict[int, list[Pair]]:
    """The pairs that have a speedup, of levels that have one."""
    found = {level: [p for p in pairs if p.log_ratio is not None] for level, pairs in pairs_of(run, arm).items()}
    return {level: pairs for level, pairs in found.items() if pairs}


def _logs(pairs: Sequence[Pair], stats: Stats, requests: Requests) -> Floats:
    """Logarithms of (tokens/s, tokens per pass, seconds per iteration) by pair and side, shape (3, pairs, 2).

    NaN is unavailable. What is known of one side of a pair alone is dropped, so that ratios are of the same pairs.
    """
    cells = [[_cell(cell, stats, requests.get(cell.cell, [])) for cell in (p.arm, p.baseline)] for p in pairs]
    logs: Floats = np.log(np.array(cells, dtype=float)).transpose(2, 0, 1)
    logs[np.isnan(logs).any(axis=2)] = np.nan
    return logs


def _cell(cell: CellRecord, stats: Stats, records: Sequence[RequestRecord]) -> tuple[float, float, float]:
    bounds = tokens_per_pass(records) if _per_pass(stats, cell.cell) else None
    per_pass = sum(bounds) / 2 if bounds and bounds[0] else math.nan
    return cell.tokens_per_second or math.nan, per_pass, _seconds_per_iteration(cell)


def _per_pass(stats: Stats, cell: CellKey) -> float | None:
    return stats[cell.arm, cell.side, cell.concurrency].tokens_per_pass


def _seconds_per_iteration(cell: CellRecord) -> float:
    """From the readings at the window's edges; NaN unless all four of the cell are there and the engine lived on."""
    if len(cell.counters) != 4:
        return math.nan
    opened, closed = cell.counters[1:3]
    if opened.iterations is None or closed.iterations is None:
        return math.nan
    iterations, seconds = closed.iterations - opened.iterations, closed.at - opened.at
    return seconds / iterations if iterations > 0 and seconds > 0 else math.nan


def _five(logs: Floats) -> Floats:
    """The logarithms of the five fields of Terms, in their order, out of the three that were measured."""
    rate, per_pass, seconds = logs
    return np.array([rate, per_pass, rate - per_pass + seconds, seconds, rate - per_pass])


def _sides(logs: Floats, pair: Pair, stats: Stats) -> Floats:
    """Logarithms of the five fields of Terms, shape (5, 2): the level's arm and baseline."""
    known = ~np.isnan(logs)
    sums, counts = np.where(known, logs, 0.0).sum(axis=1), known.sum(axis=1)
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    per_pass = [_per_pass(stats, cell.cell) for cell in (pair.arm, pair.baseline)]
    means[1] = [math.log(value) if value else math.nan for value in per_pass]
    return _five(means)


def _level_factors(one: Evidence, sides: Floats, reason: str, sentence: str) -> LevelFactors:
    ratios = _terms(sides[:, 0] - sides[:, 1])
    return LevelFactors(
        concurrency=one.concurrency,
        speedup=ratios.tokens_per_second,
        tokens_per_pass=ratios.tokens_per_pass,
        passes_per_iteration=ratios.passes_per_iteration,
        seconds_per_iteration=ratios.seconds_per_iteration,
        passes_per_second=ratios.passes_per_second,
        arm=_terms(sides[:, 0]),
        baseline=_terms(sides[:, 1]),
        reason=reason,
        sentence=sentence,
    )


def _terms(logs: Floats) -> Terms:
    return Terms(*(None if math.isnan(log) else math.exp(log) for log in logs))


def _measured(pairs: Sequence[Pair], stats: Stats, requests: Requests) -> tuple[Evidence, Floats]:
    """A level as causes are judged by, and its sides as `_sides` gives them."""
    logs = _logs(pairs, stats, requests)
    sides, each = _sides(logs, pairs[0], stats), _five(logs)
    means, spread = sides[:, 0] - sides[:, 1], each[:, :, 0] - each[:, :, 1]
    speedup, *others = (
        Factor(float(mean), mean_and_half(row[~np.isnan(row)])[1]) for mean, row in zip(means, spread, strict=True)
    )
    per_pass, ran, seconds, per_second = (None if math.isnan(factor.log) else factor for factor in others)
    key, ours = pairs[0].arm.cell, _terms(sides[:, 0])
    counted = stats[key.arm, "arm", key.concurrency]
    evidence = Evidence(
        concurrency=key.concurrency,
        pairs=len(pairs),
        speedup=speedup,
        tokens_per_pass=per_pass,
        passes_per_iteration=ran,
        seconds_per_iteration=seconds,
        passes_per_second=per_second,
        arm_tokens_per_pass=ours.tokens_per_pass,
        arm_seconds_per_iteration=ours.seconds_per_iteration,
        acceptance_length=counted.acceptance_length,
        drafted=counted.drafted,
        preempted=sum(_preempted(pair.arm) for pair in pairs),
    )
    return evidence, sides


def _preempted(cell: CellRecord) -> float:
    counts = [reading.preemptions for reading in cell.counters if reading.preemptions is not None]
    return max(counts[-1] - counts[0], 0.0) if counts else 0.0


def _reason(info: ArmInfo, one: Evidence) -> str:
    """Why a factor is unavailable at this level, and what would tell it."""
    said = []
    if one.tokens_per_pass is None:
        said.append(
            "tokens per pass are unavailable: the responses do not tell them exactly (vLLM: "
            "--per-request-spec-decode-metrics detailed)"
        )
    if one.seconds_per_iteration is None:
        why = (
            "its counter was not read at both edges of the window (--disable-log-stats takes it away)"
            if info.engine == "vllm"
            else f"{info.engine} shows no counter of them"
        )
        said.append(f"passes and seconds per iteration are unavailable: {why}; vLLM counts vllm:iteration_tokens_total")
    return "; ".join(said)


def _sentences(run: Run, info: ArmInfo, stats: Stats, levels: Sequence[Evidence]) -> dict[int, str]:
    """What the factors of each level imply. A cause takes as many pairs as a verdict does."""
    said: dict[int, list[str]] = {one.concurrency: [] for one in levels}
    if info.speculates is False or run.info.baseline is None:
        return dict.fromkeys(said, "")
    judged = [one for one in levels if one.pairs >= ENOUGH_PAIRS]
    for one in levels:
        short = _room(run, info, run.info.baseline, stats, one.concurrency)
        why = short or (cause(one, judged[0]) if one in judged else "")
        said[one.concurrency] += [why] if why else []
    for level, fair in _like_for_like(run, info, levels).items():
        said[level].append(f"the arm lost async scheduling: {fair}")
    return {level: f"at {level} {'; '.join(parts)}" if parts else "" for level, parts in said.items()}


def _room(run: Run, arm: ArmInfo, baseline: ArmInfo, stats: Stats, level: int) -> str:
    peaks = running_peaks(run, arm.name, level)
    return room(
        level,
        running=peaks.get("arm"),
        baseline_running=peaks.get("baseline"),
        fits=_fits(arm, stats[arm.name, "arm", level]),
        baseline_fits=_fits(baseline, stats[arm.name, "baseline", level]),
        method=arm.method,
    )


def _fits(info: ArmInfo, stats: LevelStats) -> float | None:
    """How many of these requests the KV cache holds; None when either is unknown."""
    return info.kv_tokens / stats.mean_tokens_held if info.kv_tokens and stats.mean_tokens_held else None


def _like_for_like(run: Run, info: ArmInfo, levels: Sequence[Evidence]) -> dict[int, str]:
    """What the speedup would be with the baseline's scheduler too, by level; nothing when the schedulers are the same.

    The baseline without async scheduling is an arm of the run like any other: its own speedup divides the arm's.
    """
    baseline = run.info.baseline
    if baseline is None or (info.scheduling, baseline.scheduling) != ("synchronous", "asynchronous"):
        return {}
    plain = next((arm for arm in run.info.arms if (arm.method, arm.scheduling) == ("none", "synchronous")), None)
    if plain is None:
        how = "a baseline with --no-async-scheduling and VLLM_USE_V2_MODEL_RUNNER=0 as one more arm would show"
        return {one.concurrency: f"{how} the speedup like for like" for one in levels[:1]}
    slower = {
        level: mean_and_half([pair.log_ratio or 0.0 for pair in pairs])[0]
        for level, pairs in _usable(run, plain.name).items()
    }
    return {
        one.concurrency: f"like for like it would be {math.exp(one.speedup.log - slower[one.concurrency]):.2f}x"
        for one in levels
        if one.concurrency in slower
    }
