"""Whether an engine's counts can be true: against the tokens that came, against its own ratio, against its counters.

A request of c completion tokens takes one pass for its prefill and one for each drafted step, and a step that kept a
drafts gives a + 1 tokens, the last one perhaps fewer: 1 + steps + accepted - K <= c. A method that drafts at every step
leaves no other pass, so there c <= 1 + steps + accepted as well, but for a step near the context's end.
"""

from collections.abc import Sequence

from toolkit.analysis.compare.contenders import Contender, depth
from toolkit.analysis.compare.dialects import OWN, counts_of
from toolkit.analysis.levels import cross_check
from toolkit.analysis.records import RequestRecord
from toolkit.engines.contract import LOOKUPS

TOLERANCE = 0.02  # of a ratio: engines round
UNEXPLAINED = 0.1  # share of the tokens that no pass accounts for


def disagreements(one: Contender, levels: Sequence[int]) -> list[str]:
    """One sentence for each way in which what is reported of a contender contradicts itself."""
    records = [record for level in levels for record in one.requests(level) if record.error is None]
    said = [*_impossible(one, records), *_unexplained(one, records), *_own_ratios(one, records)]
    served_by = {record.served_by for record in records}
    return said + [text for text in cross_check(one.run) if any(text.startswith(f"{name}: ") for name in served_by)]


def _impossible(one: Contender, records: Sequence[RequestRecord]) -> list[str]:
    k = depth(one).verified
    for record in records:
        counts = counts_of(record)
        if counts is None:
            continue
        steps, drafted, accepted, tokens = counts
        wrong = ""
        if accepted > drafted:
            wrong = f"{accepted} accepted draft tokens of {drafted} drafted"
        elif k is not None and drafted > k * steps:
            wrong = f"{drafted} draft tokens in {steps} steps, at K = {k}"
        elif steps and 1 + steps + accepted - min(accepted, k or accepted) > tokens:
            wrong = f"{steps} steps and {accepted} accepted draft tokens in an answer of {tokens} tokens"
        if wrong:
            return [f"{one.name}: its counts cannot be true: {wrong} (prompt {record.prompt_hash})."]
    return []


def _unexplained(one: Contender, records: Sequence[RequestRecord]) -> list[str]:
    """Tokens that came though no pass accounts for them, of a method that drafts at every step."""
    if one.info.method is None or one.info.method in LOOKUPS or "schedule" in one.info.facts:
        return []
    counts = [known for record in records if (known := counts_of(record)) is not None]
    tokens = sum(one[3] for one in counts)
    told = sum(1 + steps + accepted for steps, _, accepted, _ in counts)
    if not counts or tokens - told <= UNEXPLAINED * tokens:
        return []
    return [
        f"{one.name}: its answers have {tokens} tokens, and its counts account for {told}: {one.info.method} drafts at "
        "every step, so steps or accepted tokens are missing from them."
    ]


def _own_ratios(one: Contender, records: Sequence[RequestRecord]) -> list[str]:
    """An engine's own ratio that is not what its own formula makes of its own counts."""
    said = []
    for name, formula in OWN.items():
        wrong: list[tuple[float, float]] = []
        for record in records:
            counts, own = counts_of(record), record.own.get(name)
            expected = formula.of_counts(*counts) if counts is not None else None
            if own is not None and expected is not None and abs(own - expected) > TOLERANCE * max(abs(own), expected):
                wrong.append((own, expected))
        if wrong:
            said.append(
                f"{one.name}: in {len(wrong)} of {len(records)} answers the engine says {name} {wrong[0][0]:.2f} where "
                f"its own counts give {wrong[0][1]:.2f} ({formula.formula}): one of them is wrong."
            )
    return said
