"""What SGLang's own ServerArgs say of an argv: no GPU, no weights, no network. And what they do not look at.

SGLang is seldom in this Python, so this file is also run as a script by the Python that has it; as such it imports the
standard library and SGLang alone. It imports SGLang once, which takes seconds, and forks for each argv, since resolving
one leaves its marks on the process. Seen with 0.5.23: parsing checks little (the algorithm's name is no list of
choices), `resolve_once` reads the models' configs and finds the rest; a draft of another vocabulary or width passes.
"""

import atexit
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_TIMEOUT = 300.0  # seconds: it imports torch and SGLang
# The lab's launcher gives SGLang what it lacks on a CPU before it is imported.
_ON_A_CPU = (
    "from toolkit.lab.sglang_cpu import prepare; prepare(); import runpy; runpy.run_path({!r}, run_name='__main__')"
)


def problems(python: str, argv: Sequence[str], device: str, env: Mapping[str, str]) -> list[str]:
    """Problems of `argv` (models given as folders that hold a config.json), empty when SGLang would accept it.

    `python` is one that has SGLang. Raises EngineError when that fails in a way that says nothing of the arguments.
    """
    arguments = list(argv[argv.index("--model-path") :])
    return [*_asked(python, device).ask(arguments), *_misfits(arguments, env.get(_LONGER) in ("1", "true"))]


class _Asked:
    """The process that answers for one Python, until ours ends."""

    def __init__(self, python: str, device: str) -> None:
        self._python = python
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        here = str(Path(__file__).resolve())
        script = ["-c", _ON_A_CPU.format(here)] if device == "cpu" else [here]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as long as the process
        # -P: the modules beside this file are named like packages that SGLang imports.
        self._process = subprocess.Popen(
            [python, "-P", *script, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **quiet},
        )
        atexit.register(self._process.kill)

    def ask(self, arguments: list[str]) -> list[str]:
        from toolkit.errors import EngineError

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_TIMEOUT, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(arguments) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        told = json.loads(answer) if answer else {"failed": self._last_words()}
        if "failed" in told:
            raise EngineError(f"{self._python}: SGLang's arguments could not be asked: {told['failed'][:300]}.")
        return list(told["problems"])

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else f"it ended without a word, or took over {_TIMEOUT:.0f} s"


@cache
def _asked(python: str, device: str) -> _Asked:
    return _Asked(python, device)


def _misfits(arguments: Sequence[str], may_be_longer: bool) -> list[str]:
    """What keeps a draft from fitting its target that SGLang finds when it runs, if at all."""
    draft = _after(arguments, "--speculative-draft-model-path")
    if draft is None:
        return []
    target_config, draft_config = (_config(folder) for folder in (arguments[1], draft))
    length = int(_after(arguments, "--context-length") or 0)
    positions = None if draft_config.get("rope_scaling") else draft_config.get("max_position_embeddings")
    if isinstance(positions, int) and length > positions and not may_be_longer:
        return [
            f"the draft was made for {positions} positions and limits.max_model_len is {length}, which SGLang gives it "
            f'too: it starts with {_LONGER}: "1" under environment.'
        ]
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


def _serve(device: str) -> None:
    """Answer one JSON line for each on stdin. SGLang's own words on stdout go nowhere."""
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        if device != "cpu":
            _let_torchvision_import()
        # All that resolving imports, so that no fork has to.
        import sglang.srt.configs.model_config
        import sglang.srt.server_args
        import sglang.srt.speculative.spec_info  # noqa: F401
    except Exception as error:
        _answer(answers, {"failed": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _answer(answers, {"problems": _refused(json.loads(line), device)})
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            _answer(answers, {"failed": f"it ended with {status}"})


def _answer(answers: int, told: dict[str, Any]) -> None:
    os.write(answers, json.dumps(told).encode() + b"\n")


def _refused(arguments: list[str], device: str) -> list[str]:
    from sglang.srt.server_args import prepare_server_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            asked = prepare_server_args(arguments if device == "cpu" else [*arguments, "--device", "cuda"])
            asked.resolve_once()
            asked.check_server_args()
    except SystemExit:
        return [said.getvalue().strip().splitlines()[-1].partition("error: ")[2]]
    except Exception as error:
        lines = str(error).strip().splitlines()
        return [f"{type(error).__name__}: {lines[0]}" if lines else f"{type(error).__name__} without a message"]
    return []


def _let_torchvision_import() -> None:
    """Beside a CPU build of torch, torchvision dies at import for want of two operators that nothing here calls."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        _kept.append(library := torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_kept: list[Any] = []  # an operator goes with its library


if __name__ == "__main__":
    _serve(sys.argv[1])
