"""The engines, one file each. `ENGINES` is the one list of them."""

import difflib

from toolkit.engines.contract import Engine
from toolkit.engines.lab import LabReference
from toolkit.engines.llamacpp import LlamaCpp
from toolkit.engines.openai import OpenAIEndpoint
from toolkit.engines.sglang import SGLang
from toolkit.engines.vllm import VLLM
from toolkit.errors import InputError

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (VLLM(), OpenAIEndpoint(), LabReference(), SGLang(), LlamaCpp())
}


def engine(name: str) -> Engine:
    """The adapter called `name`. Raises InputError naming the nearest known one."""
    if name in ENGINES:
        return ENGINES[name]
    near = difflib.get_close_matches(name, ENGINES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(f"unknown engine {name!r}.{hint} Known: {', '.join(ENGINES)}.")
