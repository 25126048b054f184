"""Questions over HTTP: what is sent, what is understood, and one clear message for everything that goes wrong."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from stub_server import StubServer

from toolkit.analysis.audit.asking import SCORED, Asking, RefusedError, Request, Scores
from toolkit.analysis.audit.replies import LOWEST, Reply
from toolkit.analysis.endpoint import Endpoint
from toolkit.engines import ENGINES
from toolkit.engines.contract import SpecCounts
from toolkit.errors import EngineError, InputError, ToolkitError

KEY = "sk-very-secret"
ASKED = Request("greedy", 2, 3, ({"role": "user", "content": "Hi"},), 8, 42, {"temperature": 0, "top_k": 16})
Handler = Callable[[httpx.Request], httpx.Response]
FIRST = {"prompt_token_ids": [1, 2, 3], "choices": [{"delta": {"role": "assistant", "content": ""}}]}


def endpoint(engine: str = "vllm", url: str = "http://127.0.0.1:1/v1") -> Endpoint:
    return Endpoint("arm", url, "m", ENGINES[engine], key=KEY)


def chunk(text: str, *ids: int, **rest: Any) -> dict[str, Any]:
    choice = {"delta": {"content": text}, "token_ids": list(ids) or None, **rest}
    return {"choices": [choice]}


def entry(token: int, logprob: float = -0.1, rival: int = 9) -> dict[str, Any]:
    def told(number: int, value: float) -> dict[str, Any]:
        return {"token": f"token_id:{number}", "logprob": value, "bytes": [1]}

    return {**told(token, logprob), "top_logprobs": [told(token, logprob), told(rival, -3.0)]}


def stream(*events: Any, done: bool = True) -> Handler:
    lines = [json.dumps(event) if not isinstance(event, str) else event for event in events]
    body = "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])])
    return lambda request: httpx.Response(200, content=body.encode())


def answering(handler: Handler, ask: Callable[[Asking], Any], where: Endpoint | None = None) -> Any:
    """What `ask` returns when `handler` stands in for the server."""

    async def go() -> Any:
        async with Asking("arm", where or endpoint()) as asking:
            headers = asking.client.headers
            await asking.client.aclose()
            asking.client = httpx.AsyncClient(transport=httpx.MockTransport(handler), headers=headers)
            return await ask(asking)

    return asyncio.run(go())


def generated(handler: Handler, request: Request = ASKED, where: Endpoint | None = None) -> Reply:
    (reply,) = answering(handler, lambda asking: asking.generate([request]), where)
    assert isinstance(reply, Reply)
    return reply


def scores(handler: Handler, prompt: tuple[int, ...] = (1, 2), emitted: tuple[int, ...] = (5, 6)) -> Scores:
    (found,) = answering(handler, lambda asking: asking.score([(list(prompt), list(emitted))], 4))
    assert isinstance(found, Scores)
    return found


def row(*pairs: tuple[int, float]) -> dict[str, Any]:
    return {str(token): {"logprob": value, "rank": 1, "decoded_token": f"<{token}>"} for token, value in pairs}


def scored(*rows: Any) -> Handler:
    choice = {"text": "x", "prompt_logprobs": list(rows)}
    return lambda request: httpx.Response(200, json={"choices": [choice]})


FULL = (None, row((2, -1.0)), row((5, -0.1), (6, -2.5)), row((6, -0.2), (5, -2.0)))


class TestRequest:
    @pytest.fixture
    def sent(self) -> list[httpx.Request]:
        return []

    def watching(self, sent: list[httpx.Request], handler: Handler) -> Handler:
        def watched(request: httpx.Request) -> httpx.Response:
            sent.append(request)
            return handler(request)

        return watched

    def test_the_body_of_a_question(self, sent: list[httpx.Request]) -> None:
        generated(self.watching(sent, stream(FIRST, chunk("a", 7, finish_reason="stop"))))
        assert json.loads(sent[0].content) == {
            "model": "m",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": 42,
            "return_token_ids": True,
            "temperature": 0,
            "top_k": 16,
        }

    def test_no_seed_is_not_sent_as_null(self, sent: list[httpx.Request]) -> None:
        generated(self.watching(sent, stream(chunk("a", 7, finish_reason="stop"))), replace(ASKED, seed=None))
        assert "seed" not in json.loads(sent[0].content)

    def test_a_server_that_is_no_vllm_is_not_asked_for_token_ids(self, sent: list[httpx.Request]) -> None:
        generated(self.watching(sent, stream(chunk("a", finish_reason="stop"))), where=endpoint("openai"))
        assert "return_token_ids" not in json.loads(sent[0].content)

    def test_the_body_of_a_scoring(self, sent: list[httpx.Request]) -> None:
        """Token ids, never text; one token is the least that can be asked for."""
        scores(self.watching(sent, scored(*FULL)))
        assert sent[0].url.path == "/v1/completions"
        assert json.loads(sent[0].content) == {
            "model": "m",
            "prompt": [1, 2, 5, 6],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": SCORED,
        }

    def test_the_key_goes_with_it(self, sent: list[httpx.Request]) -> None:
        generated(self.watching(sent, stream(chunk("a", 7, finish_reason="stop"))))
        assert sent[0].headers["authorization"] == f"Bearer {KEY}"

    def test_as_many_at_once_as_the_question_says(self, stub: StubServer) -> None:
        stub.gap = 0.01

        async def go() -> None:
            async with Asking("arm", endpoint(url=stub.url)) as asking:
                await asking.generate([ASKED] * 6)

        asyncio.run(go())
        assert stub.running_peak == ASKED.concurrency

    def test_replies_come_in_the_order_of_the_questions(self, stub: StubServer) -> None:
        async def go() -> list[Reply]:
            async with Asking("arm", endpoint(url=stub.url)) as asking:
                return await asking.generate([replace(ASKED, prompt=i, max_tokens=9 - i) for i in range(6)])

        assert [(one.prompt, len(one.token_ids)) for one in asyncio.run(go())] == [(i, 9 - i) for i in range(6)]


class TestReply:
    def test_a_stream_is_put_together(self) -> None:
        counts = {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 1, "num_spec_tokens": 4}
        reply = generated(
            stream(
                FIRST,
                chunk("a", 7, logprobs={"content": [entry(7)]}),
                chunk("bc", 8, 9, logprobs={"content": [entry(8), entry(9, rival=4)]}, finish_reason="length"),
                {"choices": [], "usage": {"completion_tokens": 3}, "metrics": {"speculative_decoding": counts}},
            )
        )
        assert reply == Reply(
            question="greedy",
            side="arm",
            concurrency=2,
            prompt=3,
            seed=42,
            prompt_ids=[1, 2, 3],
            token_ids=[7, 8, 9],
            chunks=[1, 2],
            text="abc",
            finish_reason="length",
            top=[[(7, -0.1), (9, -3.0)], [(8, -0.1), (9, -3.0)], [(9, -0.1), (4, -3.0)]],
            counts=SpecCounts(1, 4, 1, 4),
        )

    def test_merged_chunks_are_kept_as_they_came(self) -> None:
        assert generated(stream(chunk("abc", 7, 8, 9, finish_reason="stop"))).chunks == [3]

    def test_reasoning_is_text_too(self) -> None:
        parts = [{"reasoning": "a"}, {"reasoning_content": "b"}, {"content": "c"}, {"content": None}]
        events = [{"choices": [{"delta": part, "token_ids": [i]}]} for i, part in enumerate(parts)]
        assert generated(stream(*events, chunk("", 9, finish_reason="stop"))).text == "abc"

    def test_a_reply_that_ends_with_its_first_token(self) -> None:
        reply = generated(stream(FIRST, chunk("", 7, finish_reason="stop")))
        assert (reply.token_ids, reply.text) == ([7], "")

    def test_a_server_without_token_ids_has_none_and_no_chunks(self) -> None:
        reply = generated(stream(chunk("one "), chunk("two", finish_reason="stop")))
        assert (reply.token_ids, reply.chunks, reply.text) == ([], [], "one two")

    @pytest.mark.parametrize(
        "logprobs",
        [
            None,
            {"content": None},
            {"content": []},
            {"content": [{"token": " cat", "logprob": -0.1, "top_logprobs": []}]},
            {"content": [entry(7), entry(8)]},
            {"content": [{"token": "token_id:²", "logprob": -0.1}]},
        ],
        ids=["null", "null content", "none", "as words", "of another number", "no digit"],
    )
    def test_log_probabilities_that_do_not_fit_the_tokens_are_none(self, logprobs: Any) -> None:
        assert generated(stream(chunk("a", 7, logprobs=logprobs, finish_reason="stop"))).top is None

    def test_minus_infinity_is_written_as_vllm_does(self) -> None:
        events = (
            '{"choices": [{"delta": {}, "token_ids": [7], "finish_reason": "stop", "logprobs": {"content": [%s]}}]}'
        )
        inside = json.dumps(entry(7)).replace("-3.0", "-Infinity")
        assert generated(stream(events % inside)).top == [[(7, -0.1), (9, LOWEST)]]

    def test_the_stop_string_is_remembered(self) -> None:
        request = replace(ASKED, question="stop", fields={"stop": ["end"]})
        assert generated(stream(chunk("a", 7, finish_reason="stop")), request).stop == "end"

    def test_half_a_surrogate_pair_can_be_written_down(self) -> None:
        assert generated(stream(chunk("a\ud800", 7, finish_reason="stop"))).text == "a?"

    def test_counts_that_were_merged_into_the_last_chunk_of_text_are_read(self) -> None:
        counts = {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 1}
        last = {**chunk("a", 7, finish_reason="stop"), "metrics": {"speculative_decoding": counts}}
        assert generated(stream(last)).counts == SpecCounts(1, 4, 1)


class TestScores:
    def test_the_rows_of_the_emitted_tokens_the_likeliest_first(self) -> None:
        assert scores(scored(*FULL)) == Scores(
            rows=[[(5, -0.1), (6, -2.5)], [(6, -0.2), (5, -2.0)]],
            words={5: "<5>", 6: "<6>"},
        )

    def test_minus_infinity_is_the_lowest(self) -> None:
        body = json.dumps({"choices": [{"prompt_logprobs": [None, row((5, -0.1), (6, -77.5))]}]})
        handler = lambda request: httpx.Response(200, content=body.replace("-77.5", "-Infinity"))  # noqa: E731
        assert scores(handler, (1,), (5,)).rows == [[(5, -0.1), (6, LOWEST)]]

    def test_an_emitted_token_that_is_not_listed_is_not_made_up(self) -> None:
        assert scores(scored(None, row((6, -0.1))), (1,), (5,)).rows == [[(6, -0.1)]]

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"choices": None},
            {"choices": []},
            {"choices": [None]},
            {"choices": [{"text": "x"}]},
            {"choices": [{"prompt_logprobs": None}]},
            {"choices": [{"prompt_logprobs": [None, row((5, -1.0))]}]},
        ],
        ids=["nothing", "null", "no choice", "null choice", "no field", "null field", "too few"],
    )
    def test_an_answer_without_them_is_a_refusal(self, body: Any) -> None:
        with pytest.raises(RefusedError, match="it answers without prompt_logprobs"):
            scores(lambda request: httpx.Response(200, json=body))

    @pytest.mark.parametrize(
        "bad",
        [
            None,
            {},
            [1],
            {"x": {"logprob": -1.0}},
            {"-4": {"logprob": -1.0}},
            {"99999999999": {"logprob": -1.0}},
            {"5": {}},
            {"5": -1.0},
            {"5": {"logprob": None}},
            {"5": {"logprob": "low"}},
            row((5, LOWEST)),
        ],
        ids=[
            *("null", "empty", "a list", "no id", "negative id", "huge id", "no logprob", "bare", "null logprob"),
            *("a word", "no token possible"),
        ],
    )
    def test_rows_that_cannot_be_read_are_a_failure(self, bad: Any) -> None:
        with pytest.raises(EngineError, match=r"^arm: its prompt_logprobs cannot be read\.$"):
            scores(scored(None, bad), (1,), (5,))

    def test_a_log_probability_that_is_no_number_is_a_failure(self) -> None:
        body = json.dumps({"choices": [{"prompt_logprobs": [None, row((5, -0.1), (6, -77.5))]}]})
        with pytest.raises(EngineError, match="prompt_logprobs cannot be read"):
            scores(lambda request: httpx.Response(200, content=body.replace("-77.5", "NaN")), (1,), (5,))


class TestRefused:
    """What a server does not take; the audit then asks in another way, or says so."""

    @pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
    def test_a_question(self, status: int) -> None:
        with pytest.raises(RefusedError, match=f"^HTTP {status}: no such field$"):
            generated(lambda request: httpx.Response(status, text="no such\n field"))

    @pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
    def test_a_scoring(self, status: int) -> None:
        with pytest.raises(RefusedError, match=f"HTTP {status}"):
            scores(lambda request: httpx.Response(status))

    def test_a_long_refusal_is_cut(self) -> None:
        with pytest.raises(RefusedError) as refused:
            generated(lambda request: httpx.Response(400, text="x" * 10_000))
        assert len(str(refused.value)) < 350


class TestFailed:
    @pytest.mark.parametrize("status", [401, 403])
    def test_a_server_that_wants_a_key(self, status: int) -> None:
        with pytest.raises(InputError, match=rf"arm wants a key, pass --api-key-env NAME. It answered HTTP {status}"):
            generated(lambda request: httpx.Response(status, text="who are you"))

    @pytest.mark.parametrize("status", [429, 500, 502, 503])
    def test_a_server_that_cannot_now(self, status: int) -> None:
        with pytest.raises(EngineError, match=f"^arm answered HTTP {status}: later$"):
            generated(lambda request: httpx.Response(status, text="later"))

    @pytest.mark.parametrize("status", [429, 500, 307])
    def test_a_scoring_that_fails(self, status: int) -> None:
        with pytest.raises(EngineError, match=f"^arm answered HTTP {status}$"):
            scores(lambda request: httpx.Response(status))

    def test_a_scoring_that_is_no_json(self) -> None:
        with pytest.raises(EngineError, match=r"arm: sent something that is no JSON object: '<html>'\."):
            scores(lambda request: httpx.Response(200, text="<html>"))

    @pytest.mark.parametrize(
        "event",
        [
            '{"choices": 5}',
            '{"choices": ["x"]}',
            '{"choices": [{"delta": "x"}]}',
            '{"choices": [{"delta": {"content": 5}}]}',
            '{"choices": [{"token_ids": 7}]}',
            '{"choices": [{"token_ids": ["x"]}]}',
            '{"choices": [{"token_ids": [1], "logprobs": {"content": [{"token": "token_id:1"}]}}]}',
            '{"choices": [{"token_ids": [1], "logprobs": {"content": [{"token": "token_id:1", "logprob": NaN}]}}]}',
            '{"choices": [{"token_ids": [1], "logprobs": 5}]}',
            '{"prompt_token_ids": "abc", "choices": []}',
            '{"metrics": {"speculative_decoding": {"num_spec_steps": null, "num_draft_tokens": 1, '
            '"num_accepted_draft_tokens": 1}}}',
            '{"metrics": "many"}',
        ],
    )
    def test_a_chunk_that_makes_no_sense(self, event: str) -> None:
        with pytest.raises(EngineError, match=r"^arm: its stream cannot be read: "):
            generated(stream(event, chunk("a", 7, finish_reason="stop")))

    @pytest.mark.parametrize("event", ["[1]", "{not json", "5", '"' + "x" * 5000])
    def test_a_chunk_that_is_no_json_object(self, event: str) -> None:
        with pytest.raises(EngineError, match=r"^arm: sent something that is no JSON object: ") as failed:
            generated(stream(event))
        assert len(str(failed.value)) < 400

    def test_a_stream_that_ends_without_done_is_whole_once_it_gave_its_reason(self) -> None:
        assert generated(stream(chunk("a", 7, finish_reason="stop"), done=False)).text == "a"

    def test_a_stream_that_ends_without_a_reason_is_broken(self) -> None:
        with pytest.raises(EngineError, match="arm: a stream ended without a reason to finish"):
            generated(stream(chunk("a", 7)))

    def test_nothing_listens(self) -> None:
        async def go() -> None:
            async with Asking("arm", endpoint()) as asking:
                await asking.generate([ASKED] * 3)

        with pytest.raises(EngineError, match=r"^arm: "):
            asyncio.run(go())

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            ("drop", "disconnected"),
            ("cut", "incomplete|closed"),
            ("cut without framing", "reason to finish|JSON"),
            ("bad http", "arm: "),
            ("redirect", "arm answered HTTP 307"),
            ("html", "reason to finish"),
            ("non-json", "no JSON object"),
            ("error event", "arm answered HTTP 500: .*the engine died"),
            ("no finish", "reason to finish"),
            ("429 slow down", "arm answered HTTP 429: slow down"),
        ],
    )
    def test_a_connection_that_breaks(self, stub: StubServer, fault: str, said: str) -> None:
        stub.fault = lambda number, body: fault

        async def go() -> None:
            async with Asking("arm", endpoint(url=stub.url)) as asking:
                await asking.generate([ASKED])

        with pytest.raises(EngineError, match=said):
            asyncio.run(go())

    def test_one_failure_ends_the_batch(self, stub: StubServer) -> None:
        """The others hang: they are not waited for."""
        stub.fault = lambda number, body: "500 broken" if number == 2 else "hang"

        async def go() -> None:
            async with Asking("arm", endpoint(url=stub.url)) as asking:
                await asyncio.wait_for(asking.generate([ASKED] * 6), 20)

        with pytest.raises(EngineError, match="HTTP 500: broken"):
            asyncio.run(go())


class TestKey:
    """A server may repeat the key that it was sent. No message does."""

    @pytest.mark.parametrize("status", [400, 401, 429, 500])
    def test_in_an_error(self, status: int) -> None:
        with pytest.raises((RefusedError, ToolkitError)) as failed:
            generated(lambda request: httpx.Response(status, text=f"bad key Bearer {KEY}"))
        assert (KEY in str(failed.value), "Bearer ***" in str(failed.value)) == (False, True)

    def test_in_an_event_of_a_stream(self) -> None:
        with pytest.raises(EngineError) as failed:
            generated(stream({"error": {"message": f"no {KEY}"}}))
        assert (KEY in str(failed.value), "***" in str(failed.value)) == (False, True)

    def test_in_what_is_no_json(self) -> None:
        with pytest.raises(EngineError) as failed:
            generated(stream(f"oh {KEY}"))
        assert KEY not in str(failed.value)

    def test_in_what_makes_no_sense(self) -> None:
        """Python's own words for it repeat the value."""
        with pytest.raises(EngineError, match="could not convert string to float") as failed:
            generated(stream(chunk("a", 1, logprobs={"content": [{"token": "token_id:1", "logprob": KEY}]})))
        assert KEY not in str(failed.value)

    def test_cut_in_two_by_the_length_of_the_message(self) -> None:
        with pytest.raises(RefusedError) as failed:
            generated(lambda request: httpx.Response(400, text="x" * 290 + KEY))
        assert "sk-very" not in str(failed.value)
