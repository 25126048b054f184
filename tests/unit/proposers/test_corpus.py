"""The user's own text: which files of a folder are read, and what is refused."""

from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.proposers import corpus
from toolkit.proposers.corpus import corpus_texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"b.py": "two", "a.py": "one", "deep/down/c.md": "three"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_file_is_its_text(folder: Path) -> None:
    assert list(corpus_texts(folder / "a.py")) == ["one"]


def test_a_folder_is_all_its_files_in_order(folder: Path) -> None:
    assert list(corpus_texts(folder)) == ["one", "two", "three"]


@pytest.mark.parametrize("name", [".git/config", ".hidden"])
def test_what_is_hidden_is_left_out(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("secret")
    assert "secret" not in list(corpus_texts(folder))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"PK\0\0", b""], ids=["no UTF-8", "zeros", "empty"])
def test_what_is_no_text_is_left_out(folder: Path, content: bytes) -> None:
    (folder / "a.py").write_bytes(content)
    assert list(corpus_texts(folder)) == ["two", "three"]


def test_a_folder_that_leads_back_into_itself_comes_to_an_end(folder: Path) -> None:
    (folder / "deep" / "up").symlink_to(folder)
    assert list(corpus_texts(folder)) == ["one", "two", "three"]


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file or folder"):
        list(corpus_texts(tmp_path / "nowhere"))


def test_a_place_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="holds no text"):
        list(corpus_texts(tmp_path))


def test_more_text_than_can_be_indexed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MOST_BYTES", 8)
    with pytest.raises(InputError, match="name a smaller part"):
        list(corpus_texts(folder))


def test_a_place_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, whom no file keeps out."""

    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a").write_text("one")
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        list(corpus_texts(tmp_path))
