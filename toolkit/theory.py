"""What speculation can win: closed forms of acceptance, expected tokens, speedup, best K. Pure functions of numbers.

Words: `alpha` is the chance that one draft token is kept, `k` the draft length, `c` the time of one draft step over
that of one target step. Sources: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
(2023), section 3; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023).

The speedup assumes, as both papers do, that the target checks k + 1 tokens in the time of one. That holds while it
waits for memory. Under load its step grows with k, and the true speedup is lower than what stands here.

One alpha for all positions assumes that draft tokens are kept independently of one another. They are not: text has easy
stretches and hard ones, so a token is likelier to be kept when those before it were, and the alpha of the first
position is too low for the later ones. The draft acceptance rate is no alpha either: it counts as not kept all that
stood behind the first rejected token, and so falls with K. Where acceptance was measured by position, use the
`_by_position` forms: they hold however the tokens depend on each other.

Every function raises ValueError for numbers that cannot be: alpha outside [0, 1], a negative k or c.
"""

import math
from collections.abc import Sequence

SUMS_TO_ONE = 1e-6


def acceptance(p: Sequence[float], q: Sequence[float]) -> float:
    """alpha = sum of min(p_i, q_i): the chance that a token drawn from the draft's q is kept by the target's p.

    `p` and `q` are two distributions over one vocabulary. Leviathan et al., Corollary 3.6, and the accept-or-fix rule
    of Chen et al. Raises ValueError for other lengths, a negative entry, a sum that is not 1 within 1e-6.
    """
    _require(len(p) == len(q), f"p and q must be over one vocabulary, not {len(p)} and {len(q)} tokens")
    for name, distribution in (("p", p), ("q", q)):
        _require(all(share >= 0 for share in distribution), f"{name} must not hold a negative probability")
        total = math.fsum(distribution)
        _require(abs(total - 1) <= SUMS_TO_ONE, f"{name} must sum to 1, not {total}")
    return min(1.0, math.fsum(map(min, p, q)))


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens per target step, the bonus or fix token among them: (1 - alpha^(k+1)) / (1 - alpha); k + 1 at alpha = 1.

    Leviathan et al., Equation 1. It is summed as 1 + alpha + ... + alpha^k, which stays exact where alpha nears 1.
    """
    _check_shares([alpha])
    _check_length(k)
    return expected_tokens_by_position([alpha] * k)


def speedup(alpha: float, k: int, c: float) -> float:
    """Expected tokens / (1 + k c), over plain decoding. Leviathan et al., Theorem 3.8."""
    return _over_cost(expected_tokens(alpha, k), k, c)


def best_k(alpha: float, c: float, most: int = 8) -> tuple[int, float]:
    """The K of 1 to `most` with the highest speedup, and that speedup; the smaller K where two are equal.

    A speedup below 1 says that no K pays: the best is then not to speculate.
    """
    _require(most >= 1, f"the highest K must be at least 1, not {most}")
    return _best([speedup(alpha, k, c) for k in range(1, most + 1)])


def break_even_alpha(k: int, c: float) -> float | None:
    """The smallest alpha at which drafts of length k do not cost; None when they cost at any alpha, which is at c > 1.

    At k = 1 it is c itself (Leviathan et al., Corollary 3.9); a longer draft needs more.
    """
    low, high = 0.0, 1.0
    if speedup(low, k, c) >= 1:
        return low
    if speedup(high, k, c) < 1:
        return None
    # The speedup rises with alpha: halve until no number lies between one that costs and one that does not.
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if speedup(middle, k, c) >= 1 else (middle, high)
    return high


def expected_tokens_by_position(given: Sequence[float]) -> float:
    """Tokens per step that carries a draft of length len(given): 1 + g_1 + g_1 g_2 + ...

    `given[i]` is the chance that draft token i + 1 is kept, given that the i before it were kept (and that it was
    drafted). Steps without a draft, as n-gram lookup has them, yield one token each and are no part of it.
    """
    _check_shares(given)
    tokens = 1.0
    for share in reversed(given):
        tokens = 1 + share * tokens
    return tokens


def speedup_by_position(given: Sequence[float], k: int, c: float) -> float:
    """Speedup of drafts of length k by acceptance measured at each position; `given` as above.

    Raises ValueError when k lies beyond the measured positions: what would be kept there is unknown, and to repeat the
    last one would be a guess.
    """
    _check_length(k)
    _require(k <= len(given), f"K = {k} lies beyond the {len(given)} measured positions: measure with a longer draft")
    return _over_cost(expected_tokens_by_position(given[:k]), k, c)


def best_k_by_position(given: Sequence[float], c: float) -> tuple[int, float]:
    """The K with the highest speedup among the measured positions, and that speedup; the smaller K where two are equal.

    The true best may lie beyond them when it is the last. Raises ValueError when no position was measured.
    """
    _require(len(given) > 0, "no position was measured")
    return _best([speedup_by_position(given, k, c) for k in range(1, len(given) + 1)])


def _over_cost(tokens: float, k: int, c: float) -> float:
    _require(0 <= c < math.inf, f"c must be a finite number of at least 0, not {c}")
    return tokens / (1 + k * c)


def _best(speedups: Sequence[float]) -> tuple[int, float]:
    highest = max(speedups)
    return speedups.index(highest) + 1, highest


def _check_shares(shares: Sequence[float]) -> None:
    for share in shares:
        _require(0 <= share <= 1, f"acceptance must lie in [0, 1], not {share}")


def _check_length(k: int) -> None:
    _require(k >= 0, f"K must be at least 0, not {k}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
