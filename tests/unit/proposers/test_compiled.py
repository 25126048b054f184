"""Compiled code is kept under the content of the package, and works where nothing can be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

from toolkit.proposers.compiled import cache_folder, compiled
from toolkit.proposers.identity import _mark


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "b.py").write_text("two")
    return tmp_path


def test_the_same_package_has_the_same_folder(package: Path) -> None:
    assert cache_folder(package) == cache_folder(package)


@pytest.mark.parametrize(("name", "text"), [("b.py", "too"), ("c.py", "")], ids=["changed", "added"])
def test_a_change_in_any_module_leads_to_another(package: Path, name: str, text: str) -> None:
    before = cache_folder(package)
    (package / name).write_text(text)
    assert cache_folder(package) != before


def test_what_is_no_module_does_not(package: Path) -> None:
    before = cache_folder(package)
    (package / "a.pyc").write_text("later")
    assert cache_folder(package) == before


def test_a_function_of_the_package_is_kept_there() -> None:
    place = Path(_mark.stats.cache_path)  # type: ignore[attr-defined]
    assert place.parent.name == cache_folder(Path(__file__).parents[3] / "toolkit" / "proposers").name


def test_others_are_kept_where_they_were() -> None:
    before = config.CACHE_DIR
    compiled(lambda one: one)
    assert before == config.CACHE_DIR


def test_where_nothing_can_be_kept_functions_work(tmp_path: Path) -> None:
    """A file stands where the folder would be, which keeps root out too."""
    (tmp_path / "file").touch()
    code = (
        "from toolkit.proposers.compiled import compiled\n@compiled\ndef twice(n):\n    return 2 * n\nprint(twice(4))"
    )
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "8\n", done.stderr
