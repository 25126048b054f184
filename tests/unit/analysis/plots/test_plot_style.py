"""An svg element for a page: one image, no foreign matter, colours that the page decides, ids that do not collide."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from toolkit.analysis.escape import one_line
from toolkit.analysis.plots.style import COLOURS, INK, LINES, PAGE_COLOURS, drawing, inline_svg, literal, sheet


@drawing()
def figure(text: str = "some text") -> Figure:
    made = sheet(3, 2)
    axes = made.add_subplot()
    axes.plot([1, 2], [1, 2], color=COLOURS[0], linestyle=LINES[1], marker="o", clip_on=True)
    literal(made.text(0.1, 0.9, "", color=INK), text)
    return made


def svg(text: str = "some text", name: str = "run-1", alternative: str = "a line") -> str:
    return inline_svg(figure(text), name, alternative)


def texts(markup: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(markup).iter("text")]


def test_it_is_one_image_with_a_text_alternative() -> None:
    root = ElementTree.fromstring(svg(alternative='1.41x at 1 "pays" <b>'))
    assert (root.tag, root.get("role"), root.get("aria-label")) == ("svg", "img", '1.41x at 1 "pays" <b>')


def test_it_names_no_place_on_the_network() -> None:
    assert "://" not in svg()


def test_its_texts_stay_texts() -> None:
    assert "some text" in texts(svg())


def test_it_holds_no_style_sheet_that_would_reach_the_page() -> None:
    assert not list(ElementTree.fromstring(svg()).iter("style"))


def test_its_colours_are_the_pages() -> None:
    found = svg()
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", found)) >= {"--series-1", "--ink", "--paper"}
    assert not [colour for colour in PAGE_COLOURS if colour.lower() in found.lower()]


def test_every_reference_leads_to_an_id_of_this_figure() -> None:
    found = svg(name="run-2-arm-1")
    ids = set(re.findall(r' id="([^"]+)"', found))
    references = set(re.findall(r'(?:href="|url\()#([^")]+)', found))
    assert references
    assert references == ids
    assert all(one.startswith("run-2-arm-1-") for one in ids)


@pytest.mark.parametrize("text", ["#222222", "url(#p1)", "fill: #0060a0", "1.23456"])
def test_a_text_that_looks_like_an_attribute_is_left_alone(text: str) -> None:
    assert text in texts(svg(text))


@given(st.text(max_size=30))
def test_any_text_gives_well_formed_markup(text: str) -> None:
    made = sheet(1, 1)
    literal(made.text(0.1, 0.9, ""), one_line(text))
    ElementTree.fromstring(inline_svg(made, "run-1", alternative=text))


def test_the_same_figure_gives_the_same_markup() -> None:
    assert svg() == svg()
