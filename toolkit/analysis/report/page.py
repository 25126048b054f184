"""What a page is made of, and how it becomes one HTML file that needs nothing but itself.

Every string is text and is escaped by the template; only the svg elements of a Picture are markup, made by us.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from toolkit.analysis.escape import one_line
from toolkit.analysis.plots.style import NARROW, PAGE_COLOURS, WIDTH, inline_svg

NONE = "n/a"
# Light as in the figures; dark after Okabe and Ito, lightened to be read as text on near-black.
_DARK = {
    **{"--ink": "#E4E3DF", "--grey": "#A5A49F", "--frame": "#70747B", "--grid": "#30343A", "--paper": "#17191C"},
    **{"--series-1": "#6DB7F2", "--series-2": "#F0955A", "--series-3": "#45C79E"},
    **{"--series-4": "#D99BCB", "--series-5": "#D9B94A", "--series-6": "#BDBDBD"},
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure, drawn for a page and for a phone; `caption` says how to read it."""

    wide: Markup
    narrow: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells that are ready to be read. The columns in `words` are set to the left, numbers to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading that says the finding, and what shows it."""

    heading: str
    texts: Sequence[str] = ()
    picture: Picture | None = None
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    commands: Sequence[Sequence[str]] = ()
    """Each as the words that a shell reads: a line breaks between them."""


@dataclass(frozen=True, slots=True)
class Part:
    """One Run. The caveats are to be read before any number of it."""

    name: str
    summary: str
    caveats: Sequence[str]
    sections: Sequence[Section]


@dataclass(frozen=True, slots=True)
class Page:
    """The answer in one sentence, then the Runs."""

    answer: str
    made_by: str
    parts: Sequence[Part]


def render(page: Page) -> str:
    """The page as HTML, the same for the same page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain
    )
    template = environment.from_string(files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8"))
    light = {variable: colour for colour, variable in PAGE_COLOURS.items()}
    return template.render(page=page, light=light, dark=_DARK)


def picture(draw: Callable[[float], Figure], name: str, alternative: str, caption: str) -> Picture:
    """`draw`, a figure of any width in inches, in both sizes. `name` must be unique in the page."""

    def svg(width: float, where: str) -> Markup:
        return Markup(inline_svg(draw(width), f"{name}-{where}", alternative))

    return Picture(svg(WIDTH, "wide"), svg(NARROW, "narrow"), caption)


def _plain(value: object) -> object:
    """What is put into the page: no text from outside breaks a line or turns its direction."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def sentence(text: str) -> str:
    """`text` with its full stop."""
    return text if text.endswith(".") else f"{text}."
