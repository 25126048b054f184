"""The user's own text, to be looked up from the first request on: one file, or the text files of a folder."""

from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import InputError

MOST_BYTES = 64 * 2**20
"""More is refused: about 16 million tokens, of which each is indexed in memory."""


def corpus_texts(place: Path) -> Iterator[str]:
    """The texts at `place`, in order of their paths; what is hidden, empty or no UTF-8 text is left out.

    Raises InputError for a place that is not there, cannot be read, holds no text, or more than `MOST_BYTES`.
    """
    if not place.exists():
        raise InputError(f"corpus {place}: there is no such file or folder.")
    total = 0
    for path in [place] if place.is_file() else sorted(_visible(place)):
        try:
            raw = path.read_bytes()
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue
        except OSError as error:
            raise InputError(f"corpus {path}: cannot be read: {error.strerror}.") from None
        if not text or "\0" in text:
            continue
        total += len(raw)
        if total > MOST_BYTES:
            raise InputError(f"corpus {place}: holds more than {MOST_BYTES // 2**20} MiB of text: name a smaller part.")
        yield text
    if total == 0:
        raise InputError(f"corpus {place}: holds no text.")


def _visible(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _visible(path)
        elif path.is_file():
            yield path
