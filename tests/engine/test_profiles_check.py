"""`toolkit profiles check` asks the real vLLM."""

import json

import pytest
from harness import Toolkit

from toolkit.launch.profile import load_profile, shipped_profiles

pytestmark = pytest.mark.engine

# Of engines that `make venv` does not install: asked where they are.
ELSEWHERE = {name for name in shipped_profiles() if load_profile(name).engine in ("sglang", "llamacpp")}


def test_every_shipped_profile_passes(toolkit: Toolkit) -> None:
    done = toolkit.run("profiles", "check", "--json")
    told = json.loads(done.stdout)
    bad = {one["profile"]: one["problems"] for one in told if not one["ok"] and one["profile"] not in ELSEWHERE}
    assert (done.returncode, bad) == (0, {})


def test_profiles_of_engines_that_are_not_here_are_passed_over_or_pass(toolkit: Toolkit) -> None:
    told = json.loads(toolkit.run("profiles", "check", "--json").stdout)
    assert {one["profile"] for one in told if one["ok"] is False} == set()
    assert {one["profile"] for one in told} >= ELSEWHERE


@pytest.mark.parametrize(
    ("profile", "changes", "said"),
    [
        pytest.param(  # the Qwen2.5 pair: vocabulary 152064 against 151936
            "draft-qwen3-0.6b",
            ["target.model=Qwen/Qwen2.5-7B-Instruct", "speculation.draft=Qwen/Qwen2.5-0.5B-Instruct"],
            ["152064", "151936", "use_heterogeneous_vocab"],
            id="vocabularies differ, with the way round",
        ),
        pytest.param(
            "eagle3-8b", ["target.model=Qwen/Qwen2.5-7B-Instruct"], ["4096", "3584"], id="a head of another width"
        ),
        pytest.param("baseline-8b", ["engine_args=[--no-such-flag]"], ["--no-such-flag"], id="an unknown flag"),
        pytest.param("ngram-8b", ["speculation.options.foo=1"], ["foo"], id="an unknown speculative option"),
        pytest.param(
            "draft-1b", ["limits.max_model_len=999999"], ["999999", "131072"], id="longer than the model's positions"
        ),
    ],
)
def test_vllm_itself_refuses(toolkit: Toolkit, profile: str, changes: list[str], said: list[str]) -> None:
    done = toolkit.run("profiles", "check", profile, *[part for change in changes for part in ("--set", change)])
    assert done.returncode == 1
    assert [word for word in said if word not in done.stdout] == []


def test_the_way_round_is_accepted(toolkit: Toolkit) -> None:
    changes = ["target.model=Qwen/Qwen2.5-7B-Instruct", "speculation.draft=Qwen/Qwen2.5-0.5B-Instruct"]
    changes.append("speculation.options.use_heterogeneous_vocab=true")
    done = toolkit.run(
        "profiles", "check", "draft-qwen3-0.6b", *[part for change in changes for part in ("--set", change)]
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "ok")
