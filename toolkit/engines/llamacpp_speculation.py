"""The neutral speculation block in llama-server's arguments. Facts are of b11434.

Sources in the engine: common/arg.cpp (arguments), common/speculative.cpp (drafters and what they stop at),
common/ngram-map.cpp (what a lookup takes for a match).
"""

from collections.abc import Callable

from toolkit.engines.contract import Speculation
from toolkit.errors import InputError

GGUF = "gguf:"
"""What this engine puts before a model's name to be given a GGUF file of it."""

# Of each lookup: the flags of the length that is looked up and of the draft's, our K.
_LOOKUPS = {
    "ngram-simple": ("--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m"),
    "ngram-map-k": ("--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m"),
    "ngram-map-k4v": ("--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m"),
    "ngram-mod": ("--spec-ngram-mod-n-match", "--spec-ngram-mod-n-max"),
}
_DRAFTERS = {"draft_model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
_SHORT_LOOKUP = 2  # tokens, where a profile does not say: vLLM's shortest by default


def speculation_arguments(speculation: Speculation, resolve: Callable[[str], str]) -> tuple[list[str], tuple[str, ...]]:
    """The arguments of the speculation block, and what it left open."""
    k, options = str(speculation.num_speculative_tokens), dict(speculation.options)
    if speculation.schedule is not None:
        raise InputError("speculation.schedule: llama.cpp has none, it drafts as many tokens at every load.")
    if speculation.draft_revision is not None:
        raise InputError("speculation.draft_revision: a GGUF file is what it is, it has no revisions.")
    filled_in: tuple[str, ...] = ()
    if speculation.method == "ngram":
        arguments, filled_in = _lookup(speculation, str(options.pop("spec_type", "ngram-simple")))
    elif speculation.method in _DRAFTERS:
        arguments = ["--spec-type", _DRAFTERS[speculation.method]]
        if speculation.draft:
            arguments += ["-md", resolve(GGUF + speculation.draft)]
        arguments += ["--spec-draft-n-max", k]
        if "spec_draft_p_min" not in options:  # older servers stop a draft where its model is unsure (0.75)
            arguments += ["--spec-draft-p-min", "0"]
    else:
        raise InputError(
            f"speculation.method {speculation.method}: llama.cpp has ngram, {', '.join(_DRAFTERS)}; not this one."
        )
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if not flag.startswith("--spec-") or flag in arguments or isinstance(value, (list, dict)):
            raise InputError(
                f"speculation.options.{name}: of llama-server's arguments those that begin with spec, "
                "written like spec_draft_p_min, and that no word of ours sets."
            )
        no = flag.replace("--", "--no-", 1)
        arguments += [flag if value else no] if isinstance(value, bool) else [flag, str(value)]
    return arguments, filled_in


def _lookup(speculation: Speculation, kind: str) -> tuple[list[str], tuple[str, ...]]:
    """llama.cpp looks up suffixes of one length; and `ngram-simple` never drafts fewer tokens than that length."""
    if kind not in _LOOKUPS:
        raise InputError(f"speculation.options.spec_type {kind}: of method ngram there are {', '.join(_LOOKUPS)}.")
    k, shortest, longest = speculation.num_speculative_tokens, speculation.lookup_min, speculation.lookup_max
    if shortest and longest and shortest != longest:
        raise InputError(
            f"speculation.lookup_min {shortest} and lookup_max {longest}: llama.cpp looks up suffixes of one length, "
            "give the same number twice."
        )
    length = shortest or longest or min(_SHORT_LOOKUP, k)
    if kind == "ngram-simple" and length > k:
        raise InputError(
            f"speculation.lookup_min {length} is above num_speculative_tokens {k}: llama.cpp's ngram-simple never "
            "drafts fewer tokens than it looks up, so it would never draft."
        )
    flags = _LOOKUPS[kind]
    arguments = ["--spec-type", kind, flags[0], str(length), flags[1], str(k)]
    if kind == "ngram-mod":
        arguments += ["--spec-ngram-mod-n-min", "1"]  # its own 48 would let no draft of K tokens through
    return arguments, () if shortest or longest else (f"speculation.lookup_min and lookup_max: {length}",)
