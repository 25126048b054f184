"""What a person sees in the terminal: tables on stdout, progress on stderr. Outside text is never read as markup."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from toolkit.analysis.crossover import ArmResult, Crossover, Level
from toolkit.analysis.escape import one_line
from toolkit.analysis.factors import LevelFactors
from toolkit.analysis.levels import LevelStats, cross_check
from toolkit.analysis.run import Run

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
NONE = "n/a"
NOT_REACHED = "* the server was never seen to run that many requests at once"
_COLUMNS: dict[str, JustifyMethod] = {
    "n": "right",
    "tok/s": "right",
    "base": "right",
    "speedup, 95 %": "left",
    "verdict": "left",
    "tok/pass": "right",
    "accept": "right",
    "pairs": "right",
}


def say(text: str, console: Console = out) -> None:
    """Print plain lines; text from outside among them cannot move the cursor or pose as markup."""
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))]
        console.print(indent + one_line(line), markup=False, soft_wrap=True)


class SweepProgress(AbstractContextManager["SweepProgress"]):
    """Cells done and the time left on stderr: a live bar in a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=err,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._last = ""

    def __enter__(self) -> "SweepProgress":
        if err.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        """Say what is waited for."""
        text = one_line(text)
        shown = text if len(text) <= 70 else f"{text[:69]}…"
        self._bar.update(self._task, description=escape(shown))
        head = text.partition(" boots: ")[0]  # the stages of a boot would be a line each where there is no terminal
        if not err.is_terminal and head != self._last:
            self._last = head
            say(f"{head} boots" if " boots: " in text else text, err)

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None:
        """Say how far it is."""
        left = f"{_clock(seconds_left)} left" if seconds_left is not None else ""
        self._bar.update(self._task, completed=done, total=total, left=left)
        if not err.is_terminal:
            of = f" of {total}" if total else ""
            say(f"  {done}{of} cells done{', ' + left if left else ''}", err)


def answer(run: Run, result: Crossover, stats: Sequence[LevelStats]) -> Iterator[Table | str]:
    """All that `toolkit crossover` prints, in this order: what casts doubt on the numbers comes before any of them."""
    for caveat in result.caveats:
        yield f"{caveat}."
    yield from crossover_table(result, stats)
    yield from sentences(run, result, stats)
    yield from cross_check(run)
    for one in result.results:
        yield from why(one, result.baseline)
        if tables := acceptance_tables(one):
            yield ""
            yield from tables


def show(parts: Iterable[Table | str]) -> None:
    """Print tables and lines on stdout."""
    for part in parts:
        if isinstance(part, str):
            indent = part[: len(part) - len(part.lstrip(" "))]
            say(indent + one_line(part))  # one line each: a name with a line break must not make two
        else:
            out.print(part)


def crossover_table(result: Crossover, stats: Sequence[LevelStats]) -> list[Table]:
    """One table per arm: rates, speedup with interval, verdict, tokens per pass, acceptance."""
    by_key = {(s.arm, s.side, s.concurrency): s for s in stats}
    tables = []
    for one in result.results:
        against = f" against {result.baseline}" if result.baseline else ""
        table = _table(f"{one.label}{against}, {one.workload}", _COLUMNS)
        for level in one.levels:
            arm = by_key.get((one.arm, "arm", level.concurrency))
            base = by_key.get((one.arm, "baseline", level.concurrency))
            table.add_row(
                f"{level.concurrency}{'*' if level.reached is False else ''}",
                _number(arm.tokens_per_second if arm else None, 1),
                _number(base.tokens_per_second if base else None, 1),
                speedup_text(level),
                level.verdict if result.baseline and not one.load_only else NONE,
                _number(level.tokens_per_pass, 2),
                _share(level.draft_acceptance_rate),
                str(level.pairs),
            )
        table.caption = NOT_REACHED if any(level.reached is False for level in one.levels) else None
        tables.append(table)
    return tables


def why(result: ArmResult, baseline: str | None) -> Iterator[Table | str]:
    """The factors of an arm's speedup and what they imply; nothing where no pair was measured."""
    found = [level.factors for level in result.levels if level.factors is not None]
    if not found:
        return
    yield ""
    yield _factors_table(f"why, {result.label} over {baseline}", found)
    yield from (f"  {one.sentence}." for one in found if one.sentence)
    yield from _grouped((one.concurrency, one.reason) for one in found if one.reason)


def _factors_table(title: str, levels: Sequence[LevelFactors]) -> Table:
    by_iteration = any(one.seconds_per_iteration for one in levels)
    names = ["passes/iter", "s/iter"] if by_iteration else ["passes/s"]
    heads = ["n", "speedup", "tok/pass", *names, *(["ms/iter", "base"] if by_iteration else [])]
    table = _table(title, dict.fromkeys(heads, "right"))
    table.caption = f"speedup = tok/pass x {' / '.join(names)}"
    for one in levels:
        ratios = [one.passes_per_iteration, one.seconds_per_iteration] if by_iteration else [one.passes_per_second]
        seconds = [one.arm.seconds_per_iteration, one.baseline.seconds_per_iteration] if by_iteration else []
        table.add_row(
            str(one.concurrency),
            *(_ratio(value) for value in (one.speedup, one.tokens_per_pass, *ratios)),
            *(_number(None if value is None else 1000 * value, 1) for value in seconds),
        )
    return table


def acceptance_tables(result: ArmResult) -> list[Table]:
    """Where the draft tokens were kept: by position, by prompt category, by length of the prompt; what is known."""
    found, tables = result.acceptance, []
    if found.by_position:
        heads = ("position", "given those before", "unconditional", "drafts")
        table = _table(f"acceptance by position, {result.label}", dict.fromkeys(heads, "right"))
        for one in found.by_position:
            table.add_row(str(one.position), _share(one.given), _share(one.unconditional), str(one.drafts))
        tables.append(table)
    for what, groups in (("category", found.by_category), ("prompt length", found.by_context)):
        if groups:
            columns = (what, "requests", "accept", "length", "tok/pass")
            table = _table(f"acceptance by {what}, {result.label}", dict.fromkeys(columns, "right"))
            for group in groups:
                table.add_row(
                    escape(one_line(group.name)),
                    str(group.requests),
                    _share(group.draft_acceptance_rate),
                    _number(group.acceptance_length, 2),
                    _number(group.tokens_per_pass, 2),
                )
            tables.append(table)
    return tables


def speedup_text(level: Level) -> str:
    """`1.53x [1.41, 1.66]`, as far as it is known."""
    if level.speedup is None:
        return NONE
    interval = f" [{level.low:.2f}, {level.high:.2f}]" if level.low is not None and level.high is not None else ""
    return f"{level.speedup:.2f}x{interval}"


def sentences(run: Run, result: Crossover, stats: Sequence[LevelStats]) -> list[str]:
    """The answer in words, and what a reader must know before believing it. What the caveats said is not repeated."""
    said = []
    for one in result.results:
        wanted = one.levels and result.baseline is None and not one.load_only
        how = " (--baseline or --baseline-url)" if wanted else ""
        said.append(f"{one.answer(result.baseline)}{how}.")
        remarks = [
            (level.concurrency, remark)
            for level in one.levels
            for remark in (level.reason if level.withheld and result.baseline else "", level.advice, *level.notes)
        ]
        said += _grouped((level, remark) for level, remark in remarks if remark and remark not in result.caveats)
    said += sorted({note for s in stats if s.side == "arm" if (note := _acceptance_note(run, s))})
    for s in stats:
        if s.failed:
            why = _most_common_error(run, s)
            said.append(f"{s.arm} ({s.side}) at {s.concurrency}: {s.failed} of {s.requests} requests failed{why}.")
    return said


def _most_common_error(run: Run, s: LevelStats) -> str:
    """`, 3 of them with: HTTP 429: slow down`, the error that came most often; empty where none is kept."""
    key = (s.arm, s.side, s.concurrency)
    errors = Counter(
        record.error for record in run.requests() if (record.cell.arm, record.cell.side, record.cell.concurrency) == key
    )
    found = next(((error, count) for error, count in errors.most_common() if error), None)
    return f", {found[1]} of them with: {one_line(found[0].rstrip('.'))}" if found else ""


def _grouped(remarks: Iterable[tuple[int, str]]) -> list[str]:
    """`  at 1, 4: the remark.`, once for all levels that share it."""
    levels: dict[str, list[str]] = {}
    for level, remark in remarks:
        levels.setdefault(remark, []).append(str(level))
    return [f"  at {', '.join(at)}: {remark}." for remark, at in levels.items()]


def _acceptance_note(run: Run, stats: LevelStats) -> str | None:
    info = next((arm for arm in run.info.arms if arm.name == stats.arm), None)
    if info is None or info.speculates is False or run.info.workload.random:
        return None
    if stats.per_request and stats.tokens_per_pass is None:
        return (
            f"{stats.arm} at {stats.concurrency}: only wide bounds of tokens per pass are known, since the server "
            "merged chunks of its streams."
        )
    if stats.per_request:
        return None
    if stats.drafted is not None:
        return (
            f"{stats.arm}: acceptance is an aggregate of the server's counters, warm-up included; started with "
            "--per-request-spec-decode-metrics detailed it tells it per request, and tokens per pass."
        )
    return (
        f"{stats.arm}: acceptance and tokens per pass are unavailable, the server reports neither per request nor on "
        "/metrics (vLLM: --per-request-spec-decode-metrics detailed)."
    )


def _table(title: str, columns: Mapping[str, JustifyMethod]) -> Table:
    table = Table(
        title=escape(one_line(title)),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    for heading, justify in columns.items():
        table.add_column(heading, justify=justify)
    return table


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
