"""Text from outside (model names, versions, notes) made harmless for the place where it is shown."""

import json
import re
import unicodedata
from typing import Any

_ANSI = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_BREAKS = re.compile("[\t\n\v\f\r\x85\u2028\u2029]")
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "&#64;"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def one_line(text: str) -> str:
    """`text` for a terminal or a figure: one line, no escape sequence, no control, bidi or half character."""
    spaced = _BREAKS.sub(" ", _ANSI.sub("", text))
    return "".join(c for c in spaced if c not in _BIDI and unicodedata.category(c) not in ("Cc", "Cs")).strip()


def markdown(text: str) -> str:
    """`text` as literal Markdown in a table cell: no markup, HTML, column break, formula or automatic link."""
    text = re.sub(r"[&<>|@]", lambda found: _ENTITIES[found[0]], one_line(text))
    text = re.sub(r"([\\`*_\[\]~$!])", r"\\\1", text)
    return re.sub(r"(?i)www\.", lambda found: found[0][:-1] + "&#46;", text.replace("://", "&#58;//"))


def csv_cell(value: Any) -> Any:
    """`value` for the csv module: a text that a spreadsheet would take for a formula starts with an apostrophe."""
    return "'" + value if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value


def json_in_html(value: Any) -> str:
    """`value` as JSON that can stand in a script element: no `<` ends it."""
    return json.dumps(value, indent=1, allow_nan=False).replace("<", "\\u003c")
