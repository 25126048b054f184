"""What several commands share: their options, and JSON on stdout."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Stable keys, numbers as numbers, nothing else on stdout.")]
ProfileName = Annotated[str, typer.Option("--profile", "-p", help="A shipped name or a path to a YAML file.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, like limits.max_num_seqs=32.")
]
Allow = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT,...",
        help="Compare although these differ, and say so: depth, prompts, tokens, sampling, temperature, target.",
    ),
]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Environment variable that holds the key.")]
ApiKeyFile = Annotated[str | None, typer.Option(help="File that holds the key.", metavar="PATH")]
RunFolder = Annotated[Path, typer.Argument(help="A Run directory, as `toolkit sweep` names it.")]


def whole_numbers(flag: str, text: str) -> list[int]:
    """`1,4,16` as numbers. Raises InputError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} {text}: whole numbers with commas between them, like 1,4,16,64.") from None


def allowed(text: str | None) -> list[str]:
    """The kinds that --allow names."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def print_json(value: Any) -> None:
    """Nothing but `value` on stdout."""
    print(json.dumps(value, indent=1, allow_nan=False))
