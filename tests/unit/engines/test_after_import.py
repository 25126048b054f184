"""A module of someone else is changed when it is imported, and not imported for that."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from toolkit.engines.after_import import when_imported

NAME = "module_that_waits"


@pytest.fixture(autouse=True)
def a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{NAME}.py").write_text("found = ['its own']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    sys.modules.pop(NAME, None)


def add(module: ModuleType) -> None:
    module.found.append("ours")


def test_it_is_changed_once_it_is_executed() -> None:
    when_imported(NAME, add)
    assert importlib.import_module(NAME).found == ["its own", "ours"]


def test_it_is_not_imported_for_that() -> None:
    when_imported(NAME, add)
    assert NAME not in sys.modules


def test_one_that_is_imported_already_is_changed_at_once() -> None:
    module = importlib.import_module(NAME)
    when_imported(NAME, add)
    assert module.found == ["its own", "ours"]


def test_asking_twice_changes_it_once() -> None:
    when_imported(NAME, add)
    when_imported(NAME, add)
    assert importlib.import_module(NAME).found == ["its own", "ours"]


def test_looking_for_it_without_importing_it_spoils_nothing() -> None:
    when_imported(NAME, add)
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.import_module(NAME).found == ["its own", "ours"]


def test_other_modules_are_left_alone() -> None:
    when_imported("module_that_never_comes", add)
    assert importlib.import_module(NAME).found == ["its own"]


def test_a_module_that_is_not_there_stays_missing() -> None:
    when_imported("module_that_never_comes", add)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("module_that_never_comes")
