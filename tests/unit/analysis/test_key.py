"""A key comes from a variable or a file, and its text is in no message."""

import os
from pathlib import Path

import pytest

from toolkit.analysis import key
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.key import read_key
from toolkit.engines import ENGINES
from toolkit.errors import InputError

KEY = "sk-very-secret-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"  {KEY}\n")
    path.chmod(0o600)
    return path


def refused(env: str | None = None, file: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read_key(env, file, lambda said: None)
    return str(caught.value)


class TestFile:
    def test_space_around_it_is_dropped(self, file: Path) -> None:
        assert read_key(None, str(file)) == KEY

    def test_home_is_expanded(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(file.parent))
        assert read_key(None, "~/key") == KEY

    def test_a_file_of_ones_own_is_not_warned_of(self, file: Path) -> None:
        said: list[str] = []
        read_key(None, str(file), said.append)
        assert said == []

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
    def test_one_that_others_can_read_is_used_with_one_warning(
        self, file: Path, mode: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key, "_warned", set())
        file.chmod(mode)
        said: list[str] = []
        found = [read_key(None, str(file), said.append) for _ in range(2)]
        assert (found, said) == (
            [KEY, KEY],
            [f"--api-key-file {file}: others on this machine can read it; `chmod 600` keeps the key yours."],
        )

    def test_the_warning_goes_to_stderr(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(key, "_warned", set())
        file.chmod(0o644)
        read_key(None, str(file))
        shown = capsys.readouterr()
        assert (shown.out, "others on this machine" in shown.err, KEY in shown.err) == ("", True, False)

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"", "the file is empty"),
            (b" \n\n", "the file is empty"),
            (f"{KEY}\nanother".encode(), "characters that no key has"),
            (f"{KEY} another".encode(), "characters that no key has"),
            (f"{KEY}\x00".encode(), "characters that no key has"),
            (f"{KEY}\xe9".encode(), "characters that no key has"),
            (KEY.encode("utf-16"), "characters that no key has"),
            (KEY.encode() * 1000, "bytes, which is no key"),
        ],
    )
    def test_what_is_no_key_is_refused_and_not_shown(self, file: Path, content: bytes, why: str) -> None:
        file.write_bytes(content)
        said = refused(file=str(file))
        assert (why in said, KEY[:6] in said) == (True, False), said

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        path = tmp_path / "none"
        assert refused(file=str(path)) == f"--api-key-file {path}: cannot be read: No such file or directory."

    def test_a_folder(self, tmp_path: Path) -> None:
        assert refused(file=str(tmp_path)) == f"--api-key-file {tmp_path}: is not a file."

    def test_a_pipe_that_would_be_read_once_and_asked_twice(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert refused(file=str(tmp_path / "pipe")).endswith("is not a file.")

    def test_a_key_in_the_place_of_its_file_is_not_repeated(self) -> None:
        assert refused(file="sk-test-0123456789") == (
            "--api-key-file: no such file can be read; give the PATH of one, like ./key, never the key."
        )

    def test_a_path_that_none_can_have(self) -> None:
        assert "cannot be read" in refused(file="\x00")

    def test_nobodys_home(self) -> None:
        assert refused(file="~no-such-user-here/key").endswith("there is no such user.")


class TestVariable:
    @pytest.mark.parametrize("name", [KEY, "fw_3Zabc9d", "eyJhbGciOi"])
    def test_a_key_in_place_of_its_variables_name_is_not_repeated(self, name: str) -> None:
        said = refused(env=name)
        assert said == "--api-key-env: no such environment variable is set; give the NAME of one, never the key."

    def test_a_variable_in_small_letters_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("my_key", KEY)
        assert read_key("my_key", None) == KEY


def test_both_at_once_are_refused(file: Path) -> None:
    assert refused("MY_KEY", str(file)) == "--api-key-env and --api-key-file: give one of them."


def test_none_is_none() -> None:
    assert read_key(None, None) is None


def test_an_exception_about_an_endpoint_shows_no_key() -> None:
    endpoint = Endpoint("arm", "http://h/v1", "m", ENGINES["openai"], key=KEY)
    assert KEY not in f"{ValueError(endpoint)!r} {[endpoint]} {endpoint!s}"
