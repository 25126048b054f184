"""The most telling examples of a lossy arm: tokens that the model would hardly, or never, have drawn."""

import math
from collections.abc import Sequence

from toolkit.analysis.audit.replies import Reply

SHOWN = 3
BEFORE = 48  # characters


def unlikely_tokens(replies: Sequence[Reply], temperature: float, top_k: int | None) -> list[str]:
    """The tokens that lie furthest below the k-th best, at most one of each reply, with what led to them."""
    found = []
    for reply in replies:
        if reply.scores is None:
            continue
        worst = max(range(1, len(reply.scores)), key=lambda i: _depth(reply, i, top_k), default=0)
        if worst:
            found.append((_depth(reply, worst, top_k), reply, worst))
    found.sort(key=lambda one: -one[0])
    return [_told(reply, place, temperature, top_k) for depth, reply, place in found[:SHOWN] if depth > 0]


def _depth(reply: Reply, place: int, top_k: int | None) -> float:
    """Nats by which a token lies below the k-th best, or the best of all."""
    row = (reply.scores or [])[place]
    kth = sorted((logprob for _, logprob in row), reverse=True)[: top_k or 1][-1]
    return kth - dict(row).get(reply.token_ids[place], -math.inf)


def _told(reply: Reply, place: int, temperature: float, top_k: int | None) -> str:
    row = (reply.scores or [])[place]
    token, (best, best_logprob) = reply.token_ids[place], max(row, key=lambda pair: pair[1])
    logprob = dict(row).get(token)
    rank = 1 + sum(one > (logprob if logprob is not None else -math.inf) for _, one in row)
    led = "".join(reply.words.get(one, "?") for one in reply.token_ids[:place])[-BEFORE:]
    odds = "unknown odds" if logprob is None else f"e^{(best_logprob - logprob) / temperature:.1f} times less likely"
    where = f"rank {rank}" if rank <= len(row) - 1 else f"beyond rank {len(row) - 1}"
    where += f" where the top {top_k} are allowed" if top_k else ""
    return (
        f"prompt {reply.prompt}, token {place + 1}: after {led!r} came {reply.words.get(token, '?')!r} ({where}, "
        f"{odds} than {reply.words.get(best, '?')!r})"
    )
