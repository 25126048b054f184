"""A min_p that requests get by default: found wherever it comes from, and only under speculation."""

from pathlib import Path

import pytest

from toolkit.engines.contract import Profile
from toolkit.engines.vllm import VLLM
from toolkit.errors import InputError


def command(folder: Path, arguments: list[str], speculates: bool = True) -> None:
    speculation = {"speculation": {"method": "ngram", "num_speculative_tokens": 2}} if speculates else {}
    values = {"name": "p", "engine": "vllm", "target": {"model": "m"}, "engine_args": arguments, **speculation}
    VLLM().command(Profile.model_validate(values), lambda _: str(folder))


OVERRIDE = "--override-generation-config"


@pytest.mark.parametrize(
    "arguments",
    [
        [OVERRIDE, '{"min_p": 0.1}'],
        [OVERRIDE + '={"min_p": 0.1}'],
        ["--override_generation_config", '{"min_p": 0.1}'],
        [OVERRIDE, '{"top_p": 0.9}', OVERRIDE, '{"min_p": 0.1}'],
        ["--generation-config", "vllm", OVERRIDE, '{"min_p": 0.1}'],
    ],
)
def test_of_the_command_line(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(InputError, match="vLLM refuses min_p and logit_bias under speculative decoding"):
        command(tmp_path, arguments)


def test_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.15}')
    with pytest.raises(InputError, match=r"generation_config\.json: the model asks for min_p"):
        command(tmp_path, [])


@pytest.mark.parametrize("arguments", [["--generation-config", "vllm"], [OVERRIDE, '{"min_p": 0}']])
def test_of_the_model_and_set_aside(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.15}')
    command(tmp_path, arguments)


@pytest.mark.parametrize("text", ["{}", '{"min_p": 0}', '{"min_p": null}', "[]", "not JSON"])
def test_a_file_that_asks_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    command(tmp_path, [])


def test_without_speculation_it_is_nobodys_business(tmp_path: Path) -> None:
    command(tmp_path, [OVERRIDE, '{"min_p": 0.1}'], speculates=False)
