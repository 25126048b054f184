"""What a figure of a comparison draws: each contender's tokens a pass, and what each position of its drafts keeps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from toolkit.analysis.compare.comparison import LevelComparison, PositionEstimate, Row
from toolkit.analysis.compare.interval import Estimate
from toolkit.analysis.compare.quantities import Quantities
from toolkit.analysis.plots.comparison import comparison_figure, plot_comparison
from toolkit.analysis.plots.style import NARROW, WIDTH
from toolkit.errors import InputError

NO_COUNTS = Quantities(16, None, None, None, None, None)


def known(value: float, half: float = 0.1) -> Estimate:
    return Estimate(value, value - half, value + half, 16)


def row(name: str, tokens: float = 2.0, kept: tuple[float, ...] = (0.8, 0.6)) -> Row:
    estimates = {"tokens_per_pass": known(tokens), "acceptance_length": known(tokens + 1)}
    positions = [PositionEstimate(i, known(share), None) for i, share in enumerate(kept, start=1)]
    return Row(name, 0, NO_COUNTS, estimates, positions, [], {})


def level(*rows: Row, concurrency: int = 1) -> LevelComparison:
    return LevelComparison(concurrency, 16, True, list(rows), [], [])


TWO = level(row("lab-ngram"), row("lab-draft", 4.0))
SILENT = replace(row("endpoint"), estimates={}, positions=[])


def shown(figure: Figure) -> list[str]:
    """Every text of the axes."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def bars(axes: Axes, across: int) -> list[list[float]]:
    """The ends of the lines without a marker: along x with 0, along y with 1."""
    ends = [np.asarray(line.get_xydata())[:, across] for line in axes.lines if line.get_marker() == "None"]
    return [[round(float(end), 2) for end in one] for one in ends]


def test_each_number_stands_beside_its_marker() -> None:
    assert shown(comparison_figure([TWO], "")) == ["2.00", "3.00", "4.00", "5.00"]


def test_each_number_has_its_interval() -> None:
    assert bars(comparison_figure([TWO], "").axes[0], 0) == [[1.9, 2.1], [2.9, 3.1], [3.9, 4.1], [4.9, 5.1]]


def test_each_position_has_its_interval() -> None:
    assert bars(comparison_figure([level(row("a"))], "").axes[1], 1) == [[0.7, 0.9], [0.5, 0.7]]


def test_a_share_is_drawn_between_0_and_1() -> None:
    sure = level(row("a", kept=(0.95,)))
    assert bars(comparison_figure([sure], "").axes[1], 1) == [[0.85, 1.0]]


def test_without_an_interval_there_is_a_marker_and_no_bar() -> None:
    bare = replace(row("a"), estimates={"tokens_per_pass": Estimate(2.0, None, None, 1)})
    assert bars(comparison_figure([level(bare)], "").axes[0], 0) == []


def test_what_is_not_known_is_called_unavailable() -> None:
    assert "unavailable" in shown(comparison_figure([level(row("a"), SILENT)], ""))


def test_where_no_position_is_known_that_is_said() -> None:
    assert shown(comparison_figure([level(SILENT, SILENT)], "")).count("unavailable") == 3


def test_what_was_allowed_stands_in_the_figure() -> None:
    figure = comparison_figure([TWO], "title", "the draft lengths differ: a K = 4, b K = 2")
    assert any("the draft lengths differ" in text.get_text() for text in figure.texts)


def test_every_level_has_two_panels_with_its_concurrency() -> None:
    levels = [TWO, replace(TWO, concurrency=4)]
    titles = [axes.get_title(loc="left") for axes in comparison_figure(levels, "").axes]
    assert [title.rpartition(" ")[2] for title in titles] == ["1", "1", "4", "4"]


@pytest.mark.parametrize("width", [WIDTH, NARROW])
@pytest.mark.parametrize("rows", [2, 6])
def test_nothing_written_leaves_the_picture(width: float, rows: int) -> None:
    levels = [level(*(row(f"lab-llamacpp-ngram-{i}", 1.0 + i) for i in range(rows)), concurrency=n) for n in (1, 64)]
    remark = "the target models differ: " + ", ".join(f"lab-{i} sha256:b179c9523d0e6a0f" for i in range(4))
    figure = comparison_figure(levels, "Acceptance on the same prompts", remark, width)
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [text for axes in figure.axes for text in (axes._left_title, *axes.texts)] + figure.texts
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_names_of_the_legend_are_literal() -> None:
    figure = comparison_figure([level(row("$x^2$ \x1b[31m"), row("b"))], "")
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    assert [text.get_text() for text in texts] == ["$x^2$", "b"]


def test_contenders_differ_in_marker_and_line_too() -> None:
    lines = [line for line in comparison_figure([TWO], "").axes[1].lines if line.get_marker() != "None"]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 2


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    from toolkit.analysis.compare.comparison import Comparison

    found = Comparison([], {}, [], [], [], [], [], [], [TWO])
    with pytest.raises(InputError, match=r"a \.png or a \.svg"):
        plot_comparison(found, tmp_path / "plot.pdf")
