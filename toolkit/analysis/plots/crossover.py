"""The picture of a crossover: speedup against concurrency, every point with its interval, ratio and verdict in words.

A verdict has a marker of its own shape, an arm a line style of its own.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from toolkit.analysis.crossover import Crossover, Verdict
from toolkit.analysis.escape import one_line
from toolkit.analysis.plots.style import (
    COLOURS,
    DPI,
    GREY,
    INK,
    LINE,
    LINES,
    LONGEST_NAME,
    WIDTH,
    concurrency_axis,
    draw_heading,
    draw_legend,
    drawing,
    heading_lines,
    literal,
    plain_axes,
    ratio_axis,
    save,
    sheet,
    short,
)
from toolkit.analysis.run import RANDOM, SYNTHETIC

Floats = NDArray[np.float64]
MARKERS: dict[Verdict, str] = {"pays": "^", "costs": "v", "inconclusive": "o"}
LONGEST_FOOTNOTE = 6  # lines
GAPS = (7, 11, 16, 24, 34, 48, 66)  # pixels between a point and its label, tried in this order


@dataclass(frozen=True, slots=True)
class _Point:
    """A level with a speedup, `x` being its concurrency moved a little to keep the arms apart."""

    x: float
    y: float
    bar: tuple[float, float] | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Series:
    """An arm as drawn. `bracket` holds the places on the x axis between which its crossover lies."""

    label: str
    points: list[_Point]
    bracket: tuple[float, float] | None
    colour: str
    line: Any


def plot_crossover(result: Crossover, path: Path, title: str | None = None) -> None:
    """Write the figure to `path`, a .png (900 pixels wide, more with many levels) or a .svg.

    The same result gives the same bytes. `title` replaces the one that names baseline and workload. A level without a
    speedup is left out and named below. Raises InputError: another suffix, a disk that refuses.
    """
    save(crossover_figure(result, title), path)


@drawing()
def crossover_figure(result: Crossover, title: str | None = None, width: float = WIDTH) -> Figure:
    """The figure that `plot_crossover` writes, `width` in inches for up to six levels, more with more."""
    series = _series(result, LONGEST_NAME if width >= WIDTH else 20)
    levels = sorted({level.concurrency for arm in result.results for level in arm.levels if level.speedup is not None})
    width *= max(1.0, (1.5 + 0.75 * len(levels)) / WIDTH)
    remark = "; ".join(f"{short(arm.arm)}: {SYNTHETIC}" for arm in result.results if arm.synthetic)
    remark = RANDOM if any(arm.load_only for arm in result.results) else remark
    heading = heading_lines(_title(result) if title is None else title, remark, width)
    notes = _footnote(result, series, int(18.5 * width))
    above, below = 0.14 + LINE * len(heading) + LINE * len(series), 0.52 + 0.125 * len(notes)
    height = above + below + (2.05 + 0.55 * min(len(series), 4) if series else 0.6)
    figure = sheet(width, height)
    draw_heading(figure, heading)
    left = 0.12 / width
    literal(figure.text(left, 0.07 / height, "", va="bottom", size=6.5, color=GREY, linespacing=1.25), *notes)
    if not series:
        figure.text(0.5, 0.5, "no speedup available", ha="center", va="center", size=10, color=GREY)
        return figure
    axes = figure.add_axes((0.68 / width, below / height, 1 - 0.8 / width, 1 - (above + below) / height))
    _scales(axes, series, levels)
    for number, one in enumerate(series):
        _draw(axes, one, (0, 1) if len(series) == 1 else (0.03 * number, 0.03 * number + 0.024))
    entries = [(Line2D([], [], color=one.colour, linestyle=one.line, linewidth=1.4), one.label) for one in series]
    draw_legend(figure, entries, 0.1 + LINE * len(heading))
    _annotate(axes, FigureCanvasAgg(figure).get_renderer(), series)
    return figure


def _series(result: Crossover, longest: int) -> list[_Series]:
    drawn = [arm for arm in result.results if any(level.speedup is not None for level in arm.levels)]
    octaves = sorted({math.log2(level.concurrency) for arm in drawn for level in arm.levels})
    gaps = [high - low for low, high in pairwise(octaves)]
    step = min(0.03 * (octaves[-1] - octaves[0]), min(gaps) / (len(drawn) + 1)) if gaps else 0.06
    series = []
    for number, arm in enumerate(drawn):
        shift = 2.0 ** (step * (number - (len(drawn) - 1) / 2))
        pays, costs = arm.pays_up_to, arm.costs_from
        between = pays is not None and costs is not None and pays < costs
        points = [
            _Point(
                x=level.concurrency * shift,
                y=level.speedup,
                bar=(level.low, level.high) if level.low is not None and level.high is not None else None,
                verdict=level.verdict,
            )
            for level in sorted(arm.levels, key=lambda level: level.concurrency)
            if level.speedup is not None
        ]
        series.append(
            _Series(
                label=f"{short(arm.arm, longest)}: {arm.bracket}",
                points=points,
                bracket=(pays * shift, costs * shift) if between and pays and costs else None,
                colour=COLOURS[number % len(COLOURS)],
                line=LINES[number % len(LINES)],
            )
        )
    return series


def _title(result: Crossover) -> str:
    workloads = list(dict.fromkeys(short(arm.workload) for arm in result.results))
    over = f"over {short(result.baseline)}" if result.baseline else "(no baseline)"
    return f"Speedup {over}" + (f" on {', '.join(workloads)}" if workloads else "")


def _footnote(result: Crossover, series: Sequence[_Series], width: int) -> list[str]:
    """How to read the picture, and why a level is not in it or has no verdict, wrapped to `width` characters."""
    points = [point for one in series for point in one.points]
    notes = []
    if any(point.bar for point in points):
        notes.append("Bars: 95 % intervals; one that meets the edge goes on beyond it.")
    if any(one.bracket for one in series):
        notes.append("Shaded: where the crossover lies.")
    lines = textwrap.wrap(" ".join(notes), width)
    unsaid: dict[tuple[str, str, str], list[int]] = {}
    for arm in result.results:
        for level in arm.levels:
            bar_tells = level.low is not None and level.high is not None and level.low <= 1 <= level.high
            if level.speedup is None or (level.verdict == "inconclusive" and not bar_tells):
                what = "No speedup" if level.speedup is None else "No verdict"
                unsaid.setdefault((what, short(arm.arm), one_line(level.reason)), []).append(level.concurrency)
    for (what, name, reason), at in unsaid.items():
        lines += textwrap.wrap(f"{what}: {name} at {', '.join(map(str, at))} ({reason}).", width)
    return lines if len(lines) <= LONGEST_FOOTNOTE else [*lines[: LONGEST_FOOTNOTE - 1], "and further levels"]


def _scales(axes: Axes, series: Sequence[_Series], levels: Sequence[int]) -> None:
    heights = [1.0, *(point.y for one in series for point in one.points)]
    # The interval of two pairs can be huge: it may leave the picture, for the points must stay apart.
    least, most = min(heights) / 1.6, max(heights) * 1.6
    ends = [min(max(end, least), most) for one in series for point in one.points for end in point.bar or ()]
    low, high = min([*heights, *ends]), max([*heights, *ends])
    room = max(0.2 * math.log(high / low), 0.07)
    ratio_axis(axes, low * math.exp(-room * (1 if len(series) == 1 else 1.3)), high * math.exp(room))
    concurrency_axis(axes, levels)
    plain_axes(axes)
    axes.set_ylabel("speedup (output tokens/s)", size=7.5, color=INK, labelpad=3)


def _draw(axes: Axes, one: _Series, band: tuple[float, float]) -> None:
    """The line, the bars, the markers, and the bracket: shaded over `band`, shares of the height of the axes."""
    if one.bracket:
        strip = band != (0, 1)
        axes.axvspan(*one.bracket, *band, color=one.colour, alpha=0.25 if strip else 0.09, linewidth=0, zorder=0.5)
        if strip:
            middle, across = [sum(band) / 2] * 2, axes.get_xaxis_transform()
            axes.plot(one.bracket, middle, transform=across, color=one.colour, linestyle=one.line, linewidth=1)
    x, y = [point.x for point in one.points], [point.y for point in one.points]
    axes.plot(x, y, color=one.colour, linestyle=one.line, linewidth=1.3, zorder=2)
    for point in one.points:
        if point.bar:
            below, above = point.y - point.bar[0], point.bar[1] - point.y
            axes.errorbar(point.x, point.y, [[below], [above]], color=one.colour, elinewidth=1, capsize=2.5, zorder=3)
        face = "white" if point.verdict == "inconclusive" else one.colour
        axes.plot(
            [point.x], [point.y], marker=MARKERS[point.verdict], markersize=6, markerfacecolor=face,
            markeredgecolor=one.colour, markeredgewidth=1.2, zorder=4,
        )  # fmt: skip


def _annotate(axes: Axes, renderer: RendererAgg, series: Sequence[_Series]) -> None:
    """Ratio and verdict beside every point, each where it covers least: a greedy choice among places around it."""
    frame, scale = axes.get_window_extent(renderer), 72 / DPI
    taken = _obstacles(axes, series)
    for one in series:
        for point in one.points:
            text = axes.annotate(
                f"{point.y:.2f}x\n{point.verdict}", (point.x, point.y), (0, 0), textcoords="offset points",
                ha="center", va="center", size=6.8, color=one.colour, linespacing=1.05, zorder=5,
            )  # fmt: skip
            at, box = _pixel(axes, point.x, point.y), text.get_window_extent(renderer)
            middles = np.array(
                [
                    (math.cos(angle) * (gap + box.width / 2), math.sin(angle) * (gap + box.height / 2))
                    for gap in GAPS
                    for angle in (math.radians(15 * step) for step in range(24))
                ]
            )
            half = np.array([box.width, box.height]) / 2
            places = np.hstack([at + middles - half, at + middles + half])
            outside = np.hstack([np.array(frame.min) + 2 - places[:, :2], places[:, 2:] - np.array(frame.max)])
            cost = _covered(places, taken) + 200 * outside.max(axis=1).clip(0) + np.hypot(*middles.T)
            best = int(cost.argmin())
            text.set_position((scale * float(middles[best, 0]), scale * float(middles[best, 1])))
            taken = np.vstack([taken, [*places[best], 4.0]])


def _pixel(axes: Axes, x: float, y: float) -> Floats:
    return np.asarray(axes.transData.transform((x, y)), dtype=float)


def _obstacles(axes: Axes, series: Sequence[_Series]) -> Floats:
    """What a label should not cover: rows of x0, y0, x1, y1 (pixels) and how bad it is."""
    one_at = _pixel(axes, 1, 1)[1]
    found = [(-1e6, one_at - 1.5, 1e6, one_at + 1.5, 1.0)]
    for one in series:
        pixels = [_pixel(axes, point.x, point.y) for point in one.points]
        for point, (x, y) in zip(one.points, pixels, strict=True):
            found.append((x - 8, y - 8, x + 8, y + 8, 4.0))
            if point.bar:
                low, high = (_pixel(axes, point.x, end)[1] for end in point.bar)
                found.append((x - 6, low - 2, x + 6, high + 2, 2.0))
        for start, end in pairwise(pixels):
            for x, y in np.linspace(start, end, 41)[1:-1]:
                found.append((x - 3, y - 3, x + 3, y + 3, 2.0))
    return np.array(found)


def _covered(places: Floats, taken: Floats) -> Floats:
    """Area of `taken` under each of `places`, weighted."""
    least = np.minimum(places[:, None, 2:], taken[None, :, 2:4])
    most = np.maximum(places[:, None, :2], taken[None, :, :2])
    area: Floats = (least - most).clip(0).prod(axis=2) @ taken[:, 4]
    return area
