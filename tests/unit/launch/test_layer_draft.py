"""From a target's name to a draft directory, by config.json alone."""

import json
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.launch.layer_draft import layer_target, make_draft
from toolkit.proposers.layer_set import read

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def test_a_hub_name_is_enough(tmp_path: Path) -> None:
    made = make_draft(LLAMA_8B, tmp_path / "draft", skip="9-18")
    assert read(tmp_path / "draft") == made
    assert (made.target, made.layers) == (LLAMA_8B, (*range(9), *range(19, 32)))


def test_lab_is_short_for_the_lab_model(tmp_path: Path) -> None:
    assert make_draft("lab", tmp_path / "draft", exit_after=8).target == "lab/SmolLM2-135M-Instruct"


def test_a_draft_step_reads_the_kept_layers_and_the_head() -> None:
    # 3,540,096 weights a layer, a tied table of 49,152 x 576, a norm of 576: 134,515,008 read by a pass of the target.
    assert layer_target("lab").step_share(20) == pytest.approx((20 * 3_540_096 + 49_152 * 576 + 576) / 134_515_008)


def test_a_target_that_cannot_is_refused_with_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "config.json").write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8}))
    with pytest.raises(InputError, match="cannot draft with its own layers: a mixture of experts"):
        make_draft(str(tmp_path / "moe"), tmp_path / "draft", exit_after=1)
    assert not (tmp_path / "draft").exists()


def test_layers_that_are_not_there_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no layer 32"):
        make_draft(LLAMA_8B, tmp_path / "draft", keep="0-32")
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000])
def test_a_broken_config_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json"):
        layer_target(str(tmp_path))


def test_a_draft_is_no_target(tmp_path: Path) -> None:
    make_draft(LLAMA_8B, tmp_path / "draft", exit_after=8)
    with pytest.raises(InputError, match="is a draft of `layer-skip make`, which has no weights: name its target"):
        make_draft(str(tmp_path / "draft"), tmp_path / "again", exit_after=4)
