"""What must be alike before acceptance can be compared: each difference is refused, or let through and then said."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from toolkit.analysis.compare.contenders import Contender, depth
from toolkit.errors import InputError

ALLOWABLE = {
    "depth": "draft lengths that differ",
    "prompts": "prompts that differ",
    "tokens": "prompts whose token ids differ",
    "sampling": "sampling that differs",
    "temperature": "a temperature above 0",
    "target": "target models that differ",
}
FEWEST_COMMON = 5  # prompts: fewer say nothing of a difference between prompts


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not alike: its kind, a key of ALLOWABLE, and what differs, naming arms and values."""

    kind: str
    said: str
    advice: str = ""


def check(contenders: Sequence[Contender], levels: Sequence[int], allow: Collection[str]) -> list[str]:
    """What is not alike and was allowed: one sentence each, without its full stop.

    Raises InputError, saying all that differs, for what was not.
    """
    found = [
        *_target(contenders),
        *_sampling(contenders),
        *_depth(contenders),
        *_prompts(contenders, levels),
        *_tokens(contenders, levels),
    ]
    refused = [problem for problem in found if problem.kind not in allow]
    if refused:
        kinds = ",".join(dict.fromkeys(problem.kind for problem in refused))
        lines = "\n".join(f"  {one.kind}: {one.said}.{' ' * bool(one.advice)}{one.advice}" for one in refused)
        raise InputError(
            f"these contenders are not alike:\n{lines}\nMeasure them alike, or see the numbers, labelled, with "
            f"--allow {kinds}."
        )
    return [problem.said for problem in found]


def common_prompts(contenders: Sequence[Contender], level: int) -> list[str]:
    """Hashes of the prompts that every contender answered at this concurrency, in the order of the first one."""
    each = [one.answered(level) for one in contenders]
    return [prompt for prompt in each[0] if all(prompt in other for other in each[1:])]


def common_levels(contenders: Sequence[Contender], concurrency: int | None) -> list[int]:
    """The concurrencies at which all were measured, or the one that is asked for. Raises InputError without one."""
    shared = sorted(set.intersection(*(one.levels for one in contenders)))
    measured = "; ".join(f"{one.name} at {', '.join(map(str, sorted(one.levels))) or 'none'}" for one in contenders)
    if not shared:
        raise InputError(f"no concurrency was measured of all: {measured}. Sweep them at the same --concurrency.")
    if concurrency is None:
        return shared
    if concurrency not in shared:
        raise InputError(f"--concurrency {concurrency} was not measured of all: {measured}.")
    return [concurrency]


def _depth(contenders: Sequence[Contender]) -> list[Problem]:
    depths = {one.name: depth(one) for one in contenders}
    if len(set(depths.values())) == 1 and next(iter(depths.values())).k is not None:
        return []
    root = any(one.info.engine == "sglang" for one in contenders)
    hint = " (SGLang's draft tokens hold the root: K is one less)" if root else ""
    return [Problem("depth", f"the draft lengths differ: {listed(depths)}{hint}")]


def _sampling(contenders: Sequence[Contender]) -> list[Problem]:
    problems = []
    names = dict.fromkeys(name for one in contenders for name in one.run.info.sampling)
    for name in names:
        values = {one.name: one.run.info.sampling.get(name) for one in contenders}
        first = next(iter(values.values()))
        if any(value != first for value in values.values()):
            problems.append(Problem("sampling", f"{name} differs: {listed(values)}"))
    temperatures = {one.name: one.run.info.sampling.get("temperature") for one in contenders}
    if any(value != 0 for value in temperatures.values()):
        problems.append(
            Problem(
                "temperature",
                f"the temperature is not 0: {listed(temperatures)}; acceptance depends on it, answers are drawn, and "
                "some engines (SGLang on a CPU) ignore it silently",
            )
        )
    return problems


def _target(contenders: Sequence[Contender]) -> list[Problem]:
    """By the identity of the model's files where both are known, else by its name."""
    for one, other in combinations(contenders, 2):
        known = one.info.model_identity and other.info.model_identity
        ours, theirs = (who.info.model_identity if known else who.info.model for who in (one, other))
        if ours != theirs:
            shown = {who.name: " ".join(filter(None, (who.info.model, who.info.model_identity))) for who in contenders}
            return [Problem("target", f"the target models differ: {listed(shown)}")]
    return []


def _prompts(contenders: Sequence[Contender], levels: Sequence[int]) -> list[Problem]:
    common = {level: len(common_prompts(contenders, level)) for level in levels}
    few = [level for level in levels if common[level] < FEWEST_COMMON]
    if not few:
        return []
    counts = {level: {one.name: len(one.answered(level)) for one in contenders} for level in few}
    seeds = {one.name: one.run.info.workload.seed for one in contenders if one.run.info.workload.size is None}
    drawn = f"; their seeds differ: {listed(seeds)}" if len(set(seeds.values())) > 1 else ""
    told = ", ".join(f"{common[level]} at concurrency {level} ({listed(counts[level])})" for level in few)
    return [
        Problem(
            "prompts",
            f"too few prompts were answered by all, {FEWEST_COMMON} are needed: {told}{drawn}",
            "Sweep with the same workload, levels and requests, and the same --seed (a running server gets a new one "
            "each time). Arms that share a baseline get prompts of their "
            "own: give each a Run of its own, or choose arms with --arm.",
        )
    ]


def _tokens(contenders: Sequence[Contender], levels: Sequence[int]) -> list[Problem]:
    """Pairs that were given the same text as other token ids; where one does not tell its ids, as another number."""
    problems = []
    for one, other in combinations(contenders, 2):
        differ = of = 0
        by_count = False
        for level in levels:
            ours, theirs = one.answered(level), other.answered(level)
            for prompt in ours.keys() & theirs.keys():
                mine, yours = ours[prompt][0], theirs[prompt][0]
                ids = (mine.prompt_ids_hash, yours.prompt_ids_hash)
                pair = ids if None not in ids else (mine.prompt_tokens, yours.prompt_tokens)
                if None not in pair:
                    of += 1
                    differ += pair[0] != pair[1]
                    by_count = by_count or (pair[0] != pair[1] and None in ids)
        if differ:
            how = "were of other lengths in tokens" if by_count else "had other token ids"
            problems.append(
                Problem(
                    "tokens",
                    f"{differ} of {of} prompts {how} for {one.name} and {other.name}: their chat templates or "
                    "tokenizers differ",
                )
            )
    return problems


def listed(values: Mapping[str, object]) -> str:
    """`a 4, b 2`; of many that share few values, `a, b, c: 4; d: 2`."""
    sharing: dict[str, list[str]] = {}
    for name, value in values.items():
        sharing.setdefault(str(value), []).append(name)
    if len(values) > 3 and len(sharing) < len(values):
        return "; ".join(f"{', '.join(names)}: {value}" for value, names in sharing.items())
    return ", ".join(f"{name} {value}" for name, value in values.items())
