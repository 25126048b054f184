"""The reference loop behind a real socket: the same answers, one at a time, in vLLM's dialect."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from toolkit.analysis.client import Answer, Client
from toolkit.analysis.client import Sampling as Asked
from toolkit.analysis.endpoint import find_endpoint
from toolkit.analysis.workload import Prompt
from toolkit.engines.contract import Counters
from toolkit.engines.vllm import VLLM
from toolkit.errors import InputError
from toolkit.lab.faults import FAULTS
from toolkit.lab.reference import Drafter, LookupDrafter, Model, ModelDrafter, Sampling, generate
from toolkit.lab.serve import LabServer, bound
from toolkit.lab.toy import ToyTokenizer, toy_draft, toy_target
from toolkit.sampling import FloatArray

TOY = ToyTokenizer()
PROMPT = "The large model"
CHAT = [{"role": "user", "content": PROMPT}]
SAMPLED = {"prompt": PROMPT, "max_tokens": 60, "temperature": 1.0, "seed": 5, "return_token_ids": True}
GREEDY = {**SAMPLED, "temperature": 0}
ROUTES = [("completions", {"prompt": PROMPT}), ("chat/completions", {"messages": CHAT})]
HTTP = httpx.Client(timeout=30, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "none": lambda: None,
    "bigram": lambda: ModelDrafter(toy_draft("bigram")),
    "unigram": lambda: ModelDrafter(toy_draft("unigram")),
    "lookup": lambda: LookupDrafter(TOY.size),
}


def lab_server(drafter: str = "bigram", **changes: Any) -> LabServer:
    return LabServer(toy_target(), TOY, DRAFTERS[drafter](), **{"k": 4, **changes})


@pytest.fixture(scope="module")
def server() -> Iterator[LabServer]:
    with lab_server() as running:
        yield running


def post(server: LabServer, route: str, body: Any) -> httpx.Response:
    return HTTP.post(f"{server.base_url}/{route}", json=body)


def complete(server: LabServer, **body: Any) -> dict[str, Any]:
    answer = post(server, "completions", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def chat(server: LabServer, **body: Any) -> dict[str, Any]:
    answer = post(server, "chat/completions", {"messages": CHAT, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def streamed(server: LabServer, route: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ends as streams do."""
    body = {"stream": True, "stream_options": {"include_usage": True}, **body}
    *events, last = [line for line in post(server, route, body).text.split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def token_ids(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def counters(server: LabServer) -> Counters:
    page = HTTP.get(f"{server.base_url.removesuffix('/v1')}/metrics").text
    return VLLM().counters(page)


class TestAnswers:
    @pytest.mark.parametrize("drafter", DRAFTERS)
    def test_greedy_is_plain_greedy(self, drafter: str) -> None:
        steps = generate(toy_target(), TOY.encode(PROMPT), Sampling(), np.random.default_rng(0), 60)
        with lab_server(drafter) as running:
            assert token_ids(complete(running, **GREEDY)) == [token for step in steps for token in step.tokens]

    def test_the_same_seed_gives_the_same_answer(self, server: LabServer) -> None:
        assert token_ids(complete(server, **SAMPLED)) == token_ids(complete(server, **SAMPLED))

    def test_another_seed_gives_another_answer(self, server: LabServer) -> None:
        assert token_ids(complete(server, **SAMPLED)) != token_ids(complete(server, **{**SAMPLED, "seed": 6}))

    def test_without_a_seed_no_two_answers_need_be_the_same(self, server: LabServer) -> None:
        asked = {**SAMPLED, "seed": None}
        assert token_ids(complete(server, **asked)) != token_ids(complete(server, **asked))

    def test_a_prompt_of_token_ids_is_that_prompt(self, server: LabServer) -> None:
        assert token_ids(complete(server, **{**GREEDY, "prompt": TOY.encode(PROMPT)})) == token_ids(
            complete(server, **GREEDY)
        )

    def test_text_and_token_ids_are_the_same_answer(self, server: LabServer) -> None:
        answer = complete(server, **SAMPLED)
        assert answer["choices"][0]["text"] == TOY.decode(token_ids(answer))

    def test_usage_counts_the_tokens(self, server: LabServer) -> None:
        answer = complete(server, **SAMPLED)
        lengths = (len(PROMPT), len(token_ids(answer)))
        assert answer["usage"] == {
            "prompt_tokens": lengths[0],
            "completion_tokens": lengths[1],
            "total_tokens": sum(lengths),
        }

    def test_a_stop_string_ends_the_answer(self, server: LabServer) -> None:
        stop = "e"
        whole = complete(server, **GREEDY)["choices"][0]["text"]
        choice = complete(server, **GREEDY, stop=stop)["choices"][0]
        told = (choice["text"], choice["finish_reason"], choice["stop_reason"])
        assert told == (whole.partition(stop)[0], "stop", stop)

    def test_a_chat_answers_as_the_assistant(self, server: LabServer) -> None:
        message = chat(server, max_tokens=5, temperature=0)["choices"][0]["message"]
        assert (message["role"], len(message["content"])) == ("assistant", 5)

    @pytest.mark.parametrize(("route", "body"), ROUTES)
    def test_where_the_prompts_token_ids_stand(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        answer = post(server, route, {**body, "max_tokens": 1, "return_token_ids": True}).json()
        place = answer if route.startswith("chat") else answer["choices"][0]
        assert TOY.decode(place["prompt_token_ids"]).strip() == PROMPT

    def test_without_being_asked_no_ids_are_told(self, server: LabServer) -> None:
        answer = chat(server, max_tokens=1)
        assert [key for key in ("prompt_token_ids", "token_ids") if key in answer or key in answer["choices"][0]] == []


STREAMED = {"max_tokens": 50, "temperature": 1.0, "seed": 2, "return_token_ids": True}


@pytest.mark.parametrize(("route", "body"), ROUTES)
class TestStream:
    def test_the_chunks_add_up_to_the_answer(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        whole = post(server, route, {**body, **STREAMED}).json()["choices"][0]
        choices = [one["choices"][0] for one in streamed(server, route, **body, **STREAMED) if one["choices"]]
        text = "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in choices)
        ids = [token for one in choices for token in one.get("token_ids", [])]
        assert (text, ids) == (whole.get("text") or whole["message"]["content"], whole["token_ids"])

    def test_a_chunk_is_a_step(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        *chunks, last = streamed(server, route, **body, **STREAMED)
        kept = last["metrics"]["speculative_decoding"]["per_step_accepted"]
        sizes = [len(ids) for one in chunks if (ids := one["choices"][0].get("token_ids"))]
        assert sizes[:-1] == [1, *(accepted + 1 for accepted in kept[:-1])]

    def test_only_the_last_choice_is_finished(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        choices = [one["choices"][0] for one in streamed(server, route, **body, **STREAMED) if one["choices"]]
        assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + ["length"]

    def test_usage_comes_last(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        told = ["usage" in one for one in streamed(server, route, **body, **STREAMED)]
        assert told == [False] * (len(told) - 1) + [True]

    def test_usage_comes_only_when_asked_for(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        chunks = streamed(server, route, **body, **STREAMED, stream_options=None)
        assert [one for one in chunks if "usage" in one] == []

    def test_the_prompts_ids_come_first(self, server: LabServer, route: str, body: dict[str, Any]) -> None:
        chunks = streamed(server, route, **body, **STREAMED)
        places = [[one, *one["choices"]] for one in chunks]
        found = ["prompt_token_ids" in (place[0] if route.startswith("chat") else place[-1]) for place in places]
        assert found == [True] + [False] * (len(chunks) - 1)


class TestSpeculation:
    def test_the_counts_are_those_of_the_steps(self, server: LabServer) -> None:
        found = complete(server, **SAMPLED)["metrics"]["speculative_decoding"]
        drafter = ModelDrafter(toy_draft())
        rng = np.random.default_rng(5)
        steps = [*generate(toy_target(), TOY.encode(PROMPT), Sampling(1.0), rng, 60, drafter, 4)][1:]
        assert found == {
            "num_spec_steps": len(steps),
            "num_draft_tokens": 4 * len(steps),
            "num_accepted_draft_tokens": sum(step.accepted for step in steps),
            "num_spec_tokens": 4,
            "mean_acceptance_length": 1 + sum(step.accepted for step in steps) / len(steps),
            "draft_acceptance_rate": sum(step.accepted for step in steps) / (4 * len(steps)),
            "acceptance_histogram": [sum(step.accepted == kept for step in steps) for kept in range(5)],
            "per_step_accepted": [step.accepted for step in steps],
            "per_step_drafted": [4] * len(steps),
        }

    def test_steps_without_a_draft_are_no_part_of_them(self) -> None:
        with lab_server("lookup") as running:
            *chunks, last = streamed(running, "completions", **{**SAMPLED, "prompt": "Xq"})
        found = last["metrics"]["speculative_decoding"]
        assert 0 not in found["per_step_drafted"]
        assert len(found["per_step_drafted"]) == found["num_spec_steps"] < len(chunks) - 1

    def test_an_answer_without_a_draft_tells_zeros(self, server: LabServer) -> None:
        found = complete(server, **{**SAMPLED, "max_tokens": 1})["metrics"]["speculative_decoding"]
        told = (found["num_spec_steps"], found["mean_acceptance_length"], "per_step_accepted" in found)
        assert told == (0, 1.0, False)

    def test_a_server_that_does_not_speculate_tells_none(self) -> None:
        with lab_server("none") as running:
            assert "metrics" not in complete(running, **SAMPLED)


def log_softmax(logits: FloatArray) -> FloatArray:
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))


class TestLogProbabilities:
    def test_the_prompts_rows_are_the_toys(self, server: LabServer) -> None:
        prompt = TOY.encode("It could check five words")
        body = {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 20}
        first, *rows = complete(server, **body)["choices"][0]["prompt_logprobs"]
        expected = log_softmax(toy_target().extend(prompt)[:-1])
        told = [[row.get(str(token), {}).get("logprob", np.nan) for token in range(TOY.size)] for row in rows]
        there = ~np.isnan(told)
        assert first is None
        assert np.array(told)[there] == pytest.approx(expected[there])

    def test_a_row_holds_the_likeliest_and_the_prompts_own(self, server: LabServer) -> None:
        prompt = TOY.encode("It could Qheck")
        rows = complete(server, prompt=prompt, max_tokens=1, prompt_logprobs=3)["choices"][0]["prompt_logprobs"][1:]
        best = np.argsort(-toy_target().extend(prompt)[:-1], axis=-1, kind="stable")[:, :3]
        assert [{int(key) for key in row} for row in rows] == [
            {token, *map(int, top)} for token, top in zip(prompt[1:], best, strict=True)
        ]

    def test_a_row_says_rank_and_text(self, server: LabServer) -> None:
        prompt = TOY.encode("the ")
        row = complete(server, prompt=prompt, max_tokens=1, prompt_logprobs=2)["choices"][0]["prompt_logprobs"][-1]
        told = row[str(prompt[-1])]
        assert (told["rank"], told["decoded_token"]) == (1, " ")

    def test_a_completions_tokens_have_theirs(self, server: LabServer) -> None:
        choice = complete(server, **SAMPLED, logprobs=2)["choices"][0]
        rows = log_softmax(toy_target().extend(TOY.encode(PROMPT) + choice["token_ids"]))[len(PROMPT) - 1 : -1]
        expected = [row[token] for row, token in zip(rows, choice["token_ids"], strict=True)]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected)

    def test_a_chats_tokens_have_theirs_by_token_id(self, server: LabServer) -> None:
        asked = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True, "return_token_ids": True}
        choice = chat(server, max_tokens=20, seed=1, **asked)["choices"][0]
        told = [one["token"] for one in choice["logprobs"]["content"]]
        assert told == [f"token_id:{token}" for token in choice["token_ids"]]

    def test_a_chats_likeliest_come_first(self, server: LabServer) -> None:
        choice = chat(server, max_tokens=20, seed=1, logprobs=True, top_logprobs=4)["choices"][0]
        told = [[entry["logprob"] for entry in one["top_logprobs"]] for one in choice["logprobs"]["content"]]
        assert [(len(row), row == sorted(row, reverse=True)) for row in told] == [(4, True)] * 20

    def test_streamed_they_are_those_of_the_chunk(self, server: LabServer) -> None:
        asked = {"messages": CHAT, "max_tokens": 20, "logprobs": True, "return_token_ids": True}
        chunks = streamed(server, "chat/completions", **asked)
        choices = [one["choices"][0] for one in chunks[1:] if one["choices"]]
        assert [len(one["logprobs"]["content"]) for one in choices] == [len(one["token_ids"]) for one in choices]


class Gated:
    """The toy's target, which waits at a gate before each pass; `passes` counts them."""

    def __init__(self) -> None:
        self._model: Model = toy_target()
        self.size = self._model.size
        self.gate = threading.Semaphore(0)
        self.passes = 0

    @property
    def length(self) -> int:
        return self._model.length

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        assert self.gate.acquire(timeout=20)
        self.passes += 1
        return self._model.extend(tokens)

    def crop(self, length: int) -> None:
        self._model.crop(length)

    def open(self) -> None:
        self.gate.release(100_000)


@pytest.fixture
def gated() -> Iterator[tuple[LabServer, Gated]]:
    target = Gated()
    with LabServer(target, TOY) as running:
        yield running, target
        target.open()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def is_running(server: LabServer, running: int, waiting: int) -> Callable[[], bool]:
    def holds() -> bool:
        found = counters(server)
        return (found.running, found.waiting) == (running, waiting)

    return holds


class TestQueue:
    def test_one_runs_and_the_others_wait(self, gated: tuple[LabServer, Gated]) -> None:
        running, target = gated
        with ThreadPoolExecutor(3) as pool:
            for _ in range(3):
                pool.submit(complete, running, prompt="a", max_tokens=3)
            until(is_running(running, 1, 2))
            target.open()
        assert is_running(running, 0, 0)()

    def test_the_passes_of_two_requests_never_mix(self, gated: tuple[LabServer, Gated]) -> None:
        running, target = gated
        target.open()
        alone = complete(running, **{**GREEDY, "seed": None})
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(complete, running, **{**GREEDY, "seed": None}) for _ in range(4)]
        assert {tuple(token_ids(one.result())) for one in answers} == {tuple(token_ids(alone))}

    def test_they_are_served_in_their_order(self, gated: tuple[LabServer, Gated]) -> None:
        running, target = gated
        done: list[int] = []
        with ThreadPoolExecutor(4) as pool:
            for number in range(4):
                asked: Future[Any] = pool.submit(complete, running, prompt="a", max_tokens=2)
                asked.add_done_callback(lambda _, number=number: done.append(number))  # type: ignore[misc]
                until(is_running(running, 1, number))
            for number in range(4):
                target.gate.release(2)
                until(lambda number=number: len(done) > number)  # type: ignore[misc]
        assert done == [0, 1, 2, 3]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_leaves_ends_its_answer(self, gated: tuple[LabServer, Gated], stream: bool) -> None:
        running, target = gated
        leaver = _leave(running, {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": stream})
        until(is_running(running, 1, 0))
        target.gate.release(3)
        until(lambda: target.passes == 3)
        leaver.close()
        target.gate.release(1)  # the pass that runs as it leaves
        until(is_running(running, 0, 0))
        assert target.passes <= 4

    def test_one_that_leaves_the_queue_is_never_served(self, gated: tuple[LabServer, Gated]) -> None:
        running, target = gated
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(complete, running, prompt="a", max_tokens=2)
            until(is_running(running, 1, 0))
            leaver = _leave(running, {"prompt": "a", "max_tokens": 1000, "ignore_eos": True})
            until(is_running(running, 1, 1))
            leaver.close()
            until(is_running(running, 1, 0))
            target.open()
            first.result()
        assert (target.passes, is_running(running, 0, 0)()) == (2, True)

    def test_the_next_is_served_after_one_left(self, gated: tuple[LabServer, Gated]) -> None:
        running, target = gated
        leaver = _leave(running, {**GREEDY, "stream": True})
        target.gate.release(2)
        until(lambda: target.passes == 2)
        leaver.close()
        target.open()
        plain = generate(toy_target(), TOY.encode(PROMPT), Sampling(), np.random.default_rng(0), 60)
        assert token_ids(complete(running, **GREEDY)) == [token for step in plain for token in step.tokens]


def _leave(server: LabServer, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody reads: close it to leave."""
    port = int(server.base_url.split(":")[2].partition("/")[0])
    data = json.dumps(body).encode()
    leaver = socket.create_connection(("127.0.0.1", port))
    leaver.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    return leaver


class TestPages:
    def test_the_counters_are_sums_over_the_answers(self) -> None:
        with lab_server("bigram") as running:
            answers = [complete(running, **{**SAMPLED, "seed": seed}) for seed in range(3)]
            found = counters(running)
        spec = [one["metrics"]["speculative_decoding"] for one in answers]
        steps = sum(one["num_spec_steps"] for one in spec)
        kept = [accepted for one in spec for accepted in one["per_step_accepted"]]
        assert found == Counters(
            iterations=3 + steps,
            generation_tokens=sum(one["usage"]["completion_tokens"] for one in answers),
            drafts=steps,
            drafted=4 * steps,
            accepted=sum(kept),
            accepted_per_position=[sum(one > place for one in kept) for place in range(4)],
            running=0,
            waiting=0,
        )

    def test_without_speculation_there_are_no_counters_of_it(self) -> None:
        with lab_server("none") as running:
            found = counters(running)
        assert (found.drafts, found.drafted, found.accepted, found.iterations) == (None, None, None, 0)

    def test_it_is_healthy(self, server: LabServer) -> None:
        assert HTTP.get(f"{server.base_url.removesuffix('/v1')}/health").status_code == 200

    def test_sweep_knows_who_answers(self, server: LabServer) -> None:
        found = find_endpoint("arm", server.base_url)
        assert (found.engine.name, found.model, found.facts) == (
            "lab-reference",
            "lab",
            (("root", "lab"), ("max_model_len", "2048")),
        )


class TestRefusals:
    @pytest.mark.parametrize(
        ("route", "body", "status", "said"),
        [
            ("completions", {"prompt": "a", "n": 2}, 400, "n: the reference loop draws one answer"),
            ("chat/completions", {"messages": CHAT, "logit_bias": {"1": 1}}, 400, "logit_bias: the reference loop"),
            ("chat/completions", {"messages": "a"}, 400, "messages: "),
            ("completions", [1], 400, "the body is not a JSON object."),
            ("completions", {"prompt": "a", "model": "gpt"}, 404, "the model 'gpt' does not exist here"),
            ("embeddings", {}, 404, "POST /v1/embeddings: Not Found."),
        ],
    )
    def test_a_refusal_is_one_message(self, server: LabServer, route: str, body: Any, status: int, said: str) -> None:
        answer = post(server, route, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["message"][: len(said)]) == (status, status, said)

    def test_a_body_that_is_not_json(self, server: LabServer) -> None:
        answer = HTTP.post(f"{server.base_url}/completions", content=b"{")
        assert (answer.status_code, list(answer.json())) == (400, ["error"])

    def test_a_route_that_only_takes_posts(self, server: LabServer) -> None:
        answer = HTTP.get(f"{server.base_url}/completions")
        assert (answer.status_code, list(answer.json())) == (405, ["error"])

    def test_a_taken_port(self, server: LabServer) -> None:
        port = int(server.base_url.split(":")[2].partition("/")[0])
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            lab_server(port=port)

    @pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65536), ("192.0.2.1", 0), ("nowhere.invalid", 0)])
    def test_an_address_that_is_not_ours(self, host: str, port: int) -> None:
        with pytest.raises(InputError, match="cannot listen on"):
            bound(host, port)

    @pytest.mark.parametrize(("drafter", "said"), [("none", "nothing drafts"), ("lookup", "this drafter has none")])
    def test_a_fault_that_cannot_lie_there(self, drafter: str, said: str) -> None:
        with pytest.raises(InputError, match=said):
            lab_server(drafter, fault=FAULTS["greedy-as-softmax"])


class Broken:
    """A target that fails in its pass of that number."""

    size = TOY.size
    length = 0

    def __init__(self, at: int) -> None:
        self._left, self._model = at, toy_target()

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("out of memory")
        return self._model.extend(tokens)

    def crop(self, length: int) -> None:
        self._model.crop(length)


class TestFailure:
    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token_it_is_a_500(self, stream: bool) -> None:
        with LabServer(Broken(0), TOY) as running:
            answer = post(running, "completions", {"prompt": "a", "stream": stream})
        assert (answer.status_code, answer.json()["error"]["message"][:31]) == (500, "the reference loop failed: Runt")

    def test_in_a_stream_it_is_an_event(self) -> None:
        with LabServer(Broken(2), TOY) as running:
            last = streamed(running, "completions", prompt="a")[-1]
        assert last["error"]["code"] == 500

    def test_the_server_goes_on(self) -> None:
        target = Broken(1)
        with LabServer(target, TOY) as running:
            post(running, "completions", {"prompt": "a"})
            target._left = 100
            assert len(token_ids(complete(running, **{**GREEDY, "max_tokens": 9}))) == 9


class TestFaults:
    @pytest.mark.parametrize("name", FAULTS)
    def test_a_planted_fault_changes_what_is_answered(self, server: LabServer, name: str) -> None:
        """By the same seed: a bad draft that is merely slow draws other tokens too, of the same distribution."""
        asked = {**SAMPLED, "temperature": 0.7, "max_tokens": 300, "ignore_eos": True}
        with lab_server(fault=FAULTS[name]) as faulty:
            assert token_ids(complete(faulty, **asked)) != token_ids(complete(server, **asked))

    @pytest.mark.parametrize("name", FAULTS)
    def test_at_temperature_0_only_those_of_the_target_show(self, server: LabServer, name: str) -> None:
        with lab_server(fault=FAULTS[name]) as faulty:
            changed = token_ids(complete(faulty, **GREEDY)) != token_ids(complete(server, **GREEDY))
        assert changed == (name in ("no-rollback", "bonus-from-wrong-row"))


class TestSweepsClient:
    """The load client reads a request from it, and its counts are exact."""

    @pytest.fixture(scope="class")
    @staticmethod
    def answers() -> list[tuple[Answer, tuple[int, int] | None]]:
        prompts = [Prompt(({"role": "user", "content": f"{PROMPT} {number}"},), "test") for number in range(3)]

        async def ask(base_url: str) -> list[tuple[Answer, tuple[int, int] | None]]:
            endpoint = find_endpoint("arm", base_url)
            async with Client(endpoint, Asked(max_tokens=40, temperature=1.0, ignore_eos=True)) as client:
                found = await asyncio.gather(*(client.ask(prompt) for prompt in prompts))
            return [(one, one.passes(endpoint, None)) for one in found]

        with lab_server() as running:
            return asyncio.run(ask(running.base_url))

    def test_without_error(self, answers: list[tuple[Answer, Any]]) -> None:
        told = [(one.error, one.completion_tokens, one.finish_reason) for one, _ in answers]
        assert told == [(None, 40, "length")] * 3

    def test_each_chunk_is_a_pass(self, answers: list[tuple[Answer, Any]]) -> None:
        assert [passes for _, passes in answers] == [(len(one.chunks), len(one.chunks)) for one, _ in answers]

    def test_the_counts_are_those_of_the_chunks(self, answers: list[tuple[Answer, Any]]) -> None:
        assert [one.counts.steps for one, _ in answers if one.counts] == [len(one.chunks) - 1 for one, _ in answers]
