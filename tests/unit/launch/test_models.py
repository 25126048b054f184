"""A model's name: what the engine is given, where its config.json is, what identifies its content."""

import json
import shutil
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.lab.model import LAB_MODEL
from toolkit.launch import models
from toolkit.launch.models import config_folder, is_local, model_identity, resolve_model
from toolkit.launch.profile import load_profile, shipped_profiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A local model: config, tokenizer, weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 7}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0123")
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A model in one file."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF and more")
    return file


def named_by_profiles() -> list[str]:
    profiles = [
        one for one in map(load_profile, shipped_profiles()) if one.endpoint is None
    ]  # else its model is not ours
    drafts = [profile.speculation.draft for profile in profiles if profile.speculation and profile.speculation.draft]
    return sorted({*(profile.target.model for profile in profiles), *drafts})


class TestResolve:
    def test_a_hub_name_passes_through(self) -> None:
        assert resolve_model("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"

    def test_a_local_folder_is_given_as_an_absolute_path(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        assert resolve_model("./model") == str(folder.resolve())

    def test_a_folder_without_a_config_is_refused(self, folder: Path) -> None:
        (folder / "config.json").unlink()
        with pytest.raises(InputError, match=r"holds no config\.json"):
            resolve_model(str(folder))

    def test_a_path_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(InputError, match="the folder does not exist"):
            resolve_model("/nowhere/at/all")

    def test_home_is_expanded(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(folder.parent))
        assert resolve_model("~/model") == str(folder.resolve())

    def test_the_lab_model_is_the_folder_that_is_built_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "ensure_lab_model", lambda: Path("/built/here"))
        assert resolve_model(LAB_MODEL) == "/built/here"

    def test_a_gguf_file_is_given_to_an_engine_that_asks_for_one(self, gguf: Path) -> None:
        assert resolve_model(f"gguf:{gguf}") == str(gguf.resolve())

    def test_a_gguf_file_is_refused_where_a_folder_is_wanted(self, gguf: Path) -> None:
        with pytest.raises(InputError, match="a GGUF file is for `engine: llamacpp`"):
            resolve_model(str(gguf))

    @pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B-Instruct", "./folder"])
    def test_what_is_no_gguf_file_is_refused_where_one_is_wanted(self, name: str) -> None:
        with pytest.raises(InputError, match=r"llama\.cpp takes a GGUF file of this machine"):
            resolve_model(f"gguf:{name}")

    def test_a_gguf_file_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(InputError, match="there is no such file"):
            resolve_model("gguf:/nowhere/at/all.gguf")

    def test_the_lab_models_gguf_file_is_the_one_that_is_downloaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "ensure_lab_gguf", lambda: Path("/downloaded/here.gguf"))
        assert resolve_model(f"gguf:{LAB_MODEL}") == "/downloaded/here.gguf"

    @pytest.mark.parametrize("name", ["./a", "/a", "~/a", "../a"])
    def test_a_path_is_local(self, name: str) -> None:
        assert is_local(name)

    def test_a_relative_folder_that_exists_is_local(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        assert (is_local("model"), is_local("other/model")) == (True, False)


class TestConfig:
    @pytest.mark.parametrize("name", named_by_profiles())
    def test_the_facts_of_a_shipped_profiles_model_are_here(self, name: str) -> None:
        assert "architectures" in json.loads((Path(config_folder(name)) / "config.json").read_text())

    def test_a_local_folder_is_read_where_it_is(self, folder: Path) -> None:
        assert config_folder(str(folder)) == str(folder)

    def test_the_hub_cache_comes_before_our_facts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        snapshot = tmp_path / "hf" / "hub" / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text('{"mine": 1}')
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        assert config_folder("Qwen/Qwen3-8B") == str(snapshot)

    def test_a_snapshot_without_a_config_is_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "hf" / "hub" / "models--Qwen--Qwen3-8B" / "snapshots" / "abc").mkdir(parents=True)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        assert Path(config_folder("Qwen/Qwen3-8B")).name == "Qwen--Qwen3-8B"

    def test_a_model_that_is_nowhere_is_refused(self) -> None:
        with pytest.raises(InputError, match="download the model's config first"):
            config_folder("no/such-model")


class TestIdentity:
    def test_of_a_hub_model_is_its_name(self) -> None:
        assert model_identity("a/b") == "a/b"

    def test_a_copy_elsewhere_is_the_same_model(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "copy")
        assert model_identity(str(folder)) == model_identity(str(tmp_path / "copy"))

    @pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
    def test_another_config_or_tokenizer_is_another_model(self, folder: Path, file: str) -> None:
        before = model_identity(str(folder))
        (folder / file).write_text(json.dumps({"vocab_size": 8}))
        assert model_identity(str(folder)) != before

    def test_weights_of_another_size_are_another_model(self, folder: Path) -> None:
        before = model_identity(str(folder))
        (folder / "model.safetensors").write_bytes(b"01234")
        assert model_identity(str(folder)) != before

    def test_a_folder_inside_changes_nothing(self, folder: Path) -> None:
        before = model_identity(str(folder))
        (folder / "original.json").mkdir()
        assert model_identity(str(folder)) == before


class TestIdentityOfAGGUFFile:
    def test_it_follows_the_content_and_not_the_path(self, gguf: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy.gguf"
        copy.write_bytes(gguf.read_bytes())
        assert model_identity(f"gguf:{copy}") == model_identity(f"gguf:{gguf}")

    @pytest.mark.parametrize("content", [b"GGUF and less", b"GGUF and more, and more"])
    def test_another_file_is_another_model(self, gguf: Path, content: bytes) -> None:
        before = model_identity(f"gguf:{gguf}")
        gguf.write_bytes(content)
        assert model_identity(f"gguf:{gguf}") != before

    def test_the_lab_models_is_known_without_the_file(self) -> None:
        assert model_identity(f"gguf:{LAB_MODEL}") == "sha256:b179c9523d0e6a0f"
