"""The picture of latency: per concurrency the spread of each side, TTFT, TPOT and ITL in a panel of their own."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from toolkit.analysis.latency import Latency, LevelLatency, Spread
from toolkit.analysis.plots.style import (
    COLOURS,
    GREY,
    INK,
    LINE,
    WIDTH,
    draw_heading,
    draw_legend,
    drawing,
    heading_lines,
    plain_axes,
    sheet,
)

PANELS = (
    ("ttft", "TTFT, ms: first token"),
    ("tpot", "TPOT, ms: each token after"),
    ("itl", "ITL, ms: gap between chunks"),
)
ABREAST = 5.0  # inches from which the panels stand side by side
SIDES = ((COLOURS[0], "o", COLOURS[0], -0.16), (INK, "s", "white", 0.16))  # arm and baseline, left and right


@drawing()
def latency_figure(
    levels: Sequence[LevelLatency], title: str, remark: str = "", width: float = WIDTH, baseline: bool = True
) -> Figure:
    """Median (marker), middle half (thick) and 5th to 95th percentile (thin), in milliseconds on a logarithmic axis."""
    heading = heading_lines(title, remark, width)
    names = ["with speculation", "baseline"] if baseline else ["with speculation"]
    above = 0.34 + LINE * (len(heading) + len(names))
    columns = len(PANELS) if width >= ABREAST else 1
    rows, tall, gap = len(PANELS) // columns, 1.7, 0.62
    height = above + rows * (tall + gap) - 0.18
    figure = sheet(width, height)
    draw_heading(figure, heading)
    entries = [
        (Line2D([], [], color=colour, linewidth=2.6, marker=marker, markersize=5, markerfacecolor=face), name)
        for name, (colour, marker, face, _) in zip(names, SIDES, strict=False)
    ]
    draw_legend(figure, entries, 0.1 + LINE * len(heading))
    wide = (width - 0.12) / columns
    for number, (which, name) in enumerate(PANELS):
        left, top = (number % columns) * wide, above + (number // columns) * (tall + gap)
        box = ((left + 0.5) / width, 1 - (top + tall) / height, (wide - 0.56) / width, tall / height)
        _panel(figure.add_axes(box), levels, which, name)
    return figure


def _panel(axes: Axes, levels: Sequence[LevelLatency], which: str, name: str) -> None:
    axes.set_title(name, loc="left", size=7.5, color=INK, pad=5)
    plain_axes(axes)
    axes.set_xlim(-0.6, len(levels) - 0.4)
    axes.xaxis.set_major_locator(FixedLocator(range(len(levels))))
    axes.set_xticklabels([str(level.concurrency) for level in levels])
    axes.set_xlabel("concurrency", size=7.5, color=INK, labelpad=2)
    ends = []
    for place, level in enumerate(levels):
        for side, (colour, marker, face, beside) in zip((level.arm, level.baseline), SIDES, strict=True):
            known = _spread(side, which)
            if known is not None:
                _one(axes, place + beside, known, colour, marker, face)
                ends += [known.p5, known.p95]
    if not ends:
        axes.yaxis.set_major_locator(NullLocator())
        axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, ha="center", va="center", size=8, color=GREY)
        return
    low, high = max(min(ends), 1e-3), max(max(ends), 2e-3)
    axes.set_yscale("log")
    axes.set_ylim(low / 1.25, high * 1.25)
    steps = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _one(axes: Axes, x: float, known: Spread, colour: str, marker: str, face: str) -> None:
    axes.plot([x, x], [known.p5, known.p95], color=colour, linewidth=0.9, solid_capstyle="butt", zorder=2)
    axes.plot([x, x], [known.p25, known.p75], color=colour, linewidth=3.2, solid_capstyle="butt", zorder=3)
    axes.plot([x], [known.p50], color=colour, marker=marker, markersize=4.6, markerfacecolor=face, zorder=4)


def _spread(side: Latency, which: str) -> Spread | None:
    found: Spread | None = getattr(side, which)
    return found
