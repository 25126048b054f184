"""The head of a GGUF file: file type, vocabulary, context."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.engines.gguf import GGUFFacts, read_gguf
from toolkit.errors import InputError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def strings(*values: str) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values))


def head(*keys: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)


ARCHITECTURE = key("general.architecture", 8, text("llama"))
FILE_TYPE = key("general.file_type", 4, struct.pack("<I", 3))
CONTEXT = key("llama.context_length", 4, struct.pack("<I", 8192))
SCORES = key("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 2) + struct.pack("<2f", 0.5, 1.5))
TOKENS = key("tokenizer.ggml.tokens", 9, strings("a", "b", "é"))
NESTED = key("odd", 9, struct.pack("<IQ", 9, 1) + strings("x"))
WHOLE = head(ARCHITECTURE, FILE_TYPE, SCORES, NESTED, CONTEXT, TOKENS)


def facts(folder: Path, data: bytes) -> GGUFFacts:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return read_gguf(path)


def test_it_says_how_its_weights_are_stored(tmp_path: Path) -> None:
    assert facts(tmp_path, WHOLE).file_type == "Q4_1"


def test_a_file_type_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    unknown = key("general.file_type", 4, struct.pack("<I", 999))
    assert facts(tmp_path, head(unknown)).file_type == "GGUF file type 999"


def test_the_vocabulary_is_the_number_of_its_tokens(tmp_path: Path) -> None:
    assert facts(tmp_path, WHOLE).vocabulary == 3


def test_the_context_is_that_of_its_architecture(tmp_path: Path) -> None:
    other = key("qwen.context_length", 4, struct.pack("<I", 7))
    assert facts(tmp_path, head(ARCHITECTURE, other, CONTEXT)).context == 8192


def test_what_the_file_does_not_say_is_unavailable(tmp_path: Path) -> None:
    assert facts(tmp_path, head()) == GGUFFacts(None, None, None)


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no GGUF file"):
        facts(tmp_path, b"\x89PNG and more")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    "value",
    [
        key("long", 8, struct.pack("<Q", 2**60)),
        key("long", 9, struct.pack("<IQ", 8, 2**60)),
        key("strange", 77, b""),
    ],
    ids=["a string of an exabyte", "an array of an exabyte", "a type that there is not"],
)
def test_nonsense_is_refused(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(InputError, match="is no whole GGUF file"):
        facts(tmp_path, head(value))


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    with pytest.raises(InputError):
        facts(tmp_path_factory.mktemp("cut"), WHOLE[:cut])
