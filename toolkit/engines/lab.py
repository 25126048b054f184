"""lab-reference: our own reference loop as an engine, `toolkit lab serve` in a process of its own.

It speaks vLLM's dialect (toolkit/lab/reply.py), so its responses and its page are read by vLLM's adapter. Of the limits
of a profile only max_model_len means something here: it serves one request at a time, in fp32 on the CPU.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from toolkit import __version__
from toolkit.engines.contract import Command, Counters, KnownFailure, Profile, SpecCounts, Speculation
from toolkit.engines.vllm import VLLM
from toolkit.errors import EngineError, InputError

_NEEDS = ("torch", "transformers")
_MISSING = "the reference loop runs models with torch and transformers, which are not here; `make venv` installs them."
_DTYPES = ("auto", "float32")

_KNOWN_FAILURES = (
    KnownFailure(r"cannot listen on", "The port is taken: choose another with --set server.port=N."),
    KnownFailure(r"with torch and transformers|read with transformers", "`make venv` installs them."),
    KnownFailure(
        r"Cannot allocate memory|MemoryError|std::bad_alloc|DefaultCPUAllocator",
        "There is not enough memory: the model takes 4 bytes a parameter here. Stop what else uses it.",
    ),
)


class LabReference:
    """The adapter of `toolkit lab serve`."""

    name = "lab-reference"
    known_failures: Sequence[KnownFailure] = _KNOWN_FAILURES
    key_variable: str | None = None
    owners = frozenset({"toolkit-lab"})
    version_at: tuple[str, str] | None = None
    greedy_on: frozenset[str] = frozenset()
    not_under_speculation: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._dialect = VLLM()

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        """argv of the server: methods `ngram` and `draft_model`, whose `options.layers` drafts with the target's own.

        Raises InputError for what the reference loop has not.
        """
        _refuse_foreign(profile)
        argv = [sys.executable, "-m", "toolkit", "lab", "serve", "--target", resolve(profile.target.model)]
        argv += ["--served-name", profile.served_model]
        argv += ["--host", profile.server.host, "--port", str(profile.server.port)]
        if profile.limits.max_model_len is not None:
            argv += ["--max-model-len", str(profile.limits.max_model_len)]
        argv += _drafter(profile.target.model, profile.speculation, resolve) if profile.speculation else _NO_DRAFTER
        return Command((*argv, *profile.engine_args), dict(profile.environment))

    def installed_version(self) -> str | None:
        return f"{__version__} (transformers {version('transformers')})" if _installed() else None

    def scheduling(self, profile: Profile) -> str | None:
        return None

    def schedule_refusal(self, profile: Profile) -> str | None:
        return "the reference loop serves one request at a time: there is no load to choose K by"

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        """What `command` does not see: vocabularies, layers and lengths, from the config.json of each model."""
        if not _installed():
            raise EngineError(_MISSING)
        self.command(profile, configs)
        target = _config(configs(profile.target.model))
        asked, made_for = profile.limits.max_model_len, target.get("max_position_embeddings")
        found = []
        if asked is not None and isinstance(made_for, int) and asked > made_for:
            found.append(f"limits.max_model_len {asked} is longer than the {made_for} that the model was made for.")
        if profile.speculation and profile.speculation.draft:
            draft = _config(configs(profile.speculation.draft))
            sizes = target.get("vocab_size"), draft.get("vocab_size")
            if sizes[0] != sizes[1]:
                found.append(f"target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens.")
            layers = target.get("num_hidden_layers")
            beyond = {layer for layer in profile.speculation.options.get("layers", ()) if layer >= (layers or 0)}
            if isinstance(layers, int) and beyond:
                found.append(f"speculation.options.layers: the target has no layer {min(beyond)}.")
        return found

    def request_fields(self) -> dict[str, Any]:
        return self._dialect.request_fields()

    def chunk_tokens(self, chunk: dict[str, Any]) -> int | None:
        return self._dialect.chunk_tokens(chunk)

    def prompt_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        return self._dialect.prompt_ids(chunk)

    def answer_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        return self._dialect.answer_ids(chunk)

    def spec_counts(self, chunk: dict[str, Any]) -> SpecCounts | None:
        return self._dialect.spec_counts(chunk)

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        return self._dialect.passes(completion_tokens, chunk_sizes, counts)

    def counters(self, page: str) -> Counters:
        return self._dialect.counters(page)


_NO_DRAFTER = ["--drafter", "none"]


def _refuse_foreign(profile: Profile) -> None:
    target = profile.target
    for wrong, said in (
        (profile.container is not None, "container: the reference loop is no image, it runs in this Python"),
        (profile.device != "cpu", f"device {profile.device}: the reference loop runs on the CPU"),
        (target.dtype not in _DTYPES, f"target.dtype {target.dtype}: the reference loop computes in float32"),
        (target.quantization is not None, "target.quantization: the reference loop computes in float32"),
        (target.revision is not None, "target.revision: the reference loop takes a model that is on this machine"),
        (profile.limits.tensor_parallel > 1, "limits.tensor_parallel: the reference loop runs in one process"),
    ):
        if wrong:
            raise InputError(f"profile {profile.name}: {said}.")


def _drafter(target: str, speculation: Speculation, resolve: Callable[[str], str]) -> list[str]:
    k = ["--k", str(speculation.num_speculative_tokens)]
    options = dict(speculation.options)
    layers = options.pop("layers", None) if speculation.method == "draft_model" else None
    if options:
        raise InputError(f"speculation.options.{min(options)}: the reference loop has `layers` of draft_model only.")
    if speculation.schedule is not None:
        raise InputError("speculation.schedule: the reference loop serves one request at a time, so K is fixed.")
    if speculation.method == "ngram":
        longest = speculation.lookup_max or max(5, speculation.lookup_min or 0)
        shortest = speculation.lookup_min or min(2, longest)
        return ["--drafter", "lookup", "--lookup", f"{shortest},{longest}", *k]
    if speculation.method != "draft_model" or speculation.draft is None:
        raise InputError(f"speculation.method {speculation.method}: the reference loop has ngram and draft_model.")
    if layers is None:
        return ["--drafter", "model", "--draft", resolve(speculation.draft), *k]
    if speculation.draft != target:
        raise InputError(f"speculation.options.layers are of the target: give speculation.draft as {target}.")
    if not isinstance(layers, list) or not layers or not all(type(one) is int and one >= 0 for one in layers):
        raise InputError("speculation.options.layers: a list of the layers that the draft keeps, like [0, 1, 2, 29].")
    return ["--drafter", "layers", "--layers", ",".join(map(str, layers)), *k]


def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in _NEEDS)


def _config(folder: str) -> dict[str, Any]:
    file = Path(folder) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: is no JSON object.")
    return config
