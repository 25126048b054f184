"""`toolkit layer-skip search`: from a target and prompts to the sets of its layers that draft best, and what they win.

Half of the prompts are searched with. The numbers that count are those of the other half.
"""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from toolkit.analysis.forecast.cost import read_cost
from toolkit.analysis.forecast.estimate import IntArray
from toolkit.analysis.layers.curve import Enough, Kept, LayerSearch, Point, point, round_cost
from toolkit.analysis.layers.search import search
from toolkit.analysis.layers.shared_kv import Recording, Scorer, continuations
from toolkit.analysis.workload import in_language, load_workload
from toolkit.errors import InputError
from toolkit.lab.tokenizer import FolderTokenizer, Tokenizer
from toolkit.launch.layer_draft import LayerTarget, layer_target, write_draft
from toolkit.launch.models import resolve_model
from toolkit.proposers.layer_set import check_place

PROMPTS, TOKENS, MOST_K = 32, 32, 8
FEWEST = 4
BATCH = 16
"""Prompts that are answered side by side."""


@dataclass(frozen=True, slots=True)
class LayerAsk:
    """What is asked: `requests` prompts, half of them held out, `tokens` of each answer at which drafts start.

    `cost` is what verify-cost measured; None counts a pass over K + 1 tokens as one of one token.
    """

    target: str
    prompts: str
    output: Path | None = None
    requests: int = PROMPTS
    tokens: int = TOKENS
    k: int = MOST_K
    cost: Path | None = None
    seed: int = 0


def layer_search(ask: LayerAsk, told: Callable[[str], None] = lambda _: None) -> LayerSearch:
    """Search; writes the draft directory of the best set to `ask.output`, whether it pays or not.

    Raises InputError for an ask that cannot be met: before weights load, as far as that can be known.
    """
    begun, begun_cpu = time.perf_counter(), time.process_time()
    target = layer_target(ask.target)
    _check(ask)
    verify, source = _verify_cost(ask.cost)
    asked = _prompts(ask)
    told("loading the model")
    network, tokenizer = _load(target)
    searched, held_out = _halves(ask, [_encode(tokenizer, messages) for messages in asked], target)
    recordings = []
    for name, prompts in (("searched", searched), ("held-out", held_out)):
        told(f"{name} prompts: the target answers {len(prompts)}")
        batches = [prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)]
        texts = [text for batch in batches for text in continuations(network, batch, ask.tokens, ask.k, tokenizer.eos)]
        recordings.append(Recording(network, texts))
    fast, precision = _fast(network)
    scorer = Scorer(recordings[0] if fast is network else Recording(fast, recordings[0].texts))
    best = search(scorer, told)
    points = []
    for size in sorted(best, reverse=True):
        told(f"drafting with {size} of {target.layers} layers")
        points.append(_point(recordings, best[size], target.step_share(size), verify, ask.k))
    found = LayerSearch(
        target=target.name,
        prompts=ask.prompts,
        count=target.layers,
        points=tuple(points),
        cost_source=f"c by the bytes that a pass reads, output head included; {source}",
        precision=precision,
        texts=(len(recordings[0].texts), len(recordings[1].texts)),
        places=(len(recordings[0].starts), len(recordings[1].starts)),
        evaluations=scorer.evaluations,
        seconds=time.perf_counter() - begun,
        cpu_seconds=time.process_time() - begun_cpu,
    )
    if ask.output is not None:
        write_draft(target, ask.output, found.best.layers)
    return found


def _check(ask: LayerAsk) -> None:
    if ask.output is not None:
        check_place(ask.output)
    limits = (("--requests", ask.requests, FEWEST), ("--tokens", ask.tokens, 2), ("--k", ask.k, 1))
    for flag, value, least in limits:
        if value < least:
            raise InputError(f"{flag} {value}: {least} or more.")
    if ask.k > 64:
        raise InputError(f"--k {ask.k}: at most 64.")


def _verify_cost(path: Path | None) -> tuple[Callable[[int], float], str]:
    """A pass over n tokens in passes over one, and the words for it."""
    if path is None:
        return lambda tokens: 1.0, "a pass over K + 1 tokens counts as one"
    cost = read_cost(path)
    one = cost.plain.seconds(1, 0)
    return lambda tokens: cost.plain.seconds(tokens, 0) / one, f"a pass over K + 1 tokens as {path} measured it"


def _load(target: LayerTarget) -> tuple[Any, Tokenizer]:
    """The network, in float32, and its tokenizer."""
    from toolkit.lab.causal_lm import load_model

    folder = Path(resolve_model(target.name))
    return load_model(folder).network, FolderTokenizer(folder)


def _fast(network: Any) -> tuple[Any, str]:
    """What to search with: a copy in bfloat16 where the CPU multiplies it in hardware; and the words for it.

    Rounding alone makes 2 % of its drafts disagree. That costs no layer its rank, but the numbers are float32's.
    """
    import torch

    if not torch.cpu.get_capabilities().get("amx_bf16"):
        return network, "searched and measured in float32"
    return deepcopy(network).to(torch.bfloat16), "searched in bfloat16, measured in float32"


def _prompts(ask: LayerAsk) -> list[tuple[dict[str, str], ...]]:
    """The messages of each prompt, in an order of the seed: files are often sorted by category."""
    workload = in_language(load_workload(ask.prompts, ask.seed), "what drafts agree on")
    numbers = list(range(ask.requests if workload.size is None else workload.size))
    if len(numbers) < FEWEST:
        raise InputError(
            f"--prompts {ask.prompts}: holds {len(numbers)} prompts; half are held out, so {FEWEST} or more."
        )
    Random(ask.seed).shuffle(numbers)
    return [workload.prompt(number).messages for number in numbers[: ask.requests]]


def _halves(ask: LayerAsk, prompts: list[list[int]], target: LayerTarget) -> tuple[list[list[int]], list[list[int]]]:
    """Those to search with, and those to hold out. Raises InputError where one is too long for the target."""
    longest = target.config.get("max_position_embeddings")
    room = max(map(len, prompts)) + ask.tokens + ask.k
    if isinstance(longest, int) and room > longest:
        raise InputError(
            f"--prompts {ask.prompts}: the longest needs {room} tokens; the target was made for {longest}."
        )
    half = (len(prompts) + 1) // 2
    return prompts[:half], prompts[half:]


def _encode(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> list[int]:
    """As a chat; as plain text where the tokenizer has no chat template that takes it."""
    try:
        return tokenizer.chat(messages)
    except ValueError:
        return tokenizer.encode("\n\n".join(message["content"] for message in messages))


def _point(
    recordings: Sequence[Recording], layers: tuple[int, ...], c: float, verify: Callable[[int], float], most: int
) -> Point:
    """Drafts as long as may pay on the texts searched with, and as long on those held out."""
    cost = round_cost(c, verify)
    searched, held_out = ((one.text[one.starts], _left(one)) for one in recordings)
    enough = Enough(c, cost, *searched)
    counts = recordings[0].kept(layers, most, enough)
    depth = max(1, enough.depth)
    others = recordings[1].kept(layers, depth)
    return point(layers, c, cost, Kept(counts, *searched), Kept(others, *held_out), depth)


def _left(recording: Recording) -> IntArray:
    """Tokens of its text behind each start."""
    ends = np.array([int((recording.text <= number).sum()) for number in range(len(recording.texts))])
    left: IntArray = ends[recording.text[recording.starts]] - recording.starts
    return left
