"""What a factor figure draws: three factors that all help upwards, two without a counter, none without anything."""

import math
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from toolkit.analysis.factors import LevelFactors, Terms
from toolkit.analysis.plots import factors_figure

NOTHING = Terms(None, None, None, None, None)


def level(concurrency: int, per_pass: float | None, ran: float | None, seconds: float | None) -> LevelFactors:
    speedup = per_pass * ran / seconds if per_pass and ran and seconds else 1.1
    per_second = speedup / per_pass if per_pass else None
    return LevelFactors(concurrency, speedup, per_pass, ran, seconds, per_second, NOTHING, NOTHING, "", "")


THREE = [level(1, 1.5, 1.0, 1.1), level(16, 1.5, 0.9, 1.6)]
TWO = [level(1, 1.5, None, None), level(16, 1.4, None, None)]


def lines(figure: Figure) -> dict[str, list[float]]:
    """Legend entry to the heights of its points."""
    (legend,) = figure.legends
    names = [text.get_text().partition(":")[0] for text in legend.get_texts()]
    drawn = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", None, "")]
    return {name: [float(y) for y in line.get_ydata()] for name, line in zip(names, drawn, strict=True)}


def test_three_factors_and_their_product() -> None:
    assert list(lines(factors_figure(THREE, ""))) == [
        "speedup", "tokens per pass", "passes per iteration", "iterations per second",
    ]  # fmt: skip


def test_the_lines_multiply_to_the_speedup() -> None:
    speedup, *parts = lines(factors_figure(THREE, "")).values()
    assert [math.prod(values) for values in zip(*parts, strict=True)] == pytest.approx(speedup)


def test_without_an_iteration_counter_there_are_two_factors() -> None:
    assert list(lines(factors_figure(TWO, ""))) == ["speedup", "tokens per pass", "passes per second"]


def test_a_level_without_a_factor_has_no_point_on_its_line() -> None:
    found = lines(factors_figure([*THREE, level(64, None, 1.0, 1.9)], ""))
    assert (len(found["tokens per pass"]), len(found["speedup"])) == (2, 3)


def test_every_line_has_its_marker_and_its_dashes() -> None:
    (legend,) = factors_figure(THREE, "").legends
    drawn = [line for line in legend.get_lines() if isinstance(line, Line2D)]
    assert len({str(line.get_marker()) for line in drawn}) == 4
    assert len({str(vars(line)["_dash_pattern"]) for line in drawn}) == 4


def test_the_numbers_at_the_ends_do_not_overlap() -> None:
    figure = factors_figure([level(1, 1.5, 1.0, 1.1), level(64, 1.0, 1.0, 1.0)], "")
    figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in figure.axes[0].texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


def test_nothing_known_is_said() -> None:
    figure = factors_figure([], "", "remark")
    assert [text.get_text() for text in figure.texts] == ["remark", "no factor available"]
