"""Two models with one tokenizer: the reference loop writes answers with them, and both then judge every place.

The loop drafts, verifies and goes on with what the rule emitted, as an engine does; its rounds are counted. Its texts
are the target's own, so that what `toolkit.analysis.forecast.rounds` says of them is exact. The first token of an
answer comes from the prefill, without a draft, and is no place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from toolkit.analysis.forecast.distributions import CHUNK
from toolkit.analysis.forecast.rounds import Places, joined, judge
from toolkit.analysis.workload import Prompt
from toolkit.errors import InputError
from toolkit.lab.pairing import TARGETS, TOY, load_pair
from toolkit.lab.reference import Model, ModelDrafter, Sampling, generate, honest
from toolkit.lab.tokenizer import Tokenizer
from toolkit.lab.toy import toy_draft
from toolkit.launch.models import resolve_model
from toolkit.sampling import FloatArray, one_hot

DraftSampleMethod = Literal["probabilistic", "greedy"]
"""vLLM's `draft_sample_method`: drafts drawn from q, or its argmax, which is what 0.32 does unless told otherwise."""

LAYERS = "layers"
"""The draft's name for the target with layers left out."""


@dataclass(frozen=True, slots=True)
class TwoModels:
    """A target and a draft with caches of their own. `longest` is the longest sequence that both were made for."""

    target: Model
    draft: Model
    tokenizer: Tokenizer
    longest: int | None = None

    def encode(self, prompt: Prompt) -> list[int]:
        """As a chat; as plain text where the tokenizer has no chat template that takes it."""
        try:
            return self.tokenizer.chat(prompt.messages)
        except ValueError:
            return self.tokenizer.encode("\n\n".join(message["content"] for message in prompt.messages))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the loop wrote for one prompt: its places, and for each round how many drafts it made and kept."""

    places: Places
    rounds: tuple[tuple[int, int], ...]


def load_two(target: str, draft: str) -> TwoModels:
    """By name: `toy` with `unigram` or `bigram`; else folders or hub names, the draft's may be `layers`.

    Raises InputError where they do not make a pair.
    """
    if target == TOY:
        toy_draft(draft)  # its refusal names the drafts there are
        pair = load_pair(TOY, draft)
    elif draft == LAYERS:
        pair = load_pair(target, LAYERS)
    else:
        _check_tokenizers(target, draft)
        pair = load_pair(target, "model", draft=draft)
    assert isinstance(pair.drafter, ModelDrafter)
    return TwoModels(pair.target, pair.drafter.model, pair.tokenizer, pair.longest)


def answers(
    models: TwoModels,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    method: DraftSampleMethod,
    k: int,
    max_tokens: int,
    rng: np.random.Generator,
) -> Iterator[Answer]:
    """One answer per prompt, of 2 to `max_tokens` tokens; a prompt that is answered with an end alone gives none.

    Raises InputError for a prompt that the models cannot hold.
    """
    encoded = [models.encode(prompt) for prompt in prompts]
    for number, prompt in enumerate(encoded, start=1):
        if not prompt:
            raise InputError(f"--prompts: prompt {number} has no token.")
        if models.longest is not None and len(prompt) + max_tokens > models.longest:
            raise InputError(
                f"--prompts: prompt {number} has {len(prompt)} tokens; with --tokens {max_tokens} it is longer than "
                f"the {models.longest} that both models were made for."
            )
    stop = frozenset({models.tokenizer.eos})
    for prompt in encoded:
        drafter = ModelDrafter(models.draft, _argmax if method == "greedy" else honest)
        steps = list(generate(models.target, prompt, sampling, rng, max_tokens, drafter, k, stop))
        tokens = [token for step in steps for token in step.tokens]
        if len(tokens) > 1:
            rounds = tuple((step.drafted, step.accepted) for step in steps if step.drafted)
            yield Answer(joined(_judged(models, prompt, tokens, sampling, method, rng)), rounds)


def _argmax(logits: FloatArray, sampling: Sampling, rng: np.random.Generator) -> tuple[int, FloatArray]:
    token = int(logits.argmax())
    return token, one_hot(token, len(logits))


def _judged(
    models: TwoModels,
    prompt: Sequence[int],
    answer: Sequence[int],
    sampling: Sampling,
    method: DraftSampleMethod,
    rng: np.random.Generator,
) -> Iterator[Places]:
    for model in (models.target, models.draft):
        model.crop(0)
        model.extend(prompt)  # its last row is the prefill's
    for start in range(0, len(answer) - 1, CHUNK):
        end = min(start + CHUNK, len(answer) - 1)
        p = sampling.of(models.target.extend(answer[start:end]))
        logits = models.draft.extend(answer[start:end])
        q = one_hot(logits.argmax(axis=1), models.draft.size) if method == "greedy" else sampling.of(logits)
        yield judge(p, q, np.array(answer[start + 1 : end + 1], dtype=np.int64), rng)


def _check_tokenizers(target: str, draft: str) -> None:
    """Raises InputError where a token has another id, or none, in the other model."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise InputError(f"models are run with transformers: {error}. Or give two files of distributions.") from error
    vocabularies = []
    for name in (target, draft):
        folder = Path(resolve_model(TARGETS.get(name, name)))
        try:
            vocabularies.append(AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab())
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{name}: no tokenizer of it can be loaded on this machine: {error}") from error
    ours, theirs = vocabularies
    if ours != theirs:
        word = min(set(ours.items()) ^ set(theirs.items()))[0]
        raise InputError(
            f"{target} and {draft} have different tokenizers ({word!r} is token {ours.get(word, 'none')} in one and "
            f"{theirs.get(word, 'none')} in the other): drafts are checked by token id. Take a draft of its family."
        )
