"""What is not alike is refused with its own message, and let through only under a label."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_run import write_run

from toolkit.analysis.compare import ALLOWABLE, compare
from toolkit.analysis.compare.checks import FEWEST_COMMON, listed
from toolkit.analysis.compare.output import before
from toolkit.analysis.run import Run, WorkloadInfo
from toolkit.errors import InputError

MakeContender = Callable[..., Run]
Fields = Mapping[str, Any]
GREEDY = {"temperature": 0.0, "max_tokens": 20}


def ids(name: str) -> Fields:
    return {"each": lambda i: {"prompt_ids_hash": f"{name}{i}" if i < 3 else f"{i}"}}


def prompts(*, common: int) -> Fields:
    return {"each": lambda i: {} if i < common else {"prompt_hash": f"other {i}"}}


UNLIKE: dict[str, tuple[str, Fields, Fields, str]] = {
    "depth": ("depth", {}, {"arm": {"num_speculative_tokens": 2}}, "the draft lengths differ: a K = 4, b K = 2"),
    "unknown depth": (
        "depth",
        {},
        {"arm": {"num_speculative_tokens": None}, "each": lambda _: {"steps": None, "drafted": None}},
        "the draft lengths differ: a K = 4, b K unknown",
    ),
    "depth by load": (
        "depth",
        {},
        {"arm": {"facts": {"schedule": "4 to 8, else 2"}}},
        "the draft lengths differ: a K = 4, b K = 4 by load 4 to 8, else 2",
    ),
    "prompts": (
        "prompts",
        {},
        prompts(common=FEWEST_COMMON - 1),
        "too few prompts were answered by all, 5 are needed: 4 at concurrency 4 (a 16, b 16)",
    ),
    "token ids": (
        "tokens",
        ids("ours"),
        ids("theirs"),
        "3 of 16 prompts had other token ids for a and b: their chat templates or tokenizers differ",
    ),
    "lengths in tokens": (
        "tokens",
        ids("ours"),
        {"each": lambda i: {"prompt_tokens": 101 if i else 100}},
        "15 of 16 prompts were of other lengths in tokens for a and b",
    ),
    "sampling": (
        "sampling",
        {"sampling": GREEDY},
        {"sampling": {**GREEDY, "max_tokens": 32}},
        "max_tokens differs: a 20, b 32",
    ),
    "a sampling field of one": (
        "sampling",
        {"sampling": GREEDY},
        {"sampling": {**GREEDY, "top_k": 1}},
        "top_k differs: a None, b 1",
    ),
    "temperature": (
        "temperature",
        {"sampling": {**GREEDY, "temperature": 0.7}},
        {"sampling": {**GREEDY, "temperature": 0.7}},
        "the temperature is not 0: a 0.7, b 0.7; acceptance depends on it",
    ),
    "unknown temperature": (
        "temperature",
        {"sampling": {"max_tokens": 20}},
        {"sampling": {"max_tokens": 20}},
        "the temperature is not 0: a None, b None",
    ),
    "target by name": (
        "target",
        {"arm": {"model": "org/eight"}},
        {"arm": {"model": "org/seventy"}},
        "the target models differ: a org/eight, b org/seventy",
    ),
    "target by its files": (
        "target",
        {"arm": {"model": "org/eight", "model_identity": "sha256:1"}},
        {"arm": {"model": "org/eight", "model_identity": "sha256:2"}},
        "the target models differ: a org/eight sha256:1, b org/eight sha256:2",
    ),
}
each_unlike = pytest.mark.parametrize(("kind", "ours", "theirs", "said"), UNLIKE.values(), ids=UNLIKE)


def sglang(steps: int, tokens: int, topk: int = 1) -> Fields:
    flags = {"num-steps": steps, "num-draft-tokens": tokens, "eagle-topk": topk}
    argv = [f"--speculative-{name}={value}" for name, value in flags.items()]
    return {"arm": {"engine": "sglang", "method": "eagle3", "num_speculative_tokens": None, "argv": argv}}


def refusal(runs: list[Run], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        compare(runs, **options)
    return str(caught.value)


class TestUnlike:
    def test_every_kind_is_tried(self) -> None:
        assert {kind for kind, *_ in UNLIKE.values()} == set(ALLOWABLE)

    @each_unlike
    def test_it_is_refused_naming_the_arms_and_their_values(
        self, contender: MakeContender, kind: str, ours: Fields, theirs: Fields, said: str
    ) -> None:
        assert f"\n  {kind}: {said}" in refusal([contender("a", **ours), contender("b", **theirs)])

    @each_unlike
    def test_the_refusal_names_what_would_let_it_through(
        self, contender: MakeContender, kind: str, ours: Fields, theirs: Fields, said: str
    ) -> None:
        kinds = refusal([contender("a", **ours), contender("b", **theirs)]).rsplit("--allow ", 1)[1].rstrip(".")
        assert kind in kinds.split(",")

    @each_unlike
    def test_allowed_it_is_said_before_any_number(
        self, contender: MakeContender, kind: str, ours: Fields, theirs: Fields, said: str
    ) -> None:
        found = compare([contender("a", **ours), contender("b", **theirs)], allow=list(ALLOWABLE))
        assert any(text.startswith(f"allowed: {said}") for text in before(found))

    @each_unlike
    def test_every_other_kind_allowed_does_not_let_it_through(
        self, contender: MakeContender, kind: str, ours: Fields, theirs: Fields, said: str
    ) -> None:
        others = [one for one in ALLOWABLE if one != kind]
        assert said in refusal([contender("a", **ours), contender("b", **theirs)], allow=others)

    def test_all_that_differs_is_said_at_once(self, contender: MakeContender) -> None:
        other = contender("b", sampling={**GREEDY, "max_tokens": 32}, arm={"model": "x", "num_speculative_tokens": 2})
        assert refusal([contender("a"), other]).endswith("--allow target,sampling,depth.")

    def test_alike_nothing_is_labelled(self, contender: MakeContender) -> None:
        assert compare([contender("a"), contender("b")], allow=list(ALLOWABLE)).labels == []

    def test_one_model_under_two_names_is_alike_by_its_files(self, contender: MakeContender) -> None:
        runs = [contender(name, arm={"model": name, "model_identity": "sha256:1"}) for name in ("a", "b")]
        assert compare(runs).labels == []

    def test_prompts_in_common_may_be_just_enough(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a"), contender("b", **prompts(common=FEWEST_COMMON))]).levels
        assert (level.prompts, level.paired) == (FEWEST_COMMON, True)

    def test_prompts_that_differ_are_not_paired(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a"), contender("b", **prompts(common=0))], allow=["prompts"]).levels
        assert (level.paired, [row.counts.requests for row in level.rows]) == (False, [16, 16])

    def test_without_token_ids_of_one_the_lengths_are_compared(self, contender: MakeContender) -> None:
        assert compare([contender("a", **ids("ours")), contender("b")]).labels == []

    def test_a_length_that_is_not_told_is_not_another_length(self, contender: MakeContender) -> None:
        assert compare([contender("a"), contender("b", lambda _: {"prompt_tokens": None})]).labels == []

    def test_an_unknown_kind_is_refused_with_those_that_are_known(self, contender: MakeContender) -> None:
        said = refusal([contender("a"), contender("b")], allow=["nonsense"])
        assert said.startswith("--allow nonsense: one or more of depth (draft lengths that differ); ")


class TestDepthOfSGLang:
    """sglang#8228: its draft tokens hold the root, so a chain of D draft tokens is K = D - 1."""

    def test_draft_tokens_taken_for_k_are_refused_with_the_hint(self, contender: MakeContender) -> None:
        runs = [contender("vllm", arm={"num_speculative_tokens": 2}), contender("sglang", **sglang(2, 2))]
        assert (
            "depth: the draft lengths differ: vllm K = 2, sglang K = 1 (SGLang's draft tokens hold the root: K is one "
            "less)." in refusal(runs)
        )

    def test_the_hint_is_not_given_without_sglang(self, contender: MakeContender) -> None:
        assert "root" not in refusal([contender("a"), contender("b", arm={"num_speculative_tokens": 2})])

    def test_one_draft_token_more_is_alike(self, contender: MakeContender) -> None:
        runs = [contender("vllm", arm={"num_speculative_tokens": 2}), contender("sglang", **sglang(2, 3))]
        assert compare(runs).depths["sglang"].k == 2

    def test_a_tree_is_not_alike_to_a_chain_of_its_depth(self, contender: MakeContender) -> None:
        runs = [contender("vllm", arm={"num_speculative_tokens": 2}), contender("sglang", **sglang(2, 9, topk=4))]
        assert "vllm K = 2, sglang K = 2 in a tree of 8 tokens" in refusal(runs)

    def test_what_its_server_says_counts_before_its_arguments(self, contender: MakeContender) -> None:
        facts = {"speculative_num_steps": "4", "speculative_num_draft_tokens": "5"}
        one = {"arm": {**sglang(2, 3)["arm"], "facts": facts}}
        assert compare([contender("a"), contender("b", **one)]).depths["b"].k == 4


class TestNeverCompared:
    """Whatever is allowed."""

    SYNTHETIC = (
        {"env": {"SGLANG_SIMULATE_ACC_LEN": "3"}},
        {"argv": ["vllm", "serve", "--speculative-config", '{"rejection_sample_method": "synthetic"}']},
    )

    @pytest.mark.parametrize("arm", SYNTHETIC, ids=["sglang", "vllm"])
    def test_drafts_accepted_by_lot(self, contender: MakeContender, arm: Fields) -> None:
        said = refusal([contender("a"), contender("b", arm=arm)], allow=list(ALLOWABLE))
        assert "b ran with synthetic acceptance: its drafts were accepted by lot" in said

    def test_random_prompts(self, contender: MakeContender) -> None:
        of = WorkloadInfo(name="random", digest="d" * 64, seed=0, size=None, random=True)
        run = contender("b")
        info = run.info.model_copy(update={"workload": of})
        (run.folder / "run.json").write_text(info.model_dump_json(by_alias=True))
        said = refusal([contender("a"), Run(run.folder)], allow=list(ALLOWABLE))
        assert said.startswith(f"{run.folder}: random prompts: for load only")

    def test_levels_of_which_none_is_common(self, contender: MakeContender) -> None:
        said = refusal([contender("a", level=4), contender("b", level=8)], allow=list(ALLOWABLE))
        assert said == "no concurrency was measured of all: a at 4; b at 8. Sweep them at the same --concurrency."

    def test_levels_of_which_none_is_common_in_one_run(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", {("a", 4): [(100.0, None)], ("b", 8): [(100.0, None)]}, baseline=None)
        assert refusal([run]).startswith("no concurrency was measured of all: a at 4; b at 8.")

    def test_a_level_that_was_not_measured(self, contender: MakeContender) -> None:
        said = refusal([contender("a"), contender("b")], concurrency=16)
        assert said == "--concurrency 16 was not measured of all: a at 4; b at 4."

    def test_a_run_with_itself(self, contender: MakeContender) -> None:
        run = contender("a")
        assert refusal([run, Run(run.folder)]) == f"{run.folder}: this Run is named twice."

    def test_one_contender(self, contender: MakeContender) -> None:
        said = refusal([contender("a"), contender("b", arm={"method": "none", "speculates": False})])
        assert "arms that speculate: 1; a comparison takes two" in said

    def test_an_arm_that_no_run_has(self, contender: MakeContender) -> None:
        assert refusal([contender("a"), contender("b")], arms=["c"]) == "--arm c: these Runs have a, b."


class TestWho:
    def test_an_arm_that_does_not_speculate_is_left_out_and_named(self, contender: MakeContender) -> None:
        runs = [contender("a"), contender("b"), contender("c", arm={"method": "none", "speculates": False})]
        found = compare(runs)
        assert ([one.name for one in found.contenders], found.left_out) == (["a", "b"], ["c"])

    def test_only_the_named_arms_are_checked(self, contender: MakeContender) -> None:
        runs = [contender("a"), contender("b"), contender("c", arm={"num_speculative_tokens": 2})]
        assert [one.name for one in compare(runs, arms=["a", "b"]).contenders] == ["a", "b"]


class TestListed:
    def test_each_name_has_its_value(self) -> None:
        assert listed({"a": 4, "b": 4, "c": 2}) == "a 4, b 4, c 2"

    def test_of_many_those_of_one_value_stand_together(self) -> None:
        assert listed({"a": 4, "b": 2, "c": 4, "d": 4}) == "a, c, d: 4; b: 2"

    def test_many_that_all_differ_stand_alone(self) -> None:
        assert listed({"a": 1, "b": 2, "c": 3, "d": 4}) == "a 1, b 2, c 3, d 4"


def test_seeds_that_differ_are_told_where_no_prompt_is_shared(contender: Callable[..., Run]) -> None:
    runs = []
    for name, seed in (("a", 5), ("b", 6)):
        run = contender(name, lambda i, seed=seed: {"prompt_hash": f"{seed}{i:015d}"})
        file = run.folder / "run.json"
        info = run.info.model_copy(update={"workload": run.info.workload.model_copy(update={"seed": seed})})
        file.write_text(info.model_dump_json(by_alias=True))
        runs.append(Run(run.folder))
    assert "their seeds differ: a 5, b 6" in refusal(runs)


def test_a_level_of_one_contender_alone_is_said_to_be_left_out(
    contender: Callable[..., Run], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    both = make_run(tmp_path / "both", {("b", 4): [(100.0, None)], ("b", 8): [(100.0, None)]}, baseline=None)
    found = compare([contender("a"), both])
    assert found.caveats[0] == "concurrency 8 is left out: a has no finished cell there"
    asked = compare([contender("c"), both], concurrency=4)
    assert not any("left out" in said for said in asked.caveats)
