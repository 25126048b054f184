"""The picture of sets of kept layers: what they agree over what a draft step costs, and the speedup that predicts."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, PercentFormatter

from toolkit.analysis.escape import one_line
from toolkit.analysis.layers.curve import LayerSearch
from toolkit.analysis.plots.style import (
    COLOURS,
    INK,
    LINE,
    LINES,
    WIDTH,
    draw_heading,
    draw_legend,
    drawing,
    heading_lines,
    plain_axes,
    ratio_axis,
    sheet,
)

PANEL, GAP, BELOW = 1.55, 0.3, 0.5  # inches
MOST_LABELLED = 7


@drawing()
def layers_figure(found: LayerSearch, width: float = WIDTH) -> Figure:
    """Agreement above, speedup of the best K below, over c, on texts held out; the best set is marked."""
    heading = heading_lines(f"{one_line(found.target)}: drafts of its own layers", f"{found.sentence}.", width)
    lines: list[tuple[str, dict[str, Any]]] = [
        ("agreement, texts held out", _style(0, "o", COLOURS[0])),
        ("agreement, texts searched with", _style(1, "s", "white")),
        ("predicted speedup with the best K, texts held out; 95 %", _style(2, "D", COLOURS[2])),
    ]
    above = 0.22 + LINE * (len(heading) + len(lines))
    height = above + 2 * PANEL + GAP + BELOW
    figure = sheet(width, height)
    draw_heading(figure, heading)
    left, wide = 0.68 / width, 1 - 0.8 / width
    upper = figure.add_axes((left, (BELOW + PANEL + GAP) / height, wide, PANEL / height))
    lower = figure.add_axes((left, BELOW / height, wide, PANEL / height))
    c = [one.c for one in found.points]
    held_out = [one.held_out.agreement.value for one in found.points]
    upper.plot(c, held_out, zorder=3, **lines[0][1])
    upper.plot(c, [one.searched.agreement.value for one in found.points], zorder=2, **lines[1][1])
    upper.set_ylim(-0.03, 1.03)
    upper.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    upper.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for one, y in list(zip(found.points, held_out, strict=True))[:: -(-len(c) // MOST_LABELLED)]:
        upper.annotate(str(len(one.layers)), (one.c, y), (0, 9), textcoords="offset points", ha="center", va="center",
                       size=7, color=COLOURS[0])  # fmt: skip
    _speedups(lower, found, lines[2][1])
    lower.set_xlabel("c: a draft step over a target step (numbers: layers kept)", size=7.5, color=INK, labelpad=3)
    for axes in (upper, lower):
        axes.set_xlim(0, 1)
        plain_axes(axes)
    upper.tick_params(labelbottom=False)
    draw_legend(figure, [(Line2D([], [], **style), label) for label, style in lines], 0.1 + LINE * len(heading))
    return figure


def _style(number: int, marker: str, face: str) -> dict[str, Any]:
    return {"color": COLOURS[number], "linestyle": LINES[number], "linewidth": 1.4, "marker": marker, "markersize": 4,
            "markerfacecolor": face}  # fmt: skip


def _speedups(axes: Axes, found: LayerSearch, style: dict[str, Any]) -> None:
    speedups = [(one.c, one.speedup) for one in found.points]
    ends = [end for _, one in speedups for end in (one.value, one.low, one.high) if end is not None and end > 0]
    ratio_axis(axes, min([0.9, *ends]) * 0.95, max([1.1, *ends]) * 1.08)
    for c, one in speedups:
        if one.low is not None and one.high is not None:
            axes.plot([c, c], [max(one.low, 1e-3), one.high], color=style["color"], linewidth=0.8, zorder=2)
    axes.plot([c for c, _ in speedups], [one.value for _, one in speedups], zorder=3, **style)
    best = found.best
    axes.plot([best.c], [best.speedup.value], marker="o", markersize=10, markerfacecolor="none",
              markeredgecolor=INK, zorder=4)  # fmt: skip
    axes.annotate(f"{len(best.layers)} layers, K = {best.k}", (best.c, best.speedup.value), (0, -14),
                  textcoords="offset points", ha="right" if best.c > 0.5 else "left", va="center", size=7,
                  color=INK)  # fmt: skip
