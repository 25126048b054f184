"""Cases 5, 6 and 10 as `toolkit compare` meets them: depths that differ, one definition, random prompts."""

from pathlib import Path
from typing import Any

import pytest
from made_run import write_run

from toolkit.analysis.compare.comparison import compare
from toolkit.analysis.compare.output import formulas
from toolkit.analysis.run import RANDOM, Run, WorkloadInfo
from toolkit.errors import InputError


def run_of(folder: Path, name: str, **fields: Any) -> Run:
    """One arm at 4, without a baseline: 16 answers of 20 tokens in 6 drafted steps that kept 12 of 24."""
    return write_run(folder / name, {(name, 4): [(100.0, None)]}, baseline=None, **fields)


def sglang(steps: int, tokens: int) -> dict[str, Any]:
    words = {"steps": steps, "draft-tokens": tokens}
    argv = [part for word, value in words.items() for part in (f"--speculative-num-{word}", str(value))]
    return {"engine": "sglang", "method": "eagle3", "argv": argv, "num_speculative_tokens": None}


VLLM_K_2 = {"method": "eagle3", "num_speculative_tokens": 2}


class TestCase05DepthsThatDiffer:
    """sglang#8228: steps 2 and draft tokens 2 against vLLM's K = 2."""

    def test_they_are_refused_saying_that_sglangs_count_holds_the_root(self, tmp_path: Path) -> None:
        runs = [run_of(tmp_path, "vllm", arm=VLLM_K_2), run_of(tmp_path, "sglang", arm=sglang(2, 2))]
        with pytest.raises(InputError, match=r"depth: the draft lengths differ.*SGLang's draft tokens hold the root"):
            compare(runs)

    def test_allowed_they_are_labelled(self, tmp_path: Path) -> None:
        runs = [run_of(tmp_path, "vllm", arm=VLLM_K_2), run_of(tmp_path, "sglang", arm=sglang(2, 2))]
        assert any("the draft lengths differ" in label for label in compare(runs, allow=["depth"]).labels)

    def test_draft_tokens_3_are_k_2(self, tmp_path: Path) -> None:
        runs = [run_of(tmp_path, "vllm", arm=VLLM_K_2), run_of(tmp_path, "sglang", arm=sglang(2, 3))]
        assert compare(runs).labels == []


class TestCase06OneDefinition:
    """vllm#42508: two tools disagree on the acceptance of the same server."""

    def test_both_are_recomputed_from_raw_counts(self, tmp_path: Path) -> None:
        (level,) = compare([run_of(tmp_path, "one"), run_of(tmp_path, "other")]).levels
        found = [(row.estimates["draft_acceptance_rate"], row.estimates["acceptance_length"]) for row in level.rows]
        assert [(rate.value, length.value) for rate, length in found] == [(0.5, 3.0)] * 2

    @pytest.mark.parametrize("formula", ["accepted / drafted", "1 + accepted / steps"])
    def test_the_formula_is_printed(self, formula: str) -> None:
        assert any(formula in line for line in formulas())


class TestCase10RandomTokens:
    """vllm#33497, vllm#52536."""

    def test_nothing_is_compared_on_them(self, tmp_path: Path) -> None:
        of = WorkloadInfo(name="copy-code", digest="d" * 64, seed=0, size=None, random=True)
        path = run_of(tmp_path, "one").folder / "run.json"
        info = Run(path.parent).info.model_copy(update={"workload": of})
        path.write_text(info.model_dump_json(by_alias=True))
        with pytest.raises(InputError, match=RANDOM):
            compare([Run(path.parent), run_of(tmp_path, "other")])
