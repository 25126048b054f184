"""Spreads of latencies: of which side, of answered requests alone, and never an invented zero."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.analysis.latency import latencies, spread
from toolkit.analysis.run import Run

MakeRun = Callable[..., Run]
PAIRS = [(150.0, 100.0)] * 2


def test_milliseconds() -> None:
    found = spread([0.1, 0.2, 0.3])
    assert found is not None
    assert (found.count, found.p50) == (3, 200)


def test_nothing_known_is_none() -> None:
    assert spread([None, None]) is None


def test_levels_rise(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path, {("a", 4): PAIRS, ("a", 1): PAIRS})
    assert [level.concurrency for level in latencies(run, "a")] == [1, 4]


def test_the_gap_between_chunks_is_no_time_per_token(make_run: MakeRun, tmp_path: Path) -> None:
    # Of 20 tokens the first comes in the chunk at 0.1 s, the other 19 in the one at 2.0 s.
    (level,) = latencies(make_run(tmp_path, {("a", 1): PAIRS}), "a")
    assert level.arm.itl is not None
    assert level.arm.tpot is not None
    assert (level.arm.itl.p50, level.arm.tpot.p50) == pytest.approx((1900, 100))


def test_failed_requests_have_no_latency(make_run: MakeRun, tmp_path: Path) -> None:
    (level,) = latencies(make_run(tmp_path, {("a", 1): PAIRS}, failed={("a", 1): 1}), "a")
    assert level.arm.ttft is not None
    assert level.arm.ttft.count == 2 * 3


def test_without_a_baseline_its_side_is_empty(make_run: MakeRun, tmp_path: Path) -> None:
    (level,) = latencies(make_run(tmp_path, {("a", 1): PAIRS}, baseline=None), "a")
    assert level.baseline.ttft is None
