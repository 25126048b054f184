"""The draft-length rule: its best prefix against brute force, and its throughput on simulated engines against rivals.

The engines, the texts and the rivals are those of `benchmarks/draft_length.py`, which prints more of the same.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from toolkit.errors import InputError
from toolkit.proposers.draft_length import LEVELS, DraftLength, admit

FILE = Path(__file__).parents[3] / "benchmarks" / "draft_length.py"
SPEC = importlib.util.spec_from_file_location("draft_length_benchmark", FILE)
bench = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = bench
SPEC.loader.exec_module(bench)

STATIC = range(len(bench.STATIC))
CLIMB = ((1, 300), (4, 300), (16, 300), (64, 300))
JUMPS = ((1, 300), (64, 300), (1, 300))
LEARNING = 100  # steps after a change of the load

ENGINE = pytest.mark.parametrize("engine", list(bench.ENGINES))
TEXT = pytest.mark.parametrize("text", ["copy", "chat", "half", "mixture"])


@cache
def served(engine, text, loads, factor=None):
    return bench.simulate(bench.ENGINES[engine], bench.TEXTS[text], loads, factor=factor or (lambda _: 1.0))


# --- the best prefix


@st.composite
def batches(draw, survivals):
    """(survival, lengths, seconds): up to 4 requests of up to 3 draft tokens, any non-decreasing seconds."""
    n = draw(st.integers(1, 4))
    survival = -np.sort(-draw(hnp.arrays(np.float32, (n, 3), elements=survivals)), axis=1)
    lengths = draw(hnp.arrays(np.int32, n, elements=st.integers(0, 3)))
    more = draw(hnp.arrays(np.float64, int(lengths.sum()), elements=st.sampled_from([0.0, 0.01, 0.1, 0.25, 1.0])))
    return survival, lengths, 1.0 + np.concatenate([[0.0], np.cumsum(more)])


def rate(survival, chosen, seconds):
    kept = sum(float(survival[i, j]) for i in range(len(chosen)) for j in range(chosen[i]))
    return (len(chosen) + kept) / seconds[int(chosen.sum())]


def best_rate(survival, lengths, seconds):
    """Over all choices of a prefix for each request."""
    choices = np.ndindex(*(lengths + 1))
    return max(rate(survival, np.array(chosen), seconds) for chosen in choices)


@given(batches(st.integers(0, LEVELS - 1).map(lambda level: level / LEVELS)))
@settings(max_examples=150, deadline=None)
def test_no_choice_of_drafts_has_a_better_rate(batch):
    survival, lengths, seconds = batch
    assert rate(survival, admit(*batch), seconds) == pytest.approx(best_rate(survival, lengths, seconds), rel=1e-9)


@given(batches(st.floats(0.0, 1.0, width=32)))
@settings(max_examples=100, deadline=None)
def test_the_coarse_sort_loses_less_than_a_level_for_each_token(batch):
    survival, lengths, seconds = batch
    lost = best_rate(survival, lengths, seconds) - rate(survival, admit(*batch), seconds)
    assert lost <= lengths.sum() / LEVELS / seconds[0]


@given(batches(st.floats(0.0, 1.0, width=32)))
@settings(max_examples=60, deadline=None)
def test_no_draft_is_longer_than_what_there_is(batch):
    _, lengths, _ = batch
    assert (admit(*batch) <= lengths).all()


def test_on_a_straight_line_a_token_is_drafted_while_it_earns_its_time():
    survival = np.array([[0.9, 0.7, 0.5, 0.3, 0.1]], np.float32)
    seconds = 1.0 + 0.3 * np.arange(6)  # after three: 0.3 x 3.1 / 1.9 = 0.49 of a token; after four it would be 0.46
    assert admit(survival, np.array([5], np.int32), seconds).tolist() == [3]


def test_a_stair_is_filled():
    survival = np.full((1, 8), 0.2, np.float32)
    seconds = np.array([1.0, *[1.1] * 7, 9.0])
    assert admit(survival, np.array([8], np.int32), seconds).tolist() == [7]


def test_no_candidates_no_drafts():
    assert DraftLength(4, 2).choose(np.zeros((2, 4), np.float32), np.zeros(2, np.int32)).tolist() == [0, 0]


def test_an_empty_batch_has_no_drafts():
    assert DraftLength(4, 2).choose(np.zeros((0, 4), np.float32), np.zeros(0, np.int32)).tolist() == []


# --- on simulated engines: noise of 10 %, 1 % outliers


@ENGINE
@TEXT
def test_after_learning_it_serves_as_fast_as_an_oracle(engine, text):
    least = 0.93 if engine == "steep stairs" else 0.97  # a stair of half a step's time between what was tried
    assert served(engine, text, CLIMB).over([bench.ORACLE], skip=LEARNING) >= least


@ENGINE
@TEXT
def test_learning_included_it_serves_as_fast_as_the_best_fixed_length(engine, text):
    assert served(engine, text, CLIMB).over(STATIC) >= 0.97


@ENGINE
@TEXT
def test_with_jumps_of_the_load_it_serves_as_fast_as_the_best_fixed_length(engine, text):
    assert served(engine, text, JUMPS).over(STATIC) >= 0.97


@ENGINE
@TEXT
def test_when_the_batch_empties_it_drafts_again_within_twenty_steps(engine, text):
    run = served(engine, text, JUMPS)
    now = slice(620, 700)
    rates = run.tokens[now].sum(axis=0) / run.seconds[now].sum(axis=0)
    assert rates[bench.RULE] >= 0.97 * rates[bench.ORACLE]


@pytest.mark.parametrize("engine", ["lab CPU", "linear CPU"])
def test_under_load_it_stops_drafting_what_does_not_pay(engine):
    assert served(engine, "chat", CLIMB).drafted[-200:].mean() < 1.0


@ENGINE
@pytest.mark.parametrize("text", ["copy", "chat", "half"])
def test_it_does_not_oscillate_between_drafting_and_not(engine, text):
    run = served(engine, text, CLIMB)
    last = (run.drafted[end - 100 : end] > 0 for end in (300, 600, 900, 1200))
    assert max(np.diff(drafts).sum() for drafts in last) <= 10


@ENGINE
@TEXT
def test_probes_keep_their_budget(engine, text):
    assert served(engine, text, CLIMB).rule.report().probing_share <= 0.011


@ENGINE
def test_hopeless_drafts_cost_less_than_one_percent(engine):
    assert served(engine, "nothing", CLIMB).over([0]) >= 0.99


def test_hopeless_drafts_are_not_probed():
    assert served("lab CPU", "nothing", CLIMB).rule.report().probes == 0


def test_without_a_budget_nothing_is_probed():
    rule = DraftLength(16, 64, probe_budget=0.0)
    survival, lengths = np.full((64, 16), 0.3, np.float32), np.full(64, 16, np.int32)
    rule.observe(64, 0, 0.1)
    rule.observe(64, 0, 0.1)
    rule._saved = -1e-9
    for _ in range(50):
        rule.observe(64, int(rule.choose(survival, lengths).sum()), 0.1)
    assert rule.report().probes == 0


@pytest.mark.parametrize("engine", ["lab CPU", "GPU"])
@pytest.mark.parametrize("slower", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_changes_no_decision(engine, slower):
    run = served(engine, "half", ((16, 900),), lambda step: slower if step >= 400 else 1.0)
    now = slice(420, 900)
    rates = run.tokens[now].sum(axis=0) / run.seconds[now].sum(axis=0)
    assert rates[bench.RULE] >= 0.96 * rates[bench.ORACLE]


def test_the_report_knows_the_last_batch():
    rule = served("lab CPU", "copy", JUMPS).rule
    report = rule.report()
    assert (report.steps, report.requests, len(report.seconds)) == (900, 1, bench.K + 1)


@pytest.mark.parametrize("budget", [-0.1, 0.6])
def test_a_budget_is_a_share(budget):
    with pytest.raises(InputError, match="probe_budget"):
        DraftLength(4, 4, probe_budget=budget)
