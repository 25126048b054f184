"""What a proposer's guessing takes: time and memory, in a full batch, as a server holds it.

The requests are served over and over, `batch_size` at once, for `STEPS` engine steps. Seconds are this process's CPU
seconds, proposers take turns, and the least of `REPEATS` stands: whatever else runs on the machine only adds. To end a
request counts as drafting, since that is when some remember what it wrote.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.analysis.replay.engine import Proposer, Tally, serve
from toolkit.analysis.replay.traces import Request

BATCH = 64
BATCH_TOKENS = 2**21  # in flight at most: an index can take a kilobyte a token
STEPS = 100
REPEATS = 3
WARM_TOKENS = 64

Maker = Callable[[int], Proposer]
"""A fresh proposer for so many requests at once."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of drafting per request and step, nanoseconds and bytes of index per prompt token.

    `tokens_per_step`: how many tokens each step brought, all of which an index takes in.
    """

    us_per_step: float
    build_ns_per_token: float
    bytes_per_token: float
    tokens_per_step: float


def batch_size(requests: Sequence[Request]) -> int:
    """`BATCH`, or fewer where their tokens would be too many."""
    return max(1, min(BATCH, BATCH_TOKENS // max(request.length for request in requests)))


def timings(
    makers: Mapping[str, Maker], requests: Sequence[Request], in_flight: int, steps: int = STEPS
) -> dict[str, Times]:
    """Times of each proposer on these requests, all compiled before the clock starts."""
    short = [Request(one.kind, one.prompt[:WARM_TOKENS], one.output[:WARM_TOKENS]) for one in requests[:2]]
    for make in makers.values():
        serve(make(2), short, 2)
    rounds = [
        {name: serve(make(in_flight), requests, in_flight, most_steps=steps) for name, make in makers.items()}
        for _ in range(REPEATS)
    ]
    return {name: _least([tallies[name] for tallies in rounds]) for name in makers}


def _least(tallies: Sequence[Tally]) -> Times:
    first = tallies[0]
    return Times(
        us_per_step=1e6 * min(tally.proposing / tally.proposals for tally in tallies),
        build_ns_per_token=1e9 * min(tally.building / tally.prompt_tokens for tally in tallies),
        bytes_per_token=first.index_bytes / first.index_tokens,
        tokens_per_step=first.tokens / first.proposals,
    )
