"""What the installed vLLM's own parser and SpeculativeConfig say of an argv: no GPU, no weights, no network.

Kept apart from the adapter because it imports vLLM, which takes seconds. Seen with 0.32.0: the method of a
speculative config is detected again from the draft's path, and an EAGLE head of another model's width passes, so both
are compared here.
"""

import contextlib
import importlib.util
import io
import os
from collections.abc import Sequence
from typing import Any

from toolkit.errors import EngineError, InputError
from toolkit.proposers.layer_set import ARCHITECTURE, of_config
from toolkit.proposers.layer_target import why_not


def problems(argv: Sequence[str]) -> list[str]:
    """Problems of `argv` (models given as folders that hold a config.json), empty when vLLM would accept it.

    Raises EngineError when vLLM is not installed in this Python.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed in this Python, so its parser cannot be asked; 'speculative-toolkit[vllm]' has it."
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["HF_HUB_OFFLINE"] = "1"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return _checked(list(argv[argv.index("--model") :]))
    except SystemExit:
        return [said.getvalue().strip().splitlines()[-1].partition("error: ")[2]]
    except Exception as error:
        return [_first_message(error)]


def _checked(argv: list[str]) -> list[str]:
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    validate_parsed_serve_args(namespace)
    arguments = AsyncEngineArgs.from_cli_args(namespace)
    target = arguments.create_model_config()
    if not arguments.speculative_config:
        return []
    asked = dict(arguments.speculative_config)
    parallel = ParallelConfig(tensor_parallel_size=1)  # more than one would look for the devices
    speculative = arguments.create_speculative_config(target_model_config=target, target_parallel_config=parallel)
    found = layer_skip_problems(target, speculative)
    if speculative.method != asked["method"]:
        found.append(f"vLLM reads method {speculative.method} from the draft's name, not {asked['method']}.")
    if asked["method"] in ("eagle", "eagle3"):
        draft = speculative.draft_model_config.hf_config
        width = target.get_hidden_size()
        wants = getattr(draft, "target_hidden_size", None) or draft.hidden_size
        if wants != width:
            found.append(f"the head was made for a target of width {wants}, this target's is {width}.")
    return found


def layer_skip_problems(target: Any, speculative: Any) -> list[str]:
    """What our own proposer would refuse at its start, as far as the two models' configs tell."""
    draft = speculative.draft_model_config
    if draft is None or ARCHITECTURE not in (draft.hf_config.architectures or []):
        return []
    config = target.hf_config.to_dict()
    try:
        reason = why_not(config) or of_config(draft.hf_config.to_dict()).mismatch(config)
    except InputError as error:
        reason = str(error)
    return [f"layer skip cannot serve this: {reason.rstrip('.')}."] if reason else []


def _first_message(error: Exception) -> str:
    details: Any = getattr(error, "errors", None)  # pydantic's ValidationError
    if callable(details):
        with contextlib.suppress(Exception):
            first = details()[0]
            where = ".".join(str(part) for part in first["loc"])
            return f"{where}: ".lstrip(": ") + str(first["msg"]).removeprefix("Value error, ")
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
