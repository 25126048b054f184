"""Vocabularies of target and draft model, by their config.json alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.engines.contract import Profile
from toolkit.engines.vocabulary import vocabularies_apart


def apart(folder: Path, target: dict[str, Any], draft: dict[str, Any], **speculation: Any) -> str:
    for name, config in (("t", target), ("d", draft)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    method = {"method": "draft_model", "num_speculative_tokens": 2, "draft": "d", **speculation}
    values = {"name": "p", "engine": "vllm", "target": {"model": "t"}, "speculation": method}
    return vocabularies_apart(Profile.model_validate(values), lambda name: str(folder / name))


def test_sizes_that_differ_are_named_with_their_models(tmp_path: Path) -> None:
    said = apart(tmp_path, {"vocab_size": 152064}, {"vocab_size": 151936})
    assert [part for part in ("152064", "151936", "target.model t", "its draft d") if part not in said] == []


def test_the_same_size_is_no_problem(tmp_path: Path) -> None:
    assert apart(tmp_path, {"vocab_size": 7}, {"vocab_size": 7}) == ""


def test_a_text_model_inside_has_the_size(tmp_path: Path) -> None:
    assert "has a vocabulary of 8 tokens" in apart(tmp_path, {"text_config": {"vocab_size": 8}}, {"vocab_size": 7})


@pytest.mark.parametrize("config", [{}, {"vocab_size": "7"}, {"text_config": None}, [], "x"])
def test_an_unknown_size_is_no_problem(tmp_path: Path, config: Any) -> None:
    assert apart(tmp_path, config, {"vocab_size": 7}) == ""


def test_vocabularies_that_are_translated_may_differ(tmp_path: Path) -> None:
    translated = {"options": {"use_heterogeneous_vocab": True}}
    assert apart(tmp_path, {"vocab_size": 8}, {"vocab_size": 7}, **translated) == ""


def test_a_head_has_a_vocabulary_of_its_own_by_design(tmp_path: Path) -> None:
    assert apart(tmp_path, {"vocab_size": 8}, {"vocab_size": 7}, method="eagle3") == ""
