"""The part of a report that sets the contenders of several Runs beside each other."""

from collections.abc import Collection, Sequence
from functools import partial

from toolkit.analysis.compare.comparison import Comparison, LevelComparison, Row, compare
from toolkit.analysis.compare.interval import Estimate
from toolkit.analysis.compare.output import INTERVAL, UNPAIRED, after, before, formulas, headline
from toolkit.analysis.plots.comparison import comparison_figure
from toolkit.analysis.report.page import NONE, Part, Section, Table, number, percent, picture
from toolkit.analysis.run import Run
from toolkit.errors import InputError

CONTENDERS = ("contender", "tokens per pass", "acceptance length", "accepted", "K", "method", "engine")
DIFFERENCES = ("the first less the second", "in", "the first has", "difference, 95 %", "prompts")
IN = {"acceptance_length": "length", "tokens_per_pass": "tok/pass", "draft_acceptance_rate": "accepted"}
POSITIONS = ("contender", "position", "of all drafts", "given those before")


def comparison(runs: Sequence[Run], allow: Collection[str]) -> Part | None:
    """One section for each common concurrency; None for Runs that are not alike, unless something is in `allow`.

    Raises InputError, saying what differs, where a comparison was asked for by `allow` and is refused.
    """
    try:
        found = compare(runs, allow=allow)
    except InputError:
        if allow:
            raise
        return None
    engines = dict.fromkeys(f"{one.info.engine} {one.info.engine_version or ''}".strip() for one in found.contenders)
    sections = [_level(found, level) for level in found.levels]
    how = UNPAIRED if any(not level.paired for level in found.levels) else INTERVAL
    sections.append(Section("How these numbers are defined", remarks=[*(f"{text}." for text in formulas()), f"{how}."]))
    return Part("Acceptance, compared", f"{', '.join(engines)}.", [f"{text}." for text in before(found)], sections)


def _level(found: Comparison, level: LevelComparison) -> Section:
    label = f" ({', '.join(found.allowed)} allowed to differ)" if found.labels else ""
    told = "; ".join(headline(level)) or "contenders side by side"
    points = "; ".join(
        f"{row.name}: tokens per pass {_cell(row.estimates.get('tokens_per_pass'))}" for row in level.rows
    )
    return Section(
        heading=f"At concurrency {level.concurrency}: {told}{label}",
        picture=picture(
            partial(comparison_figure, [level], "", label.strip(" ()"), notes=False),
            f"comparison-{level.concurrency}",
            f"Tokens a pass and acceptance by position of each contender. {points}.",
            "Filled: tokens per pass, passes without a draft counted. Hollow: acceptance length, of the steps that "
            "drafted. Bars: 95 % intervals over prompts.",
        ),
        tables=[
            Table(f"{_prompts(level)}{label}", CONTENDERS, [_row(found, row) for row in level.rows],
                  frozenset({0, 5, 6})),
            Table(f"{'Paired differences' if level.paired else 'Differences, not paired'}{label}", DIFFERENCES,
                  _differences(level), frozenset({0, 1, 2})),
            Table("Kept at each position", POSITIONS, [line for row in level.rows for line in _positions(row)],
                  frozenset({0})),
        ],
        remarks=list(after(found, level)),
    )  # fmt: skip


def _prompts(level: LevelComparison) -> str:
    return f"{level.prompts} prompts in common" if level.paired else "Prompts that differ"


def _row(found: Comparison, row: Row) -> tuple[str, ...]:
    info = next(one.info for one in found.contenders if one.name == row.name)
    k = found.depths[row.name].k
    return (
        row.name,
        _cell(row.estimates.get("tokens_per_pass")),
        _cell(row.estimates.get("acceptance_length")),
        _percent(row.estimates.get("draft_acceptance_rate")),
        NONE if k is None else str(k),
        info.method or NONE,
        f"{info.engine} {info.engine_version or ''}".strip(),
    )


def _differences(level: LevelComparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in level.differences:
        if one.position is None:
            found = one.estimate
            rows.append((
                f"{one.one} − {one.other}", IN[one.quantity], one.word, _signed(found),
                str(found.prompts) if found else NONE,
            ))  # fmt: skip
    return rows


def _signed(found: Estimate | None) -> str:
    if found is None or found.high is None:
        return NONE if found is None else f"{found.value:+.3f}"
    return f"{found.value:+.3f} ± {found.high - found.value:.3f}"


def _positions(row: Row) -> list[tuple[str, ...]]:
    return [
        (row.name, str(one.position), _percent(one.unconditional), _percent(one.given)) for one in row.positions
    ]  # fmt: skip


def _percent(found: Estimate | None) -> str:
    return percent(found.value if found else None)


def _cell(found: Estimate | None) -> str:
    if found is None or found.low is None or found.high is None:
        return number(found.value if found else None)
    return f"{found.value:.2f} ({found.low:.2f}–{found.high:.2f})"
