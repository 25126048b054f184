"""The picture of a comparison: tokens a pass of each contender, and what each position of its drafts keeps."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from toolkit.analysis.compare.comparison import Comparison, LevelComparison
from toolkit.analysis.compare.interval import Estimate
from toolkit.analysis.escape import one_line
from toolkit.analysis.plots.style import (
    COLOURS,
    GREY,
    GRID,
    INK,
    LINE,
    LINES,
    WIDTH,
    draw_heading,
    draw_legend,
    drawing,
    heading_lines,
    literal,
    plain_axes,
    save,
    sheet,
    short,
)

MARKERS = ("o", "s", "^", "D", "v", "P")
REMARK = 11  # bold characters an inch: hashes are wide
ABREAST = 5.0  # inches from which the two panels stand side by side
KINDS = (("tokens_per_pass", "tokens per pass", 0.16), ("acceptance_length", "acceptance length", -0.16))
MOST_LABELLED = 10  # positions
FOOTNOTE = (
    "Bars: 95 % intervals over prompts. Filled: tokens per pass, passes without a draft counted. Hollow: acceptance "
    "length, of the steps that drafted."
)


def plot_comparison(found: Comparison, path: Path) -> None:
    """Write the figure of all levels to `path`, a .png or a .svg. Raises InputError: another suffix, a full disk."""
    save(comparison_figure(found.levels, "Acceptance on the same prompts", "; ".join(found.labels)), path)


@drawing()
def comparison_figure(
    levels: Sequence[LevelComparison], title: str, remark: str = "", width: float = WIDTH, notes: bool = True
) -> Figure:
    """Two panels a level, `width` in inches; `remark` says what was allowed to differ, `notes` how to read it."""
    said = textwrap.wrap(FOOTNOTE, int(18.5 * width)) if notes else []
    names = [row.name for row in levels[0].rows]
    heading = [*heading_lines(title, "", width), *textwrap.wrap(one_line(remark), int(REMARK * width))]
    abreast = width >= ABREAST
    rows_tall = 0.42 * len(names) + 0.1
    tall = (max(rows_tall, 1.5),) if abreast else (rows_tall, 1.5)
    gap, top_of_panel = 0.5, 0.3
    above = 0.2 + LINE * (len(heading) + len(names))
    block = sum(tall) + (gap + top_of_panel) * len(tall)
    below = 0.08 + 0.125 * len(said)
    height = above + block * len(levels) + below
    figure = sheet(width, height)
    draw_heading(figure, heading)
    entries = [(Line2D([], [], **_style(number)), short(name)) for number, name in enumerate(names)]
    draw_legend(figure, entries, 0.1 + LINE * len(heading))
    left = 0.3
    panel = (width - 0.12) / 2 if abreast else width
    for number, level in enumerate(levels):
        y = above + number * block + top_of_panel
        first = figure.add_axes(
            (left / width, 1 - (y + tall[0]) / height, (panel - left - 0.2) / width, tall[0] / height)
        )
        x, y = (panel + 0.38, y) if abreast else (0.5, y + tall[0] + gap + top_of_panel)
        wide = width - x - 0.12
        second = figure.add_axes((x / width, 1 - (y + tall[-1]) / height, wide / width, tall[-1] / height))
        where = f", concurrency {level.concurrency}" if len(levels) > 1 else ""
        _lengths(first, level, where)
        _by_position(second, level, where)
    literal(figure.text(0.12 / width, 0.07 / height, "", va="bottom", size=6.5, color=GREY, linespacing=1.25), *said)
    return figure


def _style(number: int) -> dict[str, Any]:
    colour = COLOURS[number % len(COLOURS)]
    return {"color": colour, "linestyle": LINES[number % len(LINES)], "linewidth": 1.4, "markersize": 5,
            "marker": MARKERS[number % len(MARKERS)], "markerfacecolor": colour}  # fmt: skip


def _lengths(axes: Axes, level: LevelComparison, where: str) -> None:
    """One line per contender, the first on top: a filled marker above a hollow one, each with its bar."""
    axes.set_title(f"tokens a pass{where}", loc="left", size=7.5, color=INK, pad=5)
    plain_axes(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    count, ends = len(level.rows), [1.0]
    axes.set_ylim(-0.6, count - 0.4)
    axes.yaxis.set_major_locator(NullLocator())
    for number, row in enumerate(level.rows):
        for kind, _, beside in KINDS:
            estimate = row.estimates.get(kind)
            if estimate is None:
                continue
            style = _style(number)
            face = style["color"] if kind == "tokens_per_pass" else "white"
            y = count - 1 - number + beside
            ends += [estimate.value, *_bar(estimate)]
            if _bar(estimate):
                axes.plot(_bar(estimate), [y, y], color=style["color"], linewidth=1.2, zorder=2)
            axes.plot([estimate.value], [y], color=style["color"], marker=style["marker"], markersize=5,
                      markerfacecolor=face, zorder=3)  # fmt: skip
            axes.annotate(f"{estimate.value:.2f}", (max([estimate.value, *_bar(estimate)]), y), (4, 0), va="center",
                          textcoords="offset points", size=7, color=style["color"], annotation_clip=False)  # fmt: skip
        if not any(kind in row.estimates for kind, _, _ in KINDS):
            axes.text(0.5, (count - 1 - number + 0.6) / (count + 0.2), "unavailable", transform=axes.transAxes,
                      ha="center", va="center", size=7.5, color=_style(number)["color"])  # fmt: skip
    span = max(ends) - min(ends) or 1.0
    axes.set_xlim(min(ends) - 0.06 * span, max(ends) + 0.2 * span)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _by_position(axes: Axes, level: LevelComparison, where: str) -> None:
    axes.set_title(f"kept, of all drafts{where}", loc="left", size=7.5, color=INK, pad=5)
    plain_axes(axes)
    last = max((len(row.positions) for row in level.rows), default=0)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlim(0.5, max(last, 1) + 0.5)
    axes.xaxis.set_major_locator(FixedLocator(range(1, last + 1, 1 + max(last - 1, 0) // MOST_LABELLED)))
    axes.set_xlabel("position in the draft", size=7.5, color=INK, labelpad=2)
    if not last:
        axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, ha="center", va="center", size=8, color=GREY)
    drawn = [number for number, row in enumerate(level.rows) if row.positions]
    for place, number in enumerate(drawn):
        shift = 0.09 * (place - (len(drawn) - 1) / 2)
        points = [
            (one.position + shift, one.unconditional) for one in level.rows[number].positions if one.unconditional
        ]
        style = _style(number)
        axes.plot([x for x, _ in points], [point.value for _, point in points], clip_on=False, zorder=3, **style)
        for x, point in points:
            low_high = [min(max(end, 0.0), 1.0) for end in _bar(point)]
            if low_high:
                axes.plot([x, x], low_high, color=style["color"], linewidth=1.0, zorder=2)


def _bar(estimate: Estimate) -> list[float]:
    return [] if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
