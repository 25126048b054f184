"""The picture of why: the speedup and the factors whose product it is, over concurrency, each above 1 when it helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from toolkit.analysis.factors import LevelFactors
from toolkit.analysis.plots.style import (
    COLOURS,
    GREY,
    INK,
    LINE,
    LINES,
    WIDTH,
    concurrency_axis,
    draw_heading,
    draw_legend,
    drawing,
    heading_lines,
    plain_axes,
    ratio_axis,
    sheet,
)

END_GAP = 0.125  # inches between two numbers at the ends of the lines


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    points: list[tuple[int, float]]
    colour: str
    line: Any
    marker: str
    width: float


@drawing()
def factors_figure(levels: Sequence[LevelFactors], title: str, remark: str = "", width: float = WIDTH) -> Figure:
    """The ratios of one arm, arm over baseline; seconds per iteration turned round, so that up is faster in each line.

    A factor that is unavailable at a level has no point there; with none at all it has no line.
    """
    lines = [line for line in _lines(levels) if line.points]
    heading = heading_lines(title, remark, width)
    above, below = 0.12 + LINE * (len(heading) + len(lines)), 0.5
    height = above + below + (2.1 if lines else 0.3)
    figure = sheet(width, height)
    draw_heading(figure, heading)
    if not lines:
        figure.text(0.5, 0.4, "no factor available", ha="center", va="center", size=10, color=GREY)
        return figure
    axes = figure.add_axes((0.68 / width, below / height, 1 - 1.12 / width, 1 - (above + below) / height))
    values = [1.0, *(y for line in lines for _, y in line.points)]
    ratio_axis(axes, min(values) / 1.12, max(values) * 1.12)
    concurrency_axis(axes, sorted({x for line in lines for x, _ in line.points}))
    plain_axes(axes)
    axes.set_ylabel("arm over baseline", size=7.5, color=INK, labelpad=3)
    entries = []
    for line in lines:
        style: dict[str, Any] = {
            "color": line.colour, "linestyle": line.line, "linewidth": line.width, "marker": line.marker,
            "markersize": 4.5, "markerfacecolor": "white" if line.marker in "sD" else line.colour,
        }  # fmt: skip
        axes.plot([x for x, _ in line.points], [y for _, y in line.points], zorder=3, **style)
        entries.append((Line2D([], [], **style), line.label))
    draw_legend(figure, entries, 0.1 + LINE * len(heading))
    _ends(axes, lines)
    return figure


def _lines(levels: Sequence[LevelFactors]) -> list[_Line]:
    def points(value: Callable[[LevelFactors], float | None]) -> list[tuple[int, float]]:
        return [(one.concurrency, ratio) for one in levels if (ratio := value(one))]

    def faster(one: LevelFactors) -> float | None:
        return 1 / one.seconds_per_iteration if one.seconds_per_iteration else None

    found = [
        _Line("speedup: the product of the lines below", points(lambda one: one.speedup), INK, "-", "o", 2.2),
        _Line("tokens per pass", points(lambda one: one.tokens_per_pass), COLOURS[0], LINES[1], "^", 1.3),
    ]
    by_iteration = points(faster)
    if by_iteration:
        ran = points(lambda one: one.passes_per_iteration)
        return [
            *found,
            _Line("passes per iteration", ran, COLOURS[1], LINES[2], "s", 1.3),
            _Line("iterations per second", by_iteration, COLOURS[2], LINES[3], "D", 1.3),
        ]
    return [
        *found,
        _Line("passes per second", points(lambda one: one.passes_per_second), COLOURS[1], LINES[2], "s", 1.3),
    ]


def _ends(axes: Axes, lines: Sequence[_Line]) -> None:
    """The last value of every line, right of the axes, in their order and at least END_GAP apart."""
    figure = axes.figure
    pixels = END_GAP * figure.dpi
    ends = sorted(((axes.transData.transform(line.points[-1])[1], line) for line in lines), key=lambda end: end[0])
    heights: list[float] = []
    for wanted, _ in ends:
        heights.append(max(wanted, heights[-1] + pixels) if heights else wanted)
    too_high = heights[-1] - max(wanted for wanted, _ in ends)
    for height, (wanted, line) in zip(heights, ends, strict=True):
        axes.annotate(
            f"{line.points[-1][1]:.2f}x",
            (1, line.points[-1][1]), (4, (height - too_high / 2 - wanted) * 72 / figure.dpi),
            xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center", size=7, color=line.colour,
            annotation_clip=False,
        )  # fmt: skip
