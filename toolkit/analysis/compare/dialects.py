"""What each engine calls its own figure, by which formula, and what would make an engine tell more.

Sources: vllm 0.32.0, vllm/v1/metrics/stats.py (RequestSpecDecodeMetrics); sglang 0.5.23,
srt/managers/tokenizer_manager.py (_calculate_spec_decoding_metrics).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.analysis.records import RequestRecord

_MEAN = "The mean over requests gives a request of one step the weight of one of thirty; ours divides the sums"


@dataclass(frozen=True, slots=True)
class OwnFormula:
    """One figure of an engine: which of our quantities it stands beside, its formula, and why the two differ.

    `of_counts(steps, drafted, accepted, completion tokens)` is that formula on raw counts, of one request or summed.
    """

    quantity: str
    formula: str
    why: str
    of_counts: Callable[[int, int, int, int], float | None]


def _over(above: float, below: int) -> float | None:
    return above / below if below else None


OWN = {
    "mean_acceptance_length": OwnFormula(
        "acceptance_length",
        "1 + accepted / steps, of each request; 1.0 where nothing was drafted",
        f"{_MEAN}, and leaves out a request that drafted nothing, which counts as 1.0 in the engine's",
        lambda steps, _drafted, accepted, _tokens: 1 + accepted / steps if steps else 1.0,
    ),
    "draft_acceptance_rate": OwnFormula(
        "draft_acceptance_rate",
        "accepted / drafted, of each request; 0.0 where nothing was drafted",
        f"{_MEAN}, and leaves out a request that drafted nothing, which counts as 0.0 in the engine's",
        lambda _steps, drafted, accepted, _tokens: accepted / drafted if drafted else 0.0,
    ),
    "spec_accept_length": OwnFormula(
        "acceptance_length",
        "completion tokens / verify steps, of each request",
        "The engine's holds the prefill's token, which no verify step made, and loses the tokens that max_tokens or a "
        f"stop cut off. {_MEAN}",
        lambda steps, _drafted, _accepted, tokens: _over(tokens, steps),
    ),
    "spec_accept_rate": OwnFormula(
        "draft_acceptance_rate",
        "accepted / (verify steps x (draft tokens - 1)), of each request",
        f"The engine's takes every draft for full. {_MEAN}",
        lambda _steps, drafted, accepted, _tokens: _over(accepted, drafted),
    ),
}

_HOW = {
    "vllm": "start vLLM (after 0.28) with --per-request-spec-decode-metrics detailed",
    "lab-reference": "our reference loop tells it; ask it for usage",
    "sglang": "our client asks SGLang for it (return_spec_tokens_details); older versions may not know it, and "
    "a request that ended in its prefill has none",
    "llamacpp": "llama-server counts drafted and accepted tokens in its timings",
}
_NO_STEPS = (
    "llama-server tells running totals with each chunk; where a chunk held back tokens (half a character), the steps "
    "of that answer are not known, and no flag tells them"
)
_NO_POSITIONS = {
    "llamacpp": _NO_STEPS,
    "sglang": "our client asks SGLang for its histogram (spec_correct_drafts_histogram); this version does not send it",
}


def fills_drafts(engine: str, method: str | None) -> bool:
    """Whether every draft is filled up to K, found or not (sglang 0.5.23, fillResult in
    kernels/jit/csrc/ngram_corpus/result.cpp).

    Its rate and its positions then count drafts that a lookup elsewhere never makes; tokens per pass compares.
    """
    return engine == "sglang" and method == "ngram"


def how_to_know(engine: str, names: Sequence[str]) -> str:
    """What would make `engine` tell the fields `names` of a RequestRecord."""
    if engine == "llamacpp" and "steps" in names:
        return _NO_STEPS
    if "accepted_histogram" in names and engine in _NO_POSITIONS:
        return _NO_POSITIONS[engine]
    return _HOW.get(engine, "this endpoint does not report its speculation, and we know of no flag that would make it")


@dataclass(frozen=True, slots=True)
class OwnFigure:
    """An engine's own figure beside ours. `of_sums` is its formula on the summed counts, `ours` our quantity.

    `quantity`, `formula` and `why` are empty for a figure that we know no formula of.
    """

    name: str
    mean: float
    requests: int
    quantity: str
    formula: str
    of_sums: float | None
    ours: float | None
    why: str

    @property
    def agrees(self) -> bool:
        """Whether it is ours to half a percent."""
        return self.ours is not None and abs(self.mean - self.ours) <= 0.005 * abs(self.ours)


def own_figures(records: Sequence[RequestRecord], ours: dict[str, float | None]) -> list[OwnFigure]:
    """Each of the engine's own figures as the mean over the requests that carry it, as tools that read it show it."""
    found = []
    for name in dict.fromkeys(name for record in records for name in record.own):
        told = [record for record in records if name in record.own]
        mean = sum(record.own[name] for record in told) / len(told)
        formula = OWN.get(name)
        if formula is None:
            found.append(OwnFigure(name, mean, len(told), "", "", None, None, ""))
            continue
        counts = [counts_of(record) for record in told]
        sums = [sum(column) for column in zip(*(one for one in counts if one is not None), strict=True)]
        of_sums = formula.of_counts(*sums) if sums and None not in counts else None
        value = ours.get(formula.quantity)
        found.append(OwnFigure(name, mean, len(told), formula.quantity, formula.formula, of_sums, value, formula.why))
    return found


def counts_of(record: RequestRecord) -> tuple[int, int, int, int] | None:
    """(steps, drafted, accepted, completion tokens); None where one is not told."""
    each = (record.steps, record.drafted, record.accepted, record.completion_tokens)
    steps, drafted, accepted, tokens = each
    if steps is None or drafted is None or accepted is None or tokens is None:
        return None
    return steps, drafted, accepted, tokens
