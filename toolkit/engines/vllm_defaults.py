"""What vLLM sends along with requests that do not ask for it: sampling defaults of the model or of the command line."""

import json
from contextlib import suppress
from pathlib import Path

from toolkit.engines.contract import Profile
from toolkit.errors import InputError

NO_MIN_P = (
    "vLLM refuses min_p and logit_bias under speculative decoding, each request with HTTP 400 (`_validate_spec_decode` "
    "in vllm/sampling_params.py)"
)


def refuse_default_min_p(profile: Profile, folder: str) -> None:
    """Raises InputError where every request to the speculating server would get a min_p by default, and be refused.

    It comes from --override-generation-config, else from generation_config.json of the model in `folder`, which
    `--generation-config vllm` sets aside (get_diff_sampling_param in vllm/config/model.py).
    """
    override = _value(profile.engine_args, "--override-generation-config")
    if override is not None:
        source, text = "engine_args: --override-generation-config", override
        if _min_p(text):
            raise InputError(f"{source}: profile {profile.name} speculates, and {NO_MIN_P}. Leave min_p out.")
        with suppress(ValueError, TypeError):
            if "min_p" in json.loads(text):
                return
    path = Path(folder) / "generation_config.json"
    if _value(profile.engine_args, "--generation-config") is None and _min_p(_text(path)):
        raise InputError(
            f"{path}: the model asks for min_p, profile {profile.name} speculates, and {NO_MIN_P}. Set it aside in "
            "both arms: engine_args: [--generation-config, vllm]."
        )


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


def _min_p(text: str) -> bool:
    """Whether a generation config in JSON asks for a min_p above 0."""
    try:
        return bool(json.loads(text).get("min_p"))
    except (ValueError, AttributeError, RecursionError):
        return False


def _value(arguments: list[str], flag: str) -> str | None:
    """The value of `flag`, the last one given, as in argparse."""
    found = None
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else following
    return found
