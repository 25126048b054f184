"""Prompts that are no language: random token ids, or the words that they decode to.

A draft that guesses language keeps nothing after them, a lookup finds what repeats in them by chance, and the target's
own answers are no traffic of anyone (vllm#33497, vllm#52536). They do for load: throughput and latency of one server.
"""

import re

FEWEST, MOST = 64, 256  # words looked at
DISTINCT = 0.95
NUMBERS = 0.9
_NUMBER = re.compile(r"[\[(]?\d+[\]),;]*")


def looks_random(text: str) -> bool:
    """Whether `text` reads like token ids drawn at random: numbers and nothing else, or words that never repeat.

    Of the first 64 words of prose in any language some repeat (in English a fifth or so); of words or pieces drawn from
    a vocabulary of tens of thousands, one in a hundred. Shorter texts, and scripts without spaces, are not judged by
    their words. Seen with SmolLM2's 49,152 tokens: all of 300 texts of 128, 256, 512 and 1,024 drawn ids each are
    recognised, and 97 % to all of the runs of consecutive ids that `vllm bench serve` makes; none of 64 ids.
    """
    words = text[: 32 * MOST].split()[:MOST]
    if len(words) >= 8 and sum(_NUMBER.fullmatch(word) is not None for word in words) >= NUMBERS * len(words):
        return True
    return len(words) >= FEWEST and len({word.lower() for word in words}) >= DISTINCT * len(words)
