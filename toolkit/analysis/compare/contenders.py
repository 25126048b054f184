"""Who is compared: the speculating arms of the Runs, under names that tell them apart, and how deep each drafts."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from toolkit.analysis.acceptance import steps_of
from toolkit.analysis.records import RequestRecord
from toolkit.analysis.run import RANDOM, ArmInfo, Run
from toolkit.errors import InputError

_STEPS, _DRAFT_TOKENS = "speculative_num_steps", "speculative_num_draft_tokens"


@dataclass(frozen=True)
class Contender:
    """One arm of one Run. `name` is unique in a comparison."""

    name: str
    run: Run
    info: ArmInfo

    @property
    def levels(self) -> set[int]:
        """The concurrencies at which it has a finished cell."""
        return set(self._by_level)

    def requests(self, concurrency: int) -> list[RequestRecord]:
        """Its measured requests at one concurrency, the failed ones too."""
        return self._by_level.get(concurrency, [])

    def answered(self, concurrency: int) -> dict[str, list[RequestRecord]]:
        """Its answered requests by prompt hash: more than one where a prompt was served again."""
        found: dict[str, list[RequestRecord]] = {}
        for record in self.requests(concurrency):
            if record.error is None:
                found.setdefault(record.prompt_hash, []).append(record)
        return found

    @cached_property
    def _by_level(self) -> dict[int, list[RequestRecord]]:
        found: dict[int, list[RequestRecord]] = {
            cell.cell.concurrency: []
            for cell in self.run.cells()
            if (cell.cell.arm, cell.cell.side) == (self.info.name, "arm")
        }
        for record in self.run.requests():
            if (record.cell.arm, record.cell.side) == (self.info.name, "arm"):
                found[record.cell.concurrency].append(record)
        return found


@dataclass(frozen=True, slots=True)
class Depth:
    """How far one step drafts. A chain verifies `k` tokens a step; a tree verifies more than it is deep."""

    k: int | None
    verified: int | None
    schedule: str | None = None

    def __str__(self) -> str:
        if self.k is None:
            return "K unknown"
        tree = f" in a tree of {self.verified} tokens" if self.verified != self.k else ""
        by_load = f" by load {self.schedule}" if self.schedule else ""
        return f"K = {self.k}{tree}{by_load}"


def contenders(runs: Sequence[Run], arms: Collection[str] = ()) -> tuple[list[Contender], list[str]]:
    """Every arm, or those named in `arms`, that speculates or may; and the names of those that do not.

    Raises InputError: a Run named twice or not whole, an arm that no Run has, fewer than two contenders, drafts that
    were accepted by lot, random prompts.
    """
    places = [run.folder.resolve() for run in runs]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(f"{runs[number].folder}: this Run is named twice.")
        runs[number].check_whole()
    everyone = [(run, info) for run in runs for info in run.info.arms if not arms or info.name in arms]
    measured = [info.name for run in runs for info in run.info.arms]
    for name in arms:
        if name not in measured:
            raise InputError(f"--arm {name}: these Runs have {', '.join(measured)}.")
    for run, info in everyone:
        if run.info.workload.random:
            raise InputError(
                f"{run.folder}: {RANDOM}. Sweep prompts of your own traffic to compare what is kept of drafts."
            )
        if info.synthetic:
            raise InputError(
                f"{run.folder}: {info.name} ran with synthetic acceptance: its drafts were accepted by lot. What it "
                "keeps is what was asked for and no finding, so nothing is compared with it."
            )
    drafting = [(run, info) for run, info in everyone if info.speculates is not False and info.method != "none"]
    names = _names(drafting)
    found = [Contender(name, run, info) for name, (run, info) in zip(names, drafting, strict=True)]
    if len(found) < 2:
        raise InputError(
            f"{', '.join(str(run.folder) for run in runs)}: arms that speculate: {len(found)}; a comparison takes two. "
            "Name another Run, made by toolkit sweep on the same workload, seed and concurrency."
        )
    return found, [info.name for run, info in everyone if (run, info) not in drafting]


def depth(one: Contender) -> Depth:
    """The draft length of a contender, as it was asked for; where that is not known, the longest draft that was seen.

    SGLang counts the root of a draft as one of its draft tokens: of a chain, D draft tokens are K = D - 1 drafts a step
    (sglang 0.5.23, srt/managers/tokenizer_manager.py, _calculate_spec_decoding_metrics), however many steps it is told.
    """
    schedule = one.info.facts.get("schedule")
    if one.info.engine == "sglang" and (of_sglang := _sglang(one.info)):
        return of_sglang
    k = one.info.num_speculative_tokens or _seen(one)
    return Depth(k, k, schedule)


def _sglang(info: ArmInfo) -> Depth | None:
    """From its arguments, or from what the running server says of them; None where neither tells."""
    words = [part for word in info.argv or () for part in word.split("=", 1)]
    told = {flag.removeprefix("--").replace("-", "_"): value for flag, value in pairwise(words)} | info.facts
    steps, tokens, topk = (_whole(told.get(name)) for name in (_STEPS, _DRAFT_TOKENS, "speculative_eagle_topk"))
    if tokens is None or tokens < 2:
        return None
    if steps is None or (topk or 1) == 1:
        return Depth(tokens - 1, tokens - 1)
    return Depth(min(steps, tokens - 1), tokens - 1)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _seen(one: Contender) -> int | None:
    """The longest draft of all steps; from sums alone, the mean of the request that drafted most, rounded up."""
    longest = 0
    for level in one.levels:
        for record in one.requests(level):
            each = steps_of(record)
            if each:
                longest = max(longest, *(drafted for drafted, _ in each))
            elif record.steps and record.drafted:
                longest = max(longest, math.ceil(record.drafted / record.steps))
    return longest or None


def _names(drafting: Sequence[tuple[Run, ArmInfo]]) -> list[str]:
    """The arms' names; with the Run's directory, or its path, where two have the same."""
    plain = [info.name for _, info in drafting]
    with_folder = [f"{info.name} ({run.folder.resolve().name})" for run, info in drafting]
    with_path = [f"{info.name} ({run.folder})" for run, info in drafting]
    chosen = []
    for one, folder, path in zip(plain, with_folder, with_path, strict=True):
        chosen.append(one if plain.count(one) == 1 else folder if with_folder.count(folder) == 1 else path)
    return chosen
