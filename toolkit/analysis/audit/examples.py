"""The most telling examples of a lossy arm: tokens that the model would never, or hardly so often, have drawn."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from toolkit.analysis.audit.replies import LOWEST, MOST_IDS, Reply
from toolkit.analysis.audit.transform import NEAR, FloatArray, IntArray, Scored, adjusted, scored

SHOWN = 3
BEFORE = 48  # characters
SEEN = 5
"""Times that a token came or should have come, at least, to be told."""


def telling_examples(
    arm: Sequence[Reply], baseline: Sequence[Reply], temperature: float, top_k: int | None
) -> list[str]:
    """Up to `SHOWN` lines: tokens less likely than rounding or the baseline's luck explain, then wrong shares."""
    words = {token: word for reply in arm for token, word in reply.words.items()}
    unlikely = unlikely_tokens(arm, baseline, temperature, top_k)
    return [*unlikely, *wrong_shares(scored(arm), temperature, top_k, words)][:SHOWN]


def unlikely_tokens(
    arm: Sequence[Reply], baseline: Sequence[Reply], temperature: float, top_k: int | None
) -> list[str]:
    """The arm's tokens that lie furthest below the k-th best, or below the best where all may be drawn, with what led
    to them: at most one of each reply, none that lies no further than one of the baseline's."""
    found = [(depth, reply, place) for reply in arm for depth, place in [_deepest(reply, top_k)]]
    usual = max([NEAR, *(_deepest(reply, top_k)[0] for reply in baseline)])
    found.sort(key=lambda one: -one[0])
    return [_told(reply, place, temperature, top_k) for depth, reply, place in found[:SHOWN] if depth > usual]


def wrong_shares(sample: Scored, temperature: float, top_k: int | None, words: Mapping[int, str]) -> list[str]:
    """Tokens, alone and behind their predecessor, whose number is furthest from the sum of their probabilities."""
    p, _, _ = adjusted(sample, temperature, top_k)
    anywhere = np.full(len(sample.token), -1)
    found = sorted((*_departures(anywhere, sample, p), *_departures(sample.before, sample, p)), key=lambda one: -one[0])
    told: dict[int, str] = {}
    for _, before, token, seen, expected in found:
        behind = f"after {words.get(before, '?')!r} " if before >= 0 else ""
        came = f"{behind}{words.get(token, '?')!r} came {seen} times"
        told.setdefault(token, f"{came} where the model's probabilities add up to {expected:.1f}")
    return list(told.values())[:SHOWN]


def _departures(behind: IntArray, sample: Scored, p: FloatArray) -> Iterator[tuple[float, int, int, int, float]]:
    """The furthest: standard deviations, what is `behind` [n], a token, its number and the number to be expected."""
    row, column = np.nonzero(p)
    known = (p * (sample.ids == sample.token[:, None])).any(axis=1)
    keys = np.concatenate([behind[row] * MOST_IDS + sample.ids[row, column], (behind * MOST_IDS + sample.token)[known]])
    pairs, place = np.unique(keys, return_inverse=True)
    chances = p[row, column]
    listed, emitted = place[: len(row)], place[len(row) :]
    expected = np.bincount(listed, chances, len(pairs))
    variance = np.bincount(listed, chances * (1 - chances), len(pairs))
    seen = np.bincount(emitted, minlength=len(pairs))
    off = np.where(np.maximum(seen, expected) >= SEEN, np.abs(seen - expected) / np.sqrt(variance + 1), 0.0)
    for i in np.argsort(-off, kind="stable")[: 2 * SHOWN]:
        if off[i] > 0:
            before, token = divmod(int(pairs[i]), MOST_IDS)
            yield float(off[i]), before, token, int(seen[i]), float(expected[i])


def _deepest(reply: Reply, top_k: int | None) -> tuple[float, int]:
    """The furthest below the k-th best that a token of `reply` lies, in nats, and its place. The first is left out."""
    places = range(1, len(reply.scores or []))  # it comes from the prefill
    return max(((_depth(reply, place, top_k), place) for place in places), default=(0.0, 0))


def _depth(reply: Reply, place: int, top_k: int | None) -> float:
    row = (reply.scores or [])[place]
    kth = sorted((logprob for _, logprob in row), reverse=True)[: top_k or 1][-1]
    return kth - dict(row).get(reply.token_ids[place], -math.inf)


def _told(reply: Reply, place: int, temperature: float, top_k: int | None) -> str:
    row = (reply.scores or [])[place]
    token, (best, best_logprob) = reply.token_ids[place], max(row, key=lambda pair: pair[1])
    logprob = dict(row).get(token)
    better = sum(logprob is None or one > logprob for other, one in row if other != token)
    where = f"rank {better + 1}" if better < len(row) - 1 else f"beyond rank {better}"
    where += f" where the top {top_k} are allowed" if top_k else ""
    led = "".join(reply.words.get(one, "?") for one in reply.token_ids[:place])[-BEFORE:]
    odds = "of no probability"
    if logprob is not None and logprob > LOWEST:
        less = (best_logprob - logprob) / temperature
        odds = f"e^{less:.1f} times less likely than {reply.words.get(best, '?')!r}"
    came = f"after {led!r} came {reply.words.get(token, '?')!r}"
    return f"prompt {reply.prompt}, token {place + 1}: {came} ({where}, {odds})"
