"""What a crossover figure shows in words and shapes, that labels keep clear, and that files are reproducible."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from PIL import Image

from toolkit.analysis.crossover import ArmResult, Crossover, Level, crossover, verdict_of
from toolkit.analysis.plots import crossover_figure, plot_crossover
from toolkit.analysis.plots.style import NARROW
from toolkit.analysis.run import Run
from toolkit.errors import InputError

MakeRun = Callable[..., Run]


def level(concurrency: int, speedup: float | None, half: float | None = 0.05, reason: str = "") -> Level:
    low = high = None
    if speedup is not None and half is not None:
        low, high = speedup * (1 - half), speedup * (1 + half)
    verdict = verdict_of(low, high) if low is not None and high is not None else "inconclusive"
    return Level(concurrency, speedup, low, high, verdict, reason, 6, None, None)


def one_arm(*levels: Level, arm: str = "lab-ngram", workload: str = "copy-code") -> Crossover:
    return Crossover("lab-baseline", [ArmResult(arm, workload, list(levels))])


TYPICAL = one_arm(level(1, 1.53), level(4, 1.18), level(16, 1.02), level(64, 0.92))
THREE = Crossover(
    "baseline-8b",
    [
        ArmResult("eagle3-8b", "chat", [level(1, 2.1), level(4, 1.85), level(16, 1.4), level(64, 0.94, 0.03)]),
        ArmResult("draft-1b", "chat", [level(1, 1.53), level(4, 1.3), level(16, 1.02), level(64, 0.82)]),
        ArmResult("ngram-8b", "chat", [level(1, 1.45), level(4, 1.28), level(16, 1.0), level(64, 0.99, 0.005)]),
    ],
)
SINGLE = one_arm(level(8, 1.12))
NONE = one_arm(level(1, None, reason="no baseline was measured"))
CROWDED = Crossover(
    "base",
    [ArmResult(f"arm-{k}", "chat", [level(2**i, 2.2 * 0.86**i * (1 - 0.04 * k)) for i in range(9)]) for k in range(3)],
)


def words(figure: Figure) -> str:
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    found += [text for axes in figure.axes for text in axes.texts]
    return "\n".join(text.get_text() for text in found)


def markers(figure: Figure) -> list[str]:
    return [str(line.get_marker()) for line in figure.axes[0].lines if line.get_marker() in ("^", "v", "o")]


def labels(figure: Figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("result", [TYPICAL, THREE, SINGLE, NONE], ids=["typical", "three", "single", "none"])
def test_a_png_is_900_pixels_wide(result: Crossover, tmp_path: Path) -> None:
    plot_crossover(result, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width == 900


def test_a_svg_is_well_formed(tmp_path: Path) -> None:
    plot_crossover(one_arm(level(1, 1.5), arm="<b>&-->"), tmp_path / "plot.svg")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["plot.png", "plot.svg"])
def test_the_same_result_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    plot_crossover(TYPICAL, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    plot_crossover(TYPICAL, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png or a \.svg"):
        plot_crossover(TYPICAL, tmp_path / "plot.jpg")


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        plot_crossover(TYPICAL, tmp_path / "nowhere" / "plot.png")


def test_a_run_can_be_plotted(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("lab-ngram", 1): [(150 + i, 100) for i in range(6)]})
    plot_crossover(crossover(run), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_the_title_names_baseline_and_workload() -> None:
    assert "Speedup over lab-baseline on copy-code" in words(crossover_figure(TYPICAL))


def test_a_title_of_ones_own() -> None:
    assert "My title" in words(crossover_figure(TYPICAL, "My title"))


def test_every_point_has_its_ratio_and_verdict() -> None:
    found = [label.get_text() for label in labels(crossover_figure(TYPICAL))]
    assert found == ["1.53x\npays", "1.18x\npays", "1.02x\ninconclusive", "0.92x\ncosts"]


def test_every_verdict_has_its_shape() -> None:
    assert markers(crossover_figure(TYPICAL)) == ["^", "^", "o", "v"]


def test_inconclusive_is_hollow() -> None:
    lines = crossover_figure(TYPICAL).axes[0].lines
    assert [line.get_markerfacecolor() for line in lines if line.get_marker() == "o"] == ["white"]


def test_every_arm_has_its_line_style() -> None:
    (legend,) = crossover_figure(THREE).legends
    assert len({str(vars(line)["_dash_pattern"]) for line in legend.get_lines()}) == 3


def test_the_legend_says_where_an_arm_pays_and_costs() -> None:
    assert "draft-1b: pays up to 4, costs from 64" in words(crossover_figure(THREE))


def test_the_legend_gives_no_bracket_where_there_is_none() -> None:
    legend = words(crossover_figure(one_arm(level(1, 0.8), level(4, 1.5))))
    assert "lab-ngram: not monotone" in legend
    assert "pays up to" not in legend


def test_the_ticks_are_the_measured_levels() -> None:
    axes = crossover_figure(TYPICAL).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4", "16", "64"]


@pytest.mark.parametrize("speedups", [(1.53, 0.92), (1.001, 0.999), (40.0, 0.1), (3.0, 2.0)])
def test_the_ratio_axis_has_ticks_that_can_be_read(speedups: tuple[float, float]) -> None:
    figure = crossover_figure(one_arm(level(1, speedups[0]), level(4, speedups[1])))
    assert 2 <= len(figure.axes[0].get_yticklabels()) <= 8


@pytest.mark.parametrize(
    ("result", "bands"), [(TYPICAL, 1), (THREE, 3), (SINGLE, 0)], ids=["typical", "three", "single"]
)
def test_a_bracket_is_shaded_where_one_exists(result: Crossover, bands: int) -> None:
    assert len(crossover_figure(result).axes[0].patches) == bands


def test_a_bracket_that_runs_backwards_is_not_shaded() -> None:
    assert not crossover_figure(one_arm(level(1, 0.8), level(4, 1.5))).axes[0].patches


def test_a_level_without_a_speedup_is_named_below() -> None:
    figure = crossover_figure(one_arm(level(1, 1.5), level(8, None, reason="6 of 6 pairs have no window")))
    assert "No speedup: lab-ngram at 8 (6 of 6 pairs have no window)." in words(figure)


def test_a_level_without_a_speedup_is_not_drawn() -> None:
    assert len(labels(crossover_figure(one_arm(level(1, 1.5), level(8, None))))) == 1


def test_a_verdict_withheld_is_explained_below() -> None:
    withheld = Level(4, 1.5, 1.4, 1.6, "inconclusive", "3.1% of the requests failed", 6, None, None)
    assert "No verdict: lab-ngram at 4 (3.1% of the requests failed)." in words(crossover_figure(one_arm(withheld)))


def test_nothing_to_show_says_so() -> None:
    assert "no speedup available" in words(crossover_figure(NONE))


@pytest.mark.parametrize("result", [TYPICAL, THREE, SINGLE, CROWDED], ids=["typical", "three", "single", "crowded"])
def test_labels_do_not_overlap(result: Crossover) -> None:
    found = labels(crossover_figure(result))
    boxes = [label.get_window_extent() for label in found]
    assert not [1 for a, b in combinations(boxes, 2) if a.overlaps(b)]


@pytest.mark.parametrize("result", [TYPICAL, THREE, SINGLE, CROWDED], ids=["typical", "three", "single", "crowded"])
def test_labels_stay_inside(result: Crossover) -> None:
    figure = crossover_figure(result)
    frame = figure.axes[0].get_window_extent()
    outside = [box for box in (label.get_window_extent() for label in labels(figure)) if box.x0 < frame.x0 - 1
               or box.x1 > frame.x1 + 1 or box.y0 < frame.y0 - 1 or box.y1 > frame.y1 + 1]  # fmt: skip
    assert not outside


def test_a_dollar_is_a_dollar(tmp_path: Path) -> None:
    # As mathtext this would not parse.
    result = one_arm(level(1, 1.5), level(2, None, reason=r"$\nope{$"), arm=r"$\nope{$", workload=r"$\nope{$")
    plot_crossover(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_control_characters_are_left_out() -> None:
    assert "\x1b" not in words(crossover_figure(one_arm(level(1, 1.5), arm="\x1b[31mred\x1b[0m")))


def test_synthetic_acceptance_is_said_in_the_picture() -> None:
    result = Crossover("base", [ArmResult("arm", "chat", [level(1, 1.5)], synthetic=True)])
    assert "arm: synthetic acceptance: for sizing only" in words(crossover_figure(result, ""))


def test_labels_of_a_phone_wide_figure_do_not_overlap() -> None:
    boxes = [label.get_window_extent() for label in labels(crossover_figure(TYPICAL, "", width=NARROW))]
    assert not [1 for a, b in combinations(boxes, 2) if a.overlaps(b)]
