"""Our speculation block in SGLang's arguments (sglang/srt/arg_groups/fields/spec.py, 0.5.23)."""

import re
from collections.abc import Callable
from typing import Any

from toolkit.engines.contract import Speculation
from toolkit.errors import InputError

_ALGORITHMS = {
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
}
_ABSENT = {
    "lookup": "our prompt lookup is a proposer for vLLM; SGLang's own lookup is method ngram",
    "suffix": "SGLang has no suffix decoding; its own lookup is method ngram",
    "layer_skip": "drafting with the target's own layers is ours for vLLM, SGLang has nothing like it",
    "medusa": "SGLang serves no Medusa heads; it has eagle, eagle3 and mtp",
}

_OPTION = re.compile(r"[a-z][a-z0-9-]*")

NO_SCHEDULE = (
    "SGLang takes K by load from a file of its own: give speculation.options adaptive: true and adaptive_config: PATH"
)


def speculative_arguments(speculation: Speculation, resolve: Callable[[str], str]) -> list[str]:
    """The --speculative arguments: K is a chain of K drafted tokens, which SGLang counts with their root as K + 1.

    EAGLE and its kin get steps, top-k and draft tokens together, since a part of them ends in a bare AssertionError.
    NGRAM gets a breadth of 1, where SGLang's own 10 spends its tokens on branches; `options.ngram_max_bfs_breadth` is
    free to say otherwise. Options become `--speculative-<key>`.

    Raises InputError for a method or a word that SGLang has not, and for an option that repeats a word of ours.
    """
    method = speculation.method
    if method not in _ALGORITHMS:
        raise InputError(f"speculation.method {method}: {_ABSENT.get(method, 'SGLang has no such method')}.")
    if speculation.schedule is not None:
        raise InputError(f"speculation.schedule: {NO_SCHEDULE}.")
    for word in ("lookup_min", "lookup_max"):
        if getattr(speculation, word) is not None:
            raise InputError(
                f"speculation.{word}: SGLang's n-gram has no such bound, it matches every suffix from 1 token up to "
                "the depth of its trie. Leave it out for sglang (under by_engine), or bound the trie with "
                "speculation.options.ngram_max_trie_depth."
            )
    k = speculation.num_speculative_tokens
    ours = {"--speculative-algorithm": _ALGORITHMS[method]}
    if speculation.draft is not None:
        ours["--speculative-draft-model-path"] = resolve(speculation.draft)
    if speculation.draft_revision is not None:
        ours["--speculative-draft-model-revision"] = speculation.draft_revision
    if method != "ngram":
        ours |= {"--speculative-num-steps": str(k), "--speculative-eagle-topk": "1"}
    ours["--speculative-num-draft-tokens"] = str(k + 1)
    options = _options(speculation.options, ours)
    if method != "ngram" and any(flag.startswith("--speculative-ngram-") for flag in options):
        raise InputError(f"speculation.options: SGLang's ngram_... options mean nothing to method {method}.")
    if method == "ngram" and not any(flag.startswith("--speculative-ngram-max-b") for flag in options):
        ours["--speculative-ngram-max-bfs-breadth"] = "1"
    return [word for pair in (ours | options).items() for word in pair if word]


_WORDS = {
    "--speculative-algorithm": "method",
    "--speculative-draft-model-path": "draft",
    "--speculative-draft-model-revision": "draft_revision",
    "--speculative-num-steps": "num_speculative_tokens",
    "--speculative-eagle-topk": "num_speculative_tokens, a chain",
    "--speculative-num-draft-tokens": "num_speculative_tokens",
}


def _options(options: dict[str, Any], ours: dict[str, str]) -> dict[str, str]:
    """Flag to value, an empty one for a switch."""
    found: dict[str, str] = {}
    for key, value in options.items():
        name = key.replace("_", "-").removeprefix("speculative-")
        flag, where = f"--speculative-{name}", f"speculation.options.{key}"
        if not _OPTION.fullmatch(name):
            raise InputError(f"{where}: write SGLang's own name after --speculative-, like ngram_capacity.")
        repeated = next((one for one in ours if one.startswith(flag)), None)  # argparse takes a name's first letters
        if repeated is not None:
            raise InputError(f"{where} repeats speculation.{_WORDS[repeated]}: set it there.")
        if flag in found:
            raise InputError(f"{where}: {flag} stands here twice.")
        if isinstance(value, (list, dict)) or value is False or value == "":
            raise InputError(f"{where}: a word, a number, or true for a switch; without it SGLang's own default holds.")
        found[flag] = "" if value is True else str(value)
    return found
