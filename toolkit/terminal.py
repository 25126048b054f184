"""What a person sees in the terminal: tables on stdout, progress on stderr. Outside text is never read as markup."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from toolkit.analysis.crossover import Crossover, Level
from toolkit.analysis.escape import one_line
from toolkit.analysis.levels import LevelStats
from toolkit.analysis.run import Run

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
NONE = "n/a"
DOES_NOTHING = 1.1  # acceptance length
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


def crossover_table(result: Crossover, stats: Sequence[LevelStats]) -> list[Table]:
    """One table per arm: rates, speedup with interval, verdict, tokens per pass, acceptance."""
    by_key = {(s.arm, s.side, s.concurrency): s for s in stats}
    tables = []
    for one in result.results:
        against = f" against {result.baseline}" if result.baseline else ""
        title = escape(one_line(f"{one.arm}{against}, {one.workload}"))
        table = Table(
            title=title,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
            pad_edge=False,
            collapse_padding=True,
        )
        for heading, justify in _COLUMNS.items():
            table.add_column(heading, justify=justify)
        for level in one.levels:
            arm = by_key.get((one.arm, "arm", level.concurrency))
            base = by_key.get((one.arm, "baseline", level.concurrency))
            table.add_row(
                str(level.concurrency),
                _number(arm.tokens_per_second if arm else None, 1),
                _number(base.tokens_per_second if base else None, 1),
                speedup_text(level),
                level.verdict if result.baseline else NONE,
                _number(level.tokens_per_pass, 2),
                f"{level.draft_acceptance_rate:.1%}" if level.draft_acceptance_rate is not None else NONE,
                str(level.pairs),
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
    """The answer in words, and what a reader must know before believing it."""
    said = []
    for one in result.results:
        lengths = [level.acceptance_length for level in one.levels if level.acceptance_length is not None]
        if lengths and max(lengths) < DOES_NOTHING:
            said.append(
                f"{one.arm}: this draft does nothing here, its acceptance length is {max(lengths):.2f} at best."
            )
        if result.baseline is None:
            said.append(f"{one.arm}: speedup is unavailable, no baseline was measured (--baseline or --baseline-url).")
        elif one.levels:
            said.append(f"{one.arm} {_bracket(one.pays_up_to, one.costs_from)}.")
        for level in one.levels:
            remarks = [*([level.reason] if level.withheld and result.baseline else []), *level.notes]
            said += [f"  at {level.concurrency}: {remark}." for remark in remarks]
    said += sorted({note for s in stats if s.side == "arm" if (note := _acceptance_note(run, s))})
    for s in stats:
        if s.failed:
            said.append(f"{s.arm} ({s.side}) at {s.concurrency}: {s.failed} of {s.requests} requests failed.")
    return said


def _bracket(pays_up_to: int | None, costs_from: int | None) -> str:
    if pays_up_to is None and costs_from is None:
        return "is inconclusive at every concurrency measured"
    if pays_up_to is None:
        return f"costs from concurrency {costs_from} on and was not seen to pay"
    if costs_from is None:
        return f"pays up to concurrency {pays_up_to} and was not seen to cost"
    if costs_from < pays_up_to:
        return f"is not monotone: it costs at concurrency {costs_from} and pays at {pays_up_to}"
    return f"pays up to concurrency {pays_up_to} and costs from {costs_from}; the crossover lies between"


def _acceptance_note(run: Run, stats: LevelStats) -> str | None:
    info = next((arm for arm in run.info.arms if arm.name == stats.arm), None)
    if info is None or info.speculates is False:
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


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
