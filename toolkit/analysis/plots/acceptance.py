"""The picture of acceptance by position in the draft: given that all before were kept, and of all drafts."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, PercentFormatter

from toolkit.analysis.acceptance import Position
from toolkit.analysis.plots.style import (
    COLOURS,
    GREY,
    INK,
    LINE,
    LINES,
    WIDTH,
    draw_heading,
    draw_legend,
    drawing,
    heading_lines,
    plain_axes,
    sheet,
)

MOST_LABELLED = 10  # positions


@drawing()
def positions_figure(positions: Sequence[Position], title: str, remark: str = "", width: float = WIDTH) -> Figure:
    """Both shares over the positions. A position that was never reached has no point on the first line."""
    given = [(one.position, one.given) for one in positions if one.given is not None]
    overall = [(one.position, one.unconditional) for one in positions if one.unconditional is not None]
    kinds = [
        ("kept, given that all before were kept", given, COLOURS[0], LINES[0], "o", COLOURS[0], 10),
        ("kept, of all drafts", overall, COLOURS[1], LINES[1], "s", "white", -10),
    ]
    drawn = [kind for kind in kinds if kind[1]]
    heading = heading_lines(title, remark, width)
    above, below = 0.22 + LINE * (len(heading) + len(drawn)), 0.5
    height = above + below + (1.6 if drawn else 0.3)
    figure = sheet(width, height)
    draw_heading(figure, heading)
    if not drawn:
        figure.text(0.5, 0.4, "no acceptance by position available", ha="center", va="center", size=10, color=GREY)
        return figure
    axes = figure.add_axes((0.68 / width, below / height, 1 - 0.8 / width, 1 - (above + below) / height))
    last = max(x for kind in drawn for x, _ in kind[1])
    axes.set_xlim(0.5, last + 0.5)
    axes.set_ylim(-0.1, 1.1)
    axes.xaxis.set_major_locator(FixedLocator(range(1, last + 1, 1 + (last - 1) // MOST_LABELLED)))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("position in the draft", size=7.5, color=INK, labelpad=3)
    plain_axes(axes)
    entries = []
    for label, points, colour, line, marker, face, offset in drawn:
        style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.4, "marker": marker,
                                 "markersize": 5, "markerfacecolor": face}  # fmt: skip
        axes.plot([x for x, _ in points], [y for _, y in points], clip_on=False, zorder=3, **style)
        entries.append((Line2D([], [], **style), label))
        for x, y in points if last <= MOST_LABELLED else points[:1] + points[-1:]:
            axes.annotate(f"{y:.0%}", (x, y), (0, offset), textcoords="offset points", ha="center", va="center", size=7,
                          color=colour, zorder=4, annotation_clip=False)  # fmt: skip
    draw_legend(figure, entries, 0.1 + LINE * len(heading))
    return figure
