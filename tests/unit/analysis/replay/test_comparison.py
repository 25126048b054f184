"""A row per class and proposer: ratios of summed counts, who is missing, what is refused, a measured cost at work."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from toolkit.analysis.forecast.cost import Curve, Point
from toolkit.analysis.replay import comparison, timing
from toolkit.analysis.replay.comparison import ReplayAsk, Row, replay, table
from toolkit.analysis.replay.engine import Batch, Proposer
from toolkit.analysis.replay.peers import Nothing, Oracle, UnavailableError
from toolkit.analysis.replay.timing import batch_size, timings
from toolkit.analysis.replay.traces import Request
from toolkit.errors import InputError

ROOT = Path(__file__).parents[4]
SMALL = ROOT / "tests" / "data" / "traces" / "small.jsonl"
COST = ROOT / "tests" / "data" / "runs" / "lab-cost"


class Garbage(Nothing):
    def propose(self, batch: Batch) -> list[list[int]]:
        return [[2**31 - 1] * 3 for _ in batch.sampled]


def fakes(name: str, requests: list[Request], most: int, draft_lengths: object, in_flight: int) -> Proposer:
    match name:
        case "oracle":
            return Oracle(most, requests)
        case "vllm-ngram":
            return Garbage()
        case "suffix":
            raise UnavailableError("it is not here")
    return Nothing()


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Row]:
    monkeypatch.setattr(comparison, "make", fakes)
    monkeypatch.setattr(timing, "REPEATS", 1)
    return {(row.kind, row.proposer): row for row in replay(ReplayAsk(SMALL))}


def test_every_class_has_a_row_of_every_proposer(rows: dict[tuple[str, str], Row]) -> None:
    names = ["prompt-lookup", "vllm-ngram", "suffix", "suffix-factor-1", "oracle"]
    assert list(rows) == [(kind, name) for kind in ("code-edit", "extract", "agent-json") for name in names]


def test_without_a_draft_there_is_no_acceptance_rate(rows: dict[tuple[str, str], Row]) -> None:
    row = rows["extract", "prompt-lookup"]
    assert (row.tokens_per_pass, row.draft_acceptance_rate, row.drafted_per_step) == (1.0, None, 0.0)


def test_drafts_that_are_never_kept_have_a_rate_of_zero(rows: dict[tuple[str, str], Row]) -> None:
    row = rows["extract", "vllm-ngram"]
    assert (row.tokens_per_pass, row.draft_acceptance_rate, row.drafted_per_step) == (1.0, 0.0, 3.0)


def test_the_oracle_takes_the_passes_that_a_naive_search_needs(rows: dict[tuple[str, str], Row]) -> None:
    found = {kind: (row.passes, row.drafted) for (kind, name), row in rows.items() if name == "oracle"}
    assert found == {"code-edit": (94, 1400), "extract": (40, 154), "agent-json": (126, 1107)}


def test_ratios_are_of_summed_counts(rows: dict[tuple[str, str], Row]) -> None:
    assert rows["agent-json", "oracle"].tokens_per_pass == 1229 / 126


def test_an_oracle_is_not_timed(rows: dict[tuple[str, str], Row]) -> None:
    row = rows["extract", "oracle"]
    assert (row.us_per_step, row.build_ns_per_token, row.bytes_per_token) == (None, None, None)


def test_who_is_missing_has_a_row_that_says_why(rows: dict[tuple[str, str], Row]) -> None:
    assert rows["extract", "suffix"] == Row("suffix", "extract", unavailable="it is not here")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (ReplayAsk(SMALL, proposers=["eagle"]), "--proposer eagle: there is none of that name"),
        (ReplayAsk(SMALL, max_draft=0), "--max-draft 0"),
        (ReplayAsk(SMALL, max_draft=1000), "--max-draft 1000"),
        (ReplayAsk(SMALL, floor=1.5), "--floor 1.5"),
        (ReplayAsk(SMALL, floor=float("nan")), "--floor nan"),
        (ReplayAsk(SMALL, concurrency=0), "--concurrency 0"),
        (ReplayAsk(SMALL, cost=ROOT), "holds no cost.json"),
    ],
)
def test_a_wrong_ask_is_refused(ask: ReplayAsk, said: str) -> None:
    with pytest.raises(InputError) as error:
        replay(ask)
    assert said in str(error.value)


def test_nothing_beside_nothing_predicts_the_rate_of_single_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "make", fakes)
    curve = Curve(points=[point(1, 0.01), point(9, 0.09)], context=10**6)
    monkeypatch.setattr(comparison, "read_cost", lambda path: CostOf(curve))
    found = replay(ReplayAsk(SMALL, cost=SMALL, proposers=["none", "vllm-ngram"]))
    rates = {row.proposer: row.tokens_per_second for row in found if row.kind == "extract"}
    assert rates == {"none": pytest.approx(100), "vllm-ngram": pytest.approx(25)}  # 1 token, or 1 and 3, of 10 ms each


class CostOf:
    def __init__(self, plain: Curve) -> None:
        self.plain = plain


def point(tokens: int, seconds: float) -> Point:
    return Point(tokens=tokens, seconds=seconds, low=seconds, high=seconds, repeats=1)


def test_a_step_takes_what_its_tokens_and_its_context_take() -> None:
    curve = Curve(points=[point(1, 1.0), point(4, 1.0), point(8, 2.0)], context=100, per_held_token=0.01)
    assert table(curve, 16)(2, 4, 300).tolist() == [3.0, 3.0, 3.0, 3.25, 3.5]


class Slow(Nothing):
    """Remembers how full its batches were."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def propose(self, batch: Batch) -> list[list[int]]:
        self.sizes.append(len(batch.live))
        return super().propose(batch)


def several(lengths: Sequence[int]) -> list[Request]:
    return [Request("any", np.arange(n, dtype=np.int32), np.arange(3, dtype=np.int32)) for n in lengths]


def test_a_few_requests_fill_a_batch_of_64() -> None:
    sizes: list[int] = []
    timings({"slow": lambda n: Slow(sizes)}, several([4, 5, 6]), 64, steps=20)
    assert sizes[-20:] == [64] * 20


def test_very_long_contexts_are_timed_in_smaller_batches() -> None:
    assert batch_size(several([timing.BATCH_TOKENS // 3])) == 2


def test_short_contexts_are_timed_in_batches_of_64() -> None:
    assert batch_size(several([10])) == 64


def test_a_context_longer_than_any_batch_is_timed_alone() -> None:
    assert batch_size(several([timing.BATCH_TOKENS + 1])) == 1
