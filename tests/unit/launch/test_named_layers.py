"""A draft that is named after its target and some layers of it: its directory, and what identifies it."""

import json
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.launch.models import config_folder, model_identity, resolve_model
from toolkit.launch.named_layers import layers_folder
from toolkit.proposers.layer_set import ARCHITECTURE, read

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
NAME = f"{LLAMA_8B}#layers=0-3,28-31"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "toolkit" / "layer-skip"


def test_the_directory_is_written_where_it_is_wanted(cache: Path) -> None:
    folder = Path(resolve_model(NAME))
    assert folder.parent == cache
    assert read(folder).layers == (0, 1, 2, 3, 28, 29, 30, 31)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [ARCHITECTURE]
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_the_same_name_is_the_same_directory_again(cache: Path) -> None:
    assert resolve_model(NAME) == resolve_model(NAME)
    assert len(list(cache.iterdir())) == 1


def test_a_dry_run_writes_nothing(cache: Path) -> None:
    assert resolve_model(NAME, dry=True) == str(layers_folder(NAME, dry=True))
    assert not cache.exists()


def test_its_config_is_there_to_be_checked() -> None:
    assert (Path(config_folder(NAME)) / "config.json").is_file()


def test_a_hub_target_and_its_layers_identify_it() -> None:
    assert model_identity(NAME) == NAME


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{LLAMA_8B}#layers=0-32", "no layer 32"),
        (f"{LLAMA_8B}#layers=0-31", "nothing is skipped"),
        (f"{LLAMA_8B}#layers=", "is no layer"),
        ("no/such-model#layers=0", "no config.json of it"),
        ("Qwen/Qwen3-8B#layers=0-99", "the target has 36"),
    ],
)
def test_what_cannot_draft_is_refused_and_leaves_nothing(cache: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        resolve_model(name)
    assert not cache.exists() or not list(cache.iterdir())


def test_a_home_whose_name_flips_the_method_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "eagle-nest"))
    with pytest.raises(InputError, match="another method's draft"):
        resolve_model(NAME)
