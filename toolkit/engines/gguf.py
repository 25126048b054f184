"""What a GGUF file says of itself: the few facts that we check or report, from its head; no weights are read.

The format is that of ggml/include/gguf.h in llama.cpp: magic, version, counts of tensors and of keys, then each key as
(name, type, value), little-endian; the numbers of `general.file_type` are those of `llama_ftype` in include/llama.h.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.errors import InputError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 30: "IQ4_XS"},
    **{25: "IQ4_NL", 32: "BF16", 38: "MXFP4", 39: "NVFP4"},
}
_LONGEST = 1 << 24  # bytes of one string, items of one array: more is not a file that anyone made on purpose


@dataclass(frozen=True, slots=True)
class GGUFFacts:
    """None where the file does not say."""

    file_type: str | None = None
    vocabulary: int | None = None  # tokens
    context: int | None = None  # tokens that the model was trained for


def read_gguf(path: Path) -> GGUFFacts:
    """The facts of a GGUF file. Raises InputError when it cannot be read or is none."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InputError(f"{path}: is no GGUF file.")
            found = _keys(file)
    except (ValueError, MemoryError, RecursionError) as error:
        raise InputError(f"{path}: is no whole GGUF file: {error}.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    kind, context = found.get("general.file_type"), found.get(f"{found.get('general.architecture')}.context_length")
    return GGUFFacts(
        file_type=_FILE_TYPES.get(kind, f"GGUF file type {kind}") if isinstance(kind, int) else None,
        vocabulary=found.get("tokenizer.ggml.tokens"),
        context=context if isinstance(context, int) else None,
    )


def _keys(file: BinaryIO) -> dict[str, Any]:
    """Every key; of an array its length alone."""
    _, _, count = struct.unpack("<IQQ", _read(file, 20))
    found = {}
    for _ in range(count):
        name = _string(file)
        found[name] = _value(file, *struct.unpack("<I", _read(file, 4)))
    return found


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, length = struct.unpack("<IQ", _read(file, 12))
        if length > _LONGEST:
            raise ValueError(f"an array of {length} items")
        if inner in _SCALARS:
            _read(file, length * struct.calcsize(_SCALARS[inner]))
        else:
            for _ in range(length):
                _value(file, inner)
        return length
    if kind not in _SCALARS:
        raise ValueError(f"a value of unknown type {kind}")
    (value,) = struct.unpack(_SCALARS[kind], _read(file, struct.calcsize(_SCALARS[kind])))
    return value


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", _read(file, 8))
    if length > _LONGEST:
        raise ValueError(f"a string of {length} bytes")
    return _read(file, length).decode("utf-8", errors="replace")


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it ends too soon")
    return data
