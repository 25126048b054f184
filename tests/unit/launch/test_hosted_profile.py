"""A profile of a service that runs elsewhere: what it may say, and what a check can tell without asking anyone."""

from pathlib import Path

import pytest
import yaml

from toolkit.engines.openai import OpenAIEndpoint
from toolkit.errors import InputError
from toolkit.launch.check import check_profile, remarks
from toolkit.launch.profile import load_profile

KEY = "fw_3ZabcdefGHIJ0123456789"
AT = {"url": "https://api.example.com/v1", "key_env": "EXAMPLE_KEY"}


def written(folder: Path, **fields: object) -> str:
    path = folder / "mine.yaml"
    whole = {"description": "Mine.", "engine": "openai", "target": {"model": "org/served"}, "endpoint": AT, **fields}
    path.write_text(yaml.safe_dump({name: value for name, value in whole.items() if value is not None}))
    return str(path)


def refused(folder: Path, *changes: str, **fields: object) -> str:
    with pytest.raises(InputError) as caught:
        load_profile(written(folder, **fields), changes)
    return str(caught.value)


class TestProfile:
    def test_the_model_is_the_name_that_the_service_gives_it(self, tmp_path: Path) -> None:
        assert load_profile(written(tmp_path)).served_model == "org/served"

    def test_a_slash_at_the_end_of_the_url_is_dropped(self, tmp_path: Path) -> None:
        at = load_profile(written(tmp_path, endpoint={"url": "http://h:1/v1/"})).endpoint
        assert at is not None
        assert at.url == "http://h:1/v1"

    def test_an_engine_of_ours_takes_none(self, tmp_path: Path) -> None:
        assert "endpoint goes with engine openai; vllm is launched" in refused(tmp_path, engine="vllm")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("speculation", {"method": "ngram", "num_speculative_tokens": 4}),
            ("limits", {"max_num_seqs": 8}),
            ("container", {"image": "openai/none"}),
            ("environment", {"A": "1"}),
            ("engine_args", ["--x"]),
            ("server", {"port": 9}),
        ],
    )
    def test_what_only_a_launch_can_set_is_refused(self, tmp_path: Path, name: str, value: object) -> None:
        assert f"{name}: a service at an endpoint runs as it was started, leave it out" in refused(
            tmp_path, **{name: value}
        )

    def test_two_places_of_the_key_are_refused(self, tmp_path: Path) -> None:
        said = refused(tmp_path, endpoint={**AT, "key_file": "~/key"})
        assert "mine.yaml:2: name the key with key_env or with key_file, not both" in said

    @pytest.mark.parametrize(
        "url",
        [
            f"https://user:{KEY}@h/v1",
            f"https://h/v1?api_key={KEY}",
            "ftp://h/v1",
            "h/v1",
            "",
            "https://",
            "https://h/ v",
        ],
    )
    def test_a_url_that_is_none_or_holds_a_secret(self, tmp_path: Path, url: str) -> None:
        said = refused(tmp_path, endpoint={"url": url})
        assert ("the url " in said, KEY in said) == (True, False), said

    def test_a_key_in_place_of_its_variables_name_is_not_repeated(self, tmp_path: Path) -> None:
        said = refused(tmp_path, endpoint={**AT, "key_env": KEY})
        assert ("key_env is the NAME of an environment variable" in said, KEY in said) == (True, False), said

    def test_nor_in_a_change_on_the_command_line(self, tmp_path: Path) -> None:
        said = refused(tmp_path, f"endpoint.key_env={KEY}")
        assert said.startswith("--set endpoint.key_env: key_env is the NAME")
        assert KEY not in said

    def test_a_key_itself_is_an_unknown_word(self, tmp_path: Path) -> None:
        said = refused(tmp_path, endpoint={**AT, "key": KEY})
        assert ("unknown key 'endpoint.key'" in said, KEY in said) == (True, False), said


class TestCheck:
    def test_it_is_right_and_nothing_was_asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EXAMPLE_KEY", KEY)
        name = written(tmp_path)
        said = ["nothing was sent: only a sweep shows whether https://api.example.com/v1 serves org/served"]
        assert (check_profile(name), remarks(name)) == ([], said)

    def test_a_variable_that_is_not_set_is_said_and_no_fault(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("EXAMPLE_KEY", raising=False)
        name = written(tmp_path)
        assert (check_profile(name), remarks(name)[1:]) == (
            [],
            ["the environment variable EXAMPLE_KEY, which holds the key, is not set here"],
        )

    def test_a_key_in_the_place_of_its_file_is_not_repeated(self, tmp_path: Path) -> None:
        name = written(tmp_path, endpoint={"url": "http://h/v1", "key_file": "sk-test-0123456789"})
        assert remarks(name)[1:] == ["the file of endpoint.key_file, which holds the key, is not here"]

    @pytest.mark.parametrize("file", ["/nowhere/key", "~no-such-user-here/key", "\x07"])
    def test_a_file_that_is_not_here_is_said(self, tmp_path: Path, file: str) -> None:
        name = written(tmp_path, endpoint={"url": "http://h/v1", "key_file": file})
        assert remarks(name)[1:] == [f"the file {file}, which holds the key, is not here"]

    def test_a_service_that_asks_for_no_key(self, tmp_path: Path) -> None:
        assert len(remarks(written(tmp_path, endpoint={"url": "http://h/v1"}))) == 1

    def test_without_an_endpoint_there_is_nothing_to_measure(self, tmp_path: Path) -> None:
        (said,) = remarks(written(tmp_path, endpoint=None))
        assert said.startswith("engine openai needs `endpoint:`, the url")

    def test_a_profile_that_is_launched_has_no_remarks(self) -> None:
        assert remarks("baseline-8b") == []

    def test_the_shipped_one_passes(self) -> None:
        assert check_profile("fireworks") == []


def test_launching_it_says_how_it_is_measured(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path))
    with pytest.raises(InputError, match=r"nothing to launch; use `toolkit sweep --profile mine` or"):
        OpenAIEndpoint().command(profile, str)
