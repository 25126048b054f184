"""Who answers at a URL, what is refused before anything is sent, and that the key stays where it belongs."""

import json
from typing import Any

import pytest
from stub_server import StubServer

from toolkit.analysis.endpoint import Endpoint, find_endpoint, root
from toolkit.engines import ENGINES
from toolkit.errors import EngineError, InputError, ToolkitError

KEY = "sk-very-secret-0123456789"


def models(*names: str, **fields: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"data": [{"id": name, **fields} for name in names]}).encode()


class TestFound:
    def test_vllm_is_recognised_by_its_models(self, stub: StubServer) -> None:
        found = find_endpoint("arm", stub.url)
        assert (found.engine.name, found.version, found.model) == ("vllm", "0.32.0", "stub/model")

    def test_any_other_server_has_no_engine_version(self, stub: StubServer) -> None:
        stub.owned_by = "someone"
        found = find_endpoint("arm", stub.url)
        assert (found.engine.name, found.version) == ("openai", None)

    def test_what_it_says_of_its_model_is_kept(self, stub: StubServer) -> None:
        assert find_endpoint("arm", stub.url).facts == (("root", "stub/model"), ("max_model_len", "4096"))

    def test_a_slash_at_the_end_is_dropped(self, stub: StubServer) -> None:
        assert find_endpoint("arm", stub.url + "/").base_url == stub.url

    def test_one_of_two_models_is_chosen_by_name(self, stub: StubServer) -> None:
        stub.models = models("a", "b")
        assert find_endpoint("arm", stub.url, "b").model == "b"

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("http://h:1/v1", "http://h:1"),
            ("http://h:1/v1/", "http://h:1"),
            ("http://h:1", "http://h:1"),
            ("http://h/api/v1", "http://h/api"),
        ],
    )
    def test_the_root_is_the_url_without_v1(self, url: str, expected: str) -> None:
        assert root(url) == expected


class TestWrongInput:
    @pytest.mark.parametrize(
        "url",
        ["localhost:8000", "ftp://h/v1", "http://", "", "http://[::1/v1", "http://h:99999", "http://h:0", "http://h:x"],
    )
    def test_a_url_that_is_none(self, url: str) -> None:
        with pytest.raises(InputError, match="not a URL like http://localhost:8000/v1"):
            find_endpoint("arm", url)

    @pytest.mark.parametrize(
        "url", [f"http://user:{KEY}@h/v1", f"http://{KEY}@h/v1", f"http://h/v1?api_key={KEY}", f"user:{KEY}@h/v1"]
    )
    def test_a_key_in_the_url_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(InputError, match="--api-key-env NAME") as caught:
            find_endpoint("arm", url)
        assert KEY not in str(caught.value)

    def test_a_model_that_is_not_served(self, stub: StubServer) -> None:
        with pytest.raises(InputError, match=r"does not serve 'other', it serves stub/model\."):
            find_endpoint("arm", stub.url, "other")

    def test_two_models_and_none_chosen(self, stub: StubServer) -> None:
        stub.models = models("a", "b")
        with pytest.raises(InputError, match=r"serves 2 models \(a, b\): choose one with --model"):
            find_endpoint("arm", stub.url)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_server_that_wants_a_key(self, stub: StubServer, status: int) -> None:
        stub.models = (status, b"no")
        with pytest.raises(InputError, match=f"answered {status}: it wants a key, pass --api-key-env NAME"):
            find_endpoint("arm", stub.url)


class TestUnusable:
    def test_nothing_listens(self) -> None:
        with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:1/v1/models cannot be reached: "):
            find_endpoint("arm", "http://127.0.0.1:1/v1")

    @pytest.mark.parametrize(
        "page", [b"<html>It works!</html>", b"", b"[]", b'{"data": null}', b'{"data": 7}', b'"data"', b"\xff\xfe"]
    )
    def test_a_page_that_is_no_list_of_models(self, stub: StubServer, page: bytes) -> None:
        stub.models = (200, page)
        with pytest.raises(EngineError, match=r"not a list of models\. Is it an OpenAI-style /v1"):
            find_endpoint("arm", stub.url)

    @pytest.mark.parametrize("status", [307, 404, 500])
    def test_another_status(self, stub: StubServer, status: int) -> None:
        stub.models = (status, b"no")
        with pytest.raises(EngineError, match=f"answered {status}, not a list of models"):
            find_endpoint("arm", stub.url)


class TestKey:
    def test_the_key_of_the_environment_is_sent(self, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        stub.key = KEY
        monkeypatch.setenv("MY_KEY", KEY)
        assert find_endpoint("arm", stub.url, key_env="MY_KEY").headers == {"Authorization": f"Bearer {KEY}"}

    def test_the_line_end_of_a_key_file_is_dropped(self, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_KEY", f"{KEY}\n")
        assert find_endpoint("arm", stub.url, key_env="MY_KEY").key == KEY

    @pytest.mark.parametrize("value", ["", "  \n"])
    def test_an_empty_key(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(InputError, match="the environment variable MY_KEY is not set"):
            find_endpoint("arm", "http://h/v1", key_env="MY_KEY")

    def test_a_key_that_is_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MY_KEY", raising=False)
        with pytest.raises(InputError, match="--api-key-env MY_KEY: the environment variable MY_KEY is not set"):
            find_endpoint("arm", "http://h/v1", key_env="MY_KEY")

    @pytest.mark.parametrize("value", [f"{KEY}\r\nX-Evil: 1", f"{KEY}é", f"{KEY} \x01 x"])
    def test_a_key_that_no_header_can_carry(
        self, stub: StubServer, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(ToolkitError) as caught:
            find_endpoint("arm", stub.url, key_env="MY_KEY")
        assert (type(caught.value), KEY in str(caught.value)) == (InputError, False)

    def test_the_key_is_not_in_the_repr(self) -> None:
        assert KEY not in repr(Endpoint("arm", "http://h/v1", "m", ENGINES["vllm"], key=KEY))

    def test_without_a_key_there_is_no_header(self) -> None:
        assert Endpoint("arm", "http://h/v1", "m", ENGINES["vllm"]).headers == {}


def test_a_metrics_page_that_cannot_be_read_is_none() -> None:
    assert Endpoint("arm", "http://h/v1", "m", ENGINES["vllm"]).counters("<html>") is None
