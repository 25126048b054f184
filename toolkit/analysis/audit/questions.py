"""What both sides are asked: the same prompts, seeds and concurrency. Requests are data: nothing is sent here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.analysis.audit.asking import TOP, Request
from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.structure import RESPONSE_FORMAT
from toolkit.analysis.workload import load_workload

Messages = tuple[dict[str, str], ...]

ALONE, TOGETHER = 1, 8
"""Concurrencies of the greedy level; a step of one request and of eight round differently."""
GREEDY_TOKENS = 32
SEEDS = 8
"""Replies per sampled prompt: the check without log probabilities needs repeats."""
STRUCTURE_TOKENS = 64
EXTENSIONS = frozenset({"logprobs", "top_logprobs", "return_tokens_as_token_ids", "top_k", "repetition_penalty"})
"""Fields that a server may refuse without losing the whole audit."""
# One word over and over, which draws the longest drafts there are (vllm#41758).
_REPEATED = ({"role": "user", "content": " ".join(["serving"] * 48)},)
_GREEDY = (("copy-list", 4), ("chat", 2), ("creative", 1))
_FRUIT = ("an apple", "a plum", "a lime", "a grape", "a cherry", "a pear", "a berry", "a melon")


@dataclass(frozen=True, slots=True)
class Sampled:
    """How the distribution level samples: `tokens` in all from each side, of replies of `length` at most.

    `top_k` None: from the whole vocabulary, at temperature 1 alone. The reference's best tokens then have their true
    probabilities and all others one bin; at another temperature their sum would be unknown.
    """

    tokens: int = 3000
    length: int = 48
    temperature: float = 1.0
    top_k: int | None = None
    concurrency: int = 16
    seed: int = 0


def greedy(concurrency: int) -> list[Request]:
    """Every greedy prompt once, with the server's own best log probabilities."""
    fields = {"temperature": 0, "logprobs": True, "top_logprobs": TOP, "return_tokens_as_token_ids": True}
    return [
        Request("greedy", concurrency, number, messages, GREEDY_TOKENS, 42, fields)
        for number, messages in enumerate(_greedy_prompts())
    ]


def stops(replies: Sequence[Reply]) -> list[Request]:
    """The same again, to be ended by a string from the middle of each reply."""
    prompts = list(_greedy_prompts())
    found = []
    for reply in replies:
        words = reply.text.split()
        if len(words) >= 4:
            fields = {"temperature": 0, "stop": [words[len(words) // 2]]}
            found.append(Request("stop", TOGETHER, reply.prompt, prompts[reply.prompt], GREEDY_TOKENS, 42, fields))
    return found


def samples(how: Sampled) -> list[Request]:
    """Prompts that invite copying, each under several seeds: drafts must be made, or nothing is tested."""
    prompts = max(1, round(how.tokens / (SEEDS * how.length)))
    workload = load_workload("copy-list", how.seed + 1)
    # In full, or the server's generation_config.json would fill it in. -1 is all tokens.
    fields = {"temperature": how.temperature, "top_p": 1.0, "top_k": how.top_k or -1, "repetition_penalty": 1.0}
    return [
        Request("sample", how.concurrency, i, workload.prompt(i).messages, how.length, how.seed + 1000 * i + j, fields)
        for j in range(SEEDS)
        for i in range(prompts)
    ]


def plain(requests: Sequence[Request]) -> list[Request]:
    """The same in OpenAI's fields alone: some servers refuse vLLM's."""
    return [
        replace(one, fields={name: value for name, value in one.fields.items() if name not in EXTENSIONS})
        for one in requests
    ]


def structures() -> list[Request]:
    """Strict JSON, eight at once (vllm#44993)."""
    fields = {"temperature": 0, "response_format": RESPONSE_FORMAT}
    return [
        Request("structure", TOGETHER, number, _fruit(name), STRUCTURE_TOKENS, None, fields)
        for number, name in enumerate(_FRUIT)
    ]


def _fruit(name: str) -> Messages:
    shape = '{"color": "red", "size": "small", "ripe": true, "count": 3}'
    return ({"role": "user", "content": f"Describe {name} in JSON of this shape: {shape}. Reply with the JSON alone."},)


def _greedy_prompts() -> Iterator[Messages]:
    yield _REPEATED
    for name, count in _GREEDY:
        workload = load_workload(name, 1)
        yield from (workload.prompt(index).messages for index in range(count))
