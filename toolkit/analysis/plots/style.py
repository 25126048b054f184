"""How every figure looks and is written: a PNG, an SVG file, or an SVG inside a page that has a light and a dark side.

Nothing rests on colour: what differs in it differs in shape or line style too. The same figure gives the same bytes.
"""

import io
import math
import re
import textwrap
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, NullLocator

from toolkit.analysis.escape import one_line
from toolkit.errors import InputError

DPI = 150
WIDTH, NARROW = 6.0, 3.5  # inches: a page and a phone
LINE = 0.17  # inches that a line of the heading or the legend takes
# After Okabe and Ito, Color Universal Design (2008), darkened to be read as text on white.
COLOURS = ("#0060A0", "#B34700", "#006B4F", "#8E3B7E", "#7A5C00", "#333333")
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
INK, GREY, FRAME, GRID, PAPER = "#222222", "#666666", "#999999", "#E6E6E6", "#FFFFFF"
# What a page calls these colours: it gives each a light and a dark value.
PAGE_COLOURS = {
    **{colour: f"--series-{number}" for number, colour in enumerate(COLOURS, start=1)},
    **{INK: "--ink", GREY: "--grey", FRAME: "--frame", GRID: "--grid", PAPER: "--paper"},
}
LONGEST_NAME = 48
MOST_TICKS = 8
# Labelled ratios, from fine to coarse: the first that are few enough for the range are taken.
TICKS = (
    [n / 20 for n in range(1, 60)],
    [n / 10 for n in range(1, 60)],
    [0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10],
    [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30],
    [2.0**n for n in range(-8, 9)],
    [10.0**n for n in range(-4, 5)],
)
_NO_XML = re.compile("[\ufffe\uffff]")  # two characters of Unicode that no XML may hold


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib as it comes, whatever the user's settings say. Also a decorator."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "toolkit"
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a script the font lacks: drawn as a box
        yield


def save(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`, a .png or a .svg. Raises InputError: another suffix, a disk that refuses."""
    try:
        path.write_bytes(_encoded(figure, form_of(path)))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}.") from None


def form_of(path: Path) -> str:
    """png or svg. Raises InputError for a path that ends otherwise: ask before work that takes long."""
    form = path.suffix.lower().removeprefix(".")
    if form not in ("png", "svg"):
        raise InputError(f"{path}: a plot is a .png or a .svg: give it a name that ends so.")
    return form


def inline_svg(figure: Figure, name: str, alternative: str) -> str:
    """`figure` as an svg element for an HTML page that defines PAGE_COLOURS: one image with a text alternative.

    Its texts stay texts. `name` is put before every id, so that it must be unique in the page.
    """
    root = ElementTree.fromstring(_encoded(figure, "svg", as_text=True))
    used = {found for node in root.iter() for value in node.attrib.values() for found in _REFERENCE.findall(value)}
    for node in list(root.iter()):
        node.tag = node.tag.rpartition("}")[2]
        for child in list(node):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                node.remove(child)
        if node.get("id") not in used:
            node.attrib.pop("id", None)
        node.attrib = {key.rpartition("}")[2]: _for_page(key, value, name) for key, value in node.items()}
        node.text, node.tail = (node.text if node.tag == "text" else None), None
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "role": "img",
        "aria-label": _NO_XML.sub("", one_line(alternative)),
    }
    return ElementTree.tostring(root, encoding="unicode")


_REFERENCE = re.compile(r"(?:^|(?<=url\())#([a-zA-Z]\w*)")  # a whole attribute, or in its url(...)


def _for_page(key: str, value: str, name: str) -> str:
    """An attribute with colours by their names in the page, its ids starting with `name`, and no needless digits."""
    if key == "id":
        return f"{name}-{value}"
    value = _REFERENCE.sub(rf"#{name}-\1", value)
    value = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), value)
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)


_VARIABLES = {colour.lower(): f"var({variable})" for colour, variable in PAGE_COLOURS.items()}


@drawing()
def _encoded(figure: Figure, form: str, as_text: bool = False) -> bytes:
    buffer = io.BytesIO()
    if as_text:
        matplotlib.rcParams.update({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]})
    figure.savefig(buffer, format=form, metadata={"Software": None} if form == "png" else {"Date": None})
    return buffer.getvalue()


def sheet(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    return Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)


def heading_lines(title: str, remark: str, width: float) -> list[str]:
    """The heading wrapped to `width` inches, at most two lines of `title`; `remark` is never cut."""
    return [*textwrap.wrap(one_line(title), int(13 * width))[:2], *textwrap.wrap(one_line(remark), int(13 * width))]


def draw_heading(figure: Figure, lines: Sequence[str]) -> None:
    width, height = figure.get_size_inches()
    literal(figure.text(0.12 / width, 1 - 0.1 / height, "", va="top", size=9.5, weight="bold", color=INK), *lines)


def draw_legend(figure: Figure, entries: Sequence[tuple[Line2D, str]], below: float) -> None:
    """One entry a line in its own colour, at the left, `below` inches under the top."""
    width, height = figure.get_size_inches()
    handles = [handle for handle, _ in entries]
    legend = figure.legend(
        handles, [""] * len(entries), loc="upper left", bbox_to_anchor=(0.12 / width, 1 - below / height),
        fontsize=7.5, frameon=False, handlelength=3.2, borderpad=0.1, borderaxespad=0, labelspacing=0.45,
    )  # fmt: skip
    for text, (handle, label) in zip(legend.get_texts(), entries, strict=True):
        literal(text, label)
        text.set_color(handle.get_color())


def plain_axes(axes: Axes) -> None:
    """Two thin spines, light lines across, text that can be read."""
    axes.tick_params(labelsize=7.5, colors=INK, length=3, width=0.6)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=FRAME, linewidth=0.6)


def ratio_axis(axes: Axes, low: float, high: float) -> None:
    """A logarithmic y axis of ratios from `low` to `high`, its 1 drawn out."""
    inside = ([tick for tick in ticks if low < tick < high] for ticks in TICKS)
    ticks = next((few for few in inside if len(few) <= MOST_TICKS), [1.0])
    places = next((n for n in (1, 2) if all(math.isclose(tick, round(tick, n)) for tick in ticks)), None)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticklabels([f"{tick:.{places}f}x" if places else f"{tick:.3g}x" for tick in ticks])
    axes.axhline(1, color=INK, linewidth=0.9, zorder=1.5)


def concurrency_axis(axes: Axes, levels: Sequence[int]) -> None:
    """A logarithmic x axis with a tick at every one of `levels`, which rise."""
    beside = 2 ** max(0.09 * math.log2(levels[-1] / levels[0]), 0.5)
    axes.set_xscale("log", base=2)
    axes.set_xlim(levels[0] / beside, levels[-1] * beside)
    axes.xaxis.set_major_locator(FixedLocator(levels))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(level) for level in levels])
    axes.set_xlabel("concurrency (requests in flight)", size=7.5, color=INK, labelpad=3)


def literal(text: Text, *lines: str) -> None:
    """Set lines that came from outside: a `$` in them is a dollar."""
    text.set_parse_math(False)
    text.set_text(_NO_XML.sub("", "\n".join(lines)))


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name from outside, on one line and cut to `longest` characters."""
    clean = one_line(name)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
