"""Reading token traces: what is read, and one clear message for what is not a request."""

import json
from pathlib import Path

import pytest

from toolkit.analysis.replay.traces import read_traces
from toolkit.errors import InputError

RIGHT = {"kind": "chat", "request": "a", "prompt": [1, 2], "output": [3]}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_tokens_come_as_they_stand(tmp_path: Path) -> None:
    (request,) = read_traces(written(tmp_path, RIGHT))["chat"]
    assert (request.prompt.tolist(), request.output.tolist()) == ([1, 2], [3])


def test_classes_keep_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [RIGHT | {"kind": kind, "output": [n]} for n, kind in enumerate(["b", "a", "b"])]
    found = read_traces(written(tmp_path, *lines))
    assert {kind: [one.output[0] for one in requests] for kind, requests in found.items()} == {"b": [0, 2], "a": [1]}


def test_a_request_without_a_kind_is_of_the_file(tmp_path: Path) -> None:
    assert list(read_traces(written(tmp_path, {"prompt": [1], "output": [2]}))) == ["mine"]


def test_empty_lines_are_skipped(tmp_path: Path) -> None:
    assert len(read_traces(written(tmp_path, RIGHT, "", " ", RIGHT, ""))["chat"]) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is not a JSON object"),
        (RIGHT | {"kind": 3}, "`kind` names the class of traffic, a string, not 3"),
        (RIGHT | {"kind": ""}, "`kind` names the class"),
        ({"output": [1]}, "`prompt` is a list of at least one token id"),
        (RIGHT | {"prompt": []}, "`prompt` is a list of at least one token id"),
        (RIGHT | {"output": []}, "`output` is a list of at least one token id"),
        (RIGHT | {"output": "text"}, "`output` is a list of at least one token id"),
        (RIGHT | {"output": [1, "2"]}, '`output` holds "2"'),
        (RIGHT | {"output": [True]}, "`output` holds true"),
        (RIGHT | {"output": [1.5]}, "`output` holds 1.5"),
        (RIGHT | {"prompt": [-1]}, "`prompt` holds -1"),
        (RIGHT | {"prompt": [2**31]}, "`prompt` holds 2147483648; a token id is from 0 to 2147483647"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, said: str) -> None:
    path = written(tmp_path, RIGHT, line)
    with pytest.raises(InputError) as error:
        read_traces(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert said in str(error.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"kind": "\xff"}')
    with pytest.raises(InputError, match=r"mine\.jsonl:1: is not UTF-8"):
        read_traces(path)


def test_a_file_without_a_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no request"):
        read_traces(written(tmp_path, ""))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read this trace"):
        read_traces(tmp_path)
