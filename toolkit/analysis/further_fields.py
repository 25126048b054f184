"""Further fields of every request, `--field NAME=VALUE`: sent as they are, if a measurement can have them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.engines.contract import Engine
from toolkit.errors import InputError

_OURS = {
    "model": "--model",
    "messages": "--workload",
    "prompt": "--workload",
    "max_tokens": "--max-tokens",
    "max_completion_tokens": "--max-tokens",
    "temperature": "--temperature",
    "ignore_eos": "--ignore-eos",
}
_FIXED = ("stream", "stream_options", "n", "best_of", "use_beam_search", "return_token_ids", "logprobs", "echo")


def read_fields(texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE`, a value being JSON, or else a text. Raises InputError for what is none, and for what is ours."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--field {text}: NAME=VALUE, like top_p=0.9.")
        if name in _OURS:
            raise InputError(f"--field {name}: {_OURS[name]} says it.")
        if name in _FIXED:
            raise InputError(f"--field {name}: a sweep streams one answer per request, as the numbers need it.")
        try:
            found[name] = json.loads(value)
            json.dumps(found[name], allow_nan=False)
        except (ValueError, RecursionError):
            found[name] = value
    return found


def refuse_fields(name: str, engine: Engine, fields: Mapping[str, Any]) -> None:
    """Raises InputError for a field that `engine` refuses or ignores where it speculates, as the arm `name` does.

    A value that asks for nothing (0, an empty object) is let through.
    """
    for field, limit in engine.not_under_speculation.items():
        if fields.get(field):
            raise InputError(
                f"--field {field}: {name} speculates, and {limit}. Leave it out of both arms: with it in one alone the "
                "two would not be asked the same."
            )
