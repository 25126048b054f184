"""What a latency figure draws: three panels under their own names, side by side or one below the other."""

import pytest
from matplotlib.figure import Figure

from toolkit.analysis.latency import Latency, LevelLatency, Spread
from toolkit.analysis.plots import latency_figure
from toolkit.analysis.plots.style import NARROW, WIDTH

SOME = Spread(9, 10, 20, 30, 40, 50)
BOTH = LevelLatency(1, Latency(SOME, SOME, SOME), Latency(SOME, SOME, SOME))
NO_TPOT = LevelLatency(4, Latency(SOME, None, SOME), Latency(None, None, None))


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left").partition(",")[0] for axes in figure.axes]


@pytest.mark.parametrize(("width", "columns"), [(WIDTH, 3), (NARROW, 1)])
def test_three_panels_beside_each_other_where_there_is_room(width: float, columns: int) -> None:
    figure = latency_figure([BOTH], "", width=width)
    assert titles(figure) == ["TTFT", "TPOT", "ITL"]
    assert len({axes.get_position().x0 for axes in figure.axes}) == columns


def test_the_marker_is_the_median() -> None:
    heights = {
        float(line.get_ydata()[0]) for line in latency_figure([BOTH], "").axes[0].lines if len(line.get_xdata()) == 1
    }
    assert heights == {30}


def test_a_panel_without_values_says_so() -> None:
    axes = latency_figure([NO_TPOT], "").axes[1]
    assert [text.get_text() for text in axes.texts] == ["unavailable"]


def test_without_a_baseline_the_legend_names_none() -> None:
    (legend,) = latency_figure([BOTH], "", baseline=False).legends
    assert [text.get_text() for text in legend.get_texts()] == ["with speculation"]
