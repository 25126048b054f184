"""The reference loop on the real lab model: the experiments, and the server that `toolkit launch` starts."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from harness import Toolkit
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lab.answer import Job, Written
from toolkit.lab.model import ensure_lab_model
from toolkit.lab.reference import Sampling
from toolkit.lab.tokenizer import FolderTokenizer
from toolkit.launch.server import free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def tokenizer() -> FolderTokenizer:
    return FolderTokenizer(ensure_lab_model())


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_text_shown_token_by_token_is_the_whole_text(tokenizer: FolderTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    written = Written(tokenizer, Job((1,), Sampling(), 10_000))
    assert "".join(written.add([token])[1] for token in [*ids, tokenizer.eos]) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["naïve café", "東京タワー", "👩‍🚀🚀", "Ελλάδα"])
def test_no_character_is_shown_in_halves(tokenizer: FolderTokenizer, text: str) -> None:
    written = Written(tokenizer, Job((1,), Sampling(), 10_000))
    shown = [written.add([token])[1] for token in [*tokenizer.encode(text), tokenizer.eos]]
    assert ("".join(shown), [piece for piece in shown if "\ufffd" in piece]) == (text, [])


def test_a_chat_is_written_in_the_models_own_template(tokenizer: FolderTokenizer) -> None:
    prompt = tokenizer._tokenizer.decode(tokenizer.chat([{"role": "user", "content": "Hi"}]))
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("drafter", ["lookup", "layers"])
def test_greedy_answers_are_plain_decodings(toolkit: Toolkit, drafter: str) -> None:
    done = toolkit.run("lab", "sweep-k", "--drafter", drafter, "--k", "2,5", "--n", "2", "--max-tokens", "24", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert [(one["same"], one["tokens_per_pass"] > 1) for one in found["lengths"]] == [(2, True)] * 2


def test_a_long_pass_costs_a_multiple_of_a_short_one(toolkit: Toolkit) -> None:
    found = json.loads(toolkit.run("lab", "verify-cost", "--repeats", "3", "--json").stdout)
    seconds = dict(found["passes"])
    assert seconds[64] > 2 * seconds[1]


def test_the_rule_keeps_the_models_distribution(toolkit: Toolkit) -> None:
    """A p-value below 1e-7 has that chance when the rule is exact."""
    found = json.loads(toolkit.run("lab", "distribution", "--draws", "5000", "--json").stdout)
    assert [one["p_value"] > 1e-7 for one in found] == [True] * 3


@pytest.fixture(scope="module")
def base_url(toolkit: Toolkit) -> Iterator[str]:
    port = str(free_port())
    done = toolkit.run("launch", "--profile", "lab-reference-lookup", "--port", port, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)["base_url"]
    toolkit.run("stop", port)


def ask(base_url: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "List three colours, then list the same three colours again."}]
    body = {"messages": messages, "max_tokens": 32, "temperature": 0, "return_token_ids": True, **body}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


class TestLaunched:
    def test_it_talks_sense(self, base_url: str) -> None:
        assert any(colour in ask(base_url)["choices"][0]["message"]["content"] for colour in ("Red", "Blue", "Green"))

    def test_it_drafts(self, base_url: str) -> None:
        assert ask(base_url)["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0

    def test_a_seed_gives_the_same_answer(self, base_url: str) -> None:
        asked = {"temperature": 1.0, "seed": 7}
        assert ask(base_url, **asked)["choices"] == ask(base_url, **asked)["choices"]

    def test_the_scores_of_an_answer_are_its_own_log_probabilities(self, base_url: str) -> None:
        answer = ask(base_url, logprobs=True)
        prompt, ids = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
        body = {"prompt": prompt + ids, "max_tokens": 1, "prompt_logprobs": 1}
        scored = httpx.post(f"{base_url}/completions", json=body, timeout=120, trust_env=False).json()
        rows = scored["choices"][0]["prompt_logprobs"][len(prompt) :]
        told = [one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]]
        scores = [row[str(token)]["logprob"] for row, token in zip(rows, ids, strict=True)]
        assert scores == pytest.approx(told, abs=1e-3)
