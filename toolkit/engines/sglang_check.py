"""What SGLang's own ServerArgs say of an argv: no GPU, no weights, no network. And what they do not look at.

SGLang is seldom in this Python, so this file is also run as a script by the Python that has it; as such it imports the
standard library and SGLang alone. Seen with 0.5.23: parsing checks little (the algorithm's name is no list of choices),
`resolve_once` reads the models' configs and finds the rest; a draft of another vocabulary or width passes.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TIMEOUT = 300.0  # seconds: it imports torch and SGLang
_MARK = "toolkit-problems "


def problems(python: str, argv: Sequence[str], device: str) -> list[str]:
    """Problems of `argv` (models given as folders that hold a config.json), empty when SGLang would accept it.

    `python` is one that has SGLang. Raises EngineError when that fails in a way that says nothing of the arguments.
    """
    from toolkit.errors import EngineError

    arguments = list(argv[argv.index("--model-path") :])
    asked = json.dumps({"arguments": arguments, "device": device})
    here = str(Path(__file__).resolve())
    try:  # -P: the modules beside this file are named like packages that SGLang imports
        done = subprocess.run(
            [python, "-P", here],
            input=asked,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env=_environment(device),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{python}: SGLang's arguments could not be asked: {error}.") from None
    line = next((one for one in done.stdout.splitlines() if one.startswith(_MARK)), None)
    if line is None:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise EngineError(f"{python}: SGLang's arguments could not be asked: {last[:300]}")
    return [*json.loads(line.removeprefix(_MARK)), *_misfits(arguments)]


def _environment(device: str) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "SGLANG_DISABLE_REQUEST_LOGGING": "1"}
    return {**os.environ, **quiet, **({"SGLANG_USE_CPU_ENGINE": "1"} if device == "cpu" else {})}


def _misfits(arguments: Sequence[str]) -> list[str]:
    """What keeps a draft from fitting its target that SGLang finds when it runs, if at all."""
    draft = _after(arguments, "--speculative-draft-model-path")
    if draft is None:
        return []
    target_config, draft_config = (_config(folder) for folder in (arguments[1], draft))
    algorithm = _after(arguments, "--speculative-algorithm")
    if algorithm == "STANDALONE":
        sizes = target_config.get("vocab_size"), draft_config.get("vocab_size")
        if sizes[0] != sizes[1]:
            return [f"target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens."]
    elif algorithm in ("EAGLE", "EAGLE3"):
        inner = draft_config.get("transformer_layer_config") or draft_config
        width = target_config.get("hidden_size")
        wants = draft_config.get("target_hidden_size") or inner.get("hidden_size")
        if None not in (wants, width) and wants != width:
            return [f"the head was made for a target of width {wants}, this target's is {width}."]
    return []


def _after(arguments: Sequence[str], flag: str) -> str | None:
    return arguments[arguments.index(flag) + 1] if flag in arguments else None


def _config(folder: str) -> dict[str, Any]:
    try:
        found = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _main() -> None:
    asked = json.load(sys.stdin)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = _refused(asked["arguments"], asked["device"], said)
    except ImportError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(_MARK + json.dumps(found))


def _refused(arguments: list[str], device: str, said: io.StringIO) -> list[str]:
    if device == "cpu":
        from toolkit.lab.sglang_cpu import prepare

        prepare()
    elif not _has_gpu():
        arguments = [*arguments, "--device", "cuda"]
    from sglang.srt.server_args import prepare_server_args

    try:
        asked = prepare_server_args(arguments)
        asked.resolve_once()
        asked.check_server_args()
    except SystemExit:
        return [said.getvalue().strip().splitlines()[-1].partition("error: ")[2]]
    except Exception as error:
        lines = str(error).strip().splitlines()
        return [f"{type(error).__name__}: {lines[0]}" if lines else f"{type(error).__name__} without a message"]
    return []


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    _main()
