"""`profiles check --engine sglang` asks the real ServerArgs of SGLang, in the Python of `make lab-sglang`."""

import json

import pytest
from harness import Toolkit

from toolkit.launch.check import check_profile

pytestmark = pytest.mark.engine

ACCEPTED = [
    *("baseline-8b", "draft-1b", "ngram-8b", "baseline-qwen3-8b", "draft-qwen3-0.6b", "ngram-qwen3-8b"),
    *("lab-baseline", "lab-draft", "lab-ngram"),
]
HEAD = "speculation.draft=yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


def test_sglang_accepts_what_its_words_allow(toolkit: Toolkit) -> None:
    done = toolkit.run("profiles", "check", "--engine", "sglang", "--json", *ACCEPTED)
    assert json.loads(done.stdout) == [{"profile": name, "ok": True, "problems": []} for name in ACCEPTED]


@pytest.mark.parametrize(
    ("profile", "changes", "said"),
    [
        pytest.param(
            "draft-qwen3-0.6b",
            ["target.model=Qwen/Qwen2.5-7B-Instruct", "speculation.draft=Qwen/Qwen2.5-0.5B-Instruct"],
            ["152064", "151936"],
            id="vocabularies differ",
        ),
        pytest.param(
            "eagle3-8b",
            [HEAD, "target.model=Qwen/Qwen2.5-7B-Instruct", "limits.max_model_len=2048"],
            ["4096", "3584"],
            id="a head of another width",
        ),
        pytest.param("eagle3-8b", [HEAD], ["2048 positions", "LONGER_CONTEXT_LEN"], id="a head made for less context"),
        pytest.param("baseline-8b", ["engine_args=[--no-such-flag]"], ["--no-such-flag"], id="an unknown flag"),
        pytest.param("ngram-8b", ["speculation.options.foo=1"], ["--speculative-foo"], id="an unknown option"),
        pytest.param(
            "ngram-8b",
            ["speculation.options.ngram_match_type=LONGEST"],
            ["LONGEST", "PROB"],
            id="an option with another value",
        ),
        pytest.param(
            "draft-1b", ["limits.max_model_len=999999"], ["999999", "131072"], id="longer than the model's positions"
        ),
        pytest.param(
            "draft-1b",
            ["speculation.options.use_rejection_sampling=true"],
            ["only supported for EAGLE"],
            id="found by resolving, not by parsing",
        ),
        pytest.param("lookup-8b", [], ["our prompt lookup is a proposer for vLLM"], id="a method that it has not"),
    ],
)
def test_sglang_itself_refuses(profile: str, changes: list[str], said: list[str]) -> None:
    problems = " ".join(check_profile(profile, changes, "sglang"))
    assert [word for word in said if word not in problems] == []


def test_the_way_round_a_short_head_is_accepted() -> None:
    changes = [HEAD, 'environment.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1"']
    assert check_profile("eagle3-8b", changes, "sglang") == []
