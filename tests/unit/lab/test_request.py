"""What a client may ask: every field that would change what is drawn is taken or refused, never overlooked."""

import json
from typing import Any

import pytest

from toolkit.lab.reference import Sampling
from toolkit.lab.request import BadRequestError, read_chat, read_completion
from toolkit.lab.toy import ToyTokenizer

TOY = ToyTokenizer()
SIZE = TOY.size


def completion(**fields: Any) -> Any:
    return read_completion(json.dumps({"prompt": "ab", **fields}).encode())


def chat(**fields: Any) -> Any:
    return read_chat(json.dumps({"messages": [{"role": "user", "content": "ab"}], **fields}).encode())


def job(ask: Any, max_model_len: int = 100) -> Any:
    return ask.job(TOY, SIZE, max_model_len)


class TestJob:
    @pytest.mark.parametrize(
        ("fields", "sampling"),
        [
            ({}, Sampling(1.0)),
            ({"temperature": 0}, Sampling(0.0)),
            ({"temperature": 0.5, "top_k": 16, "top_p": 0.9}, Sampling(0.5, 16, 0.9)),
            ({"top_k": -1, "top_p": 1}, Sampling(1.0)),
            ({"top_k": 0}, Sampling(1.0)),
            ({"temperature": None, "top_k": None}, Sampling(1.0)),
        ],
    )
    def test_sampling_is_as_asked(self, fields: dict[str, Any], sampling: Sampling) -> None:
        assert job(completion(**fields)).sampling == sampling

    def test_a_completion_has_16_tokens_unless_asked(self) -> None:
        assert job(completion()).max_tokens == 16

    def test_a_chat_has_what_is_left_of_the_models_length(self) -> None:
        assert job(chat()).max_tokens == 100 - len("ab\n\n")

    def test_max_completion_tokens_is_the_chats_newer_name(self) -> None:
        assert job(chat(max_completion_tokens=7, max_tokens=9)).max_tokens == 7

    @pytest.mark.parametrize("prompt", ["ab", TOY.encode("ab")])
    def test_a_prompt_is_a_text_or_its_token_ids(self, prompt: Any) -> None:
        assert job(completion(prompt=prompt)).prompt == tuple(TOY.encode("ab"))

    @pytest.mark.parametrize("content", ["a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]])
    def test_a_message_is_a_text_or_its_parts(self, content: Any) -> None:
        assert job(chat(messages=[{"role": "user", "content": content}])).prompt == tuple(TOY.encode("a\nb\n\n"))

    @pytest.mark.parametrize(("stop", "stops"), [("x", ("x",)), (["x", "y"], ("x", "y")), ([], ())])
    def test_a_stop_is_a_string_or_several(self, stop: Any, stops: tuple[str, ...]) -> None:
        assert job(completion(stop=stop)).stops == stops

    def test_stop_ids_and_end_marks_are_as_asked(self) -> None:
        found = job(completion(stop_token_ids=[3], ignore_eos=True))
        assert (found.stop_ids, found.ignore_eos) == (frozenset({3}), True)

    def test_log_probabilities_of_a_chat_need_both_fields(self) -> None:
        asked = [chat(), chat(logprobs=False), chat(logprobs=True), chat(logprobs=True, top_logprobs=5)]
        assert [job(one).top for one in asked] == [None, None, 0, 5]

    def test_log_probabilities_of_a_completion_are_a_number(self) -> None:
        assert [job(completion(logprobs=n)).top for n in (None, 0, 5)] == [None, 0, 5]

    def test_a_field_that_we_do_not_know_is_ignored(self) -> None:
        assert job(completion(user="me", cache_salt="x")) == job(completion())


REFUSED = [
    ("n", 2),
    ("best_of", 2),
    ("min_p", 0.1),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -0.5),
    ("repetition_penalty", 1.1),
    ("logit_bias", {"5": 1}),
    ("allowed_token_ids", [1]),
    ("bad_words", ["x"]),
    ("min_tokens", 3),
    ("response_format", {"type": "json_object"}),
    ("structured_outputs", {"json": "{}"}),
    ("use_beam_search", True),
    ("echo", True),
    ("tools", [{"type": "function"}]),
    ("truncate_prompt_tokens", 5),
]
NEUTRAL = [
    ("n", 1),
    ("min_p", 0.0),
    ("presence_penalty", 0),
    ("frequency_penalty", 0.0),
    ("repetition_penalty", 1.0),
    ("logit_bias", {}),
    ("response_format", {"type": "text"}),
    ("min_tokens", 0),
    ("echo", False),
    ("tools", None),
]
WRONG = [
    ("temperature", "hot", "temperature: "),
    ("temperature", -1, "temperature: "),
    ("temperature", True, "temperature: "),
    ("top_k", 1.5, "top_k: "),
    ("top_k", -2, "top_k: "),
    ("top_p", 0, "top_p: "),
    ("top_p", 1.1, "top_p: "),
    ("max_tokens", 0, "max_tokens: "),
    ("max_tokens", "9", "max_tokens: "),
    ("max_tokens", 99, "2 tokens and the answer may have 99, but this server's max_model_len is 100"),
    ("seed", "one", "seed: "),
    ("seed", 2**63, "seed: "),
    ("stream", "yes", "stream: "),
    ("stream_options", [], "stream_options: "),
    ("stop", "", "stop: give a string, or a list of strings, none of them empty"),
    ("stop", ["a", 1], "stop: give a string, or a list of strings, none of them empty"),
    ("stop", {"a": 1}, "stop: give a string, or a list of strings, none of them empty"),
    ("stop_token_ids", [-1], "stop_token_ids.0: "),
    ("logprobs", 21, "logprobs: "),
    ("prompt_logprobs", -1, "prompt_logprobs: "),
    ("prompt", 7, "prompt: give one prompt, as a text or as a list of token ids"),
    ("prompt", ["a", "b"], "prompt: give one prompt, as a text or as a list of token ids"),
    ("prompt", [True], "prompt: give one prompt, as a text or as a list of token ids"),
    ("prompt", [-1], "prompt: give one prompt, as a text or as a list of token ids"),
    ("prompt", [97], "prompt: token id 97 lies outside the vocabulary of 97"),
    ("prompt", "", "the prompt is empty"),
    ("prompt", [], "the prompt is empty"),
    ("prompt", None, "prompt: Field required"),
]
WRONG_CHAT = [
    ("messages", [], "messages: "),
    ("messages", "hello", "messages: "),
    ("messages", [{"role": "user"}], "messages.0.content: "),
    ("messages", [{"role": "user", "content": 5}], "messages.0.content: give a text, or a list of text parts"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content: give a text"),
    ("messages", [{"role": 1, "content": "a"}], "messages.0.role: "),
    ("top_logprobs", 3, "top_logprobs needs logprobs to be true"),
    ("logprobs", 3, "logprobs: "),
    ("prompt_logprobs", 1, "prompt_logprobs are available on /v1/completions"),
]


class TestRefused:
    @pytest.mark.parametrize("ask", [completion, chat])
    @pytest.mark.parametrize(("name", "value"), REFUSED)
    def test_what_would_change_the_distribution(self, ask: Any, name: str, value: Any) -> None:
        with pytest.raises(BadRequestError, match=f"^{name}: the reference loop draws one answer"):
            ask(**{name: value})

    @pytest.mark.parametrize("ask", [completion, chat])
    @pytest.mark.parametrize(("name", "value"), NEUTRAL)
    def test_but_not_a_value_that_changes_nothing(self, ask: Any, name: str, value: Any) -> None:
        assert job(ask(**{name: value})) == job(ask())

    @pytest.mark.parametrize(("name", "value", "said"), WRONG)
    def test_a_wrong_field_of_a_completion(self, name: str, value: Any, said: str) -> None:
        with pytest.raises(BadRequestError) as caught:
            job(completion(**{name: value}))
        assert said in str(caught.value)

    @pytest.mark.parametrize(("name", "value", "said"), WRONG_CHAT)
    def test_a_wrong_field_of_a_chat(self, name: str, value: Any, said: str) -> None:
        with pytest.raises(BadRequestError) as caught:
            job(chat(**{name: value}))
        assert str(caught.value).startswith(said)

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"\xff\xfe", b"[1]", b'"text"', b"[" * 100_000, b'{"max_tokens": ' + b"9" * 5000 + b"}"]
    )
    def test_a_body_that_is_no_json_object(self, body: bytes) -> None:
        with pytest.raises(BadRequestError, match="the body is not"):
            read_completion(body)

    def test_a_number_that_is_none(self) -> None:
        with pytest.raises(BadRequestError, match=r"^temperature: "):
            read_completion(b'{"prompt": "a", "temperature": NaN}')

    def test_a_prompt_as_long_as_the_model(self) -> None:
        with pytest.raises(BadRequestError, match="the prompt has 100 tokens and the answer may have 1"):
            job(chat(messages=[{"role": "user", "content": "a" * 98}]))

    def test_scores_of_the_prompt_are_not_streamed(self) -> None:
        with pytest.raises(BadRequestError, match="prompt_logprobs are not available when stream is true"):
            completion(stream=True, prompt_logprobs=0)

    def test_a_message_that_the_chat_template_refuses(self) -> None:
        class Picky(ToyTokenizer):
            def chat(self, messages: Any) -> list[int]:
                raise ValueError("roles must alternate")

        with pytest.raises(BadRequestError, match="messages: roles must alternate"):
            chat().job(Picky(), SIZE, 100)
