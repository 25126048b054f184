"""What a figure of acceptance by position draws."""

from matplotlib.figure import Figure

from toolkit.analysis.acceptance import Position
from toolkit.analysis.plots import positions_figure

STEPS = [Position(1, 100, 100, 80), Position(2, 80, 100, 60)]
COUNTERS = [Position(1, None, 100, 80), Position(2, None, 100, 60)]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_both_shares_are_drawn_with_their_numbers() -> None:
    assert labels(positions_figure(STEPS, "")) == ["80%", "75%", "80%", "60%"]


def test_counters_alone_give_the_unconditional_share_alone() -> None:
    figure = positions_figure(COUNTERS, "")
    assert (legend(figure), labels(figure)) == (["kept, of all drafts"], ["80%", "60%"])


def test_a_long_draft_is_labelled_at_its_ends_only() -> None:
    figure = positions_figure([Position(i, None, 100, 100 - i) for i in range(1, 17)], "")
    assert labels(figure) == ["99%", "84%"]


def test_nothing_known_is_said() -> None:
    assert "no acceptance by position available" in [text.get_text() for text in positions_figure([], "").texts]
