"""What is learned of step times: of what was seen and what was not, under noise, outliers and a changing machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.proposers.step_time import StepTimes

REQUESTS, MOST = 64, 16


def staircase(requests: int, verified: int) -> float:
    return 0.006 + 0.00004 * 8 * -(-(requests + verified) // 8)


def lab_cpu(requests: int, verified: int) -> float:
    return 0.037 + 0.0017 * max(0, requests + verified - 8)


def gpu(requests: int, verified: int) -> float:
    return 0.006 * float((1 + ((requests + verified) / 300) ** 4) ** 0.25) + 0.00003 * requests


ENGINES = pytest.mark.parametrize("engine", [staircase, lab_cpu, gpu])


def taught(engine, steps, requests=(1, 4, 16, 64), noise=0.1, times=None, factor=1.0):
    """Times after this many steps at each number of requests, with anything from no drafts to `MOST` each."""
    rng = np.random.default_rng(0)
    times = times or StepTimes(REQUESTS, MOST)
    for count in requests:
        for _ in range(steps):
            verified = int(rng.integers(0, count * MOST + 1)) if rng.random() < 0.7 else 0
            times.observe(count, verified, factor * engine(count, verified) * rng.lognormal(0.0, noise))
    return times


def relative(times, requests, verified):
    """t(requests, verified) / t(requests, 0)."""
    seconds = times.seconds(requests, verified)
    return seconds[-1] / seconds[0]


@ENGINES
@pytest.mark.parametrize("verified", [8, 64, 256, 1024])
def test_what_verifying_costs_is_learned_within_ten_percent(engine, verified):
    times = taught(engine, 300)
    assert relative(times, 64, verified) == pytest.approx(engine(64, verified) / engine(64, 0), rel=0.1)


@ENGINES
def test_the_time_itself_is_learned_within_ten_percent(engine):
    assert taught(engine, 300).seconds(64, 64)[64] == pytest.approx(engine(64, 64), rel=0.1)


@ENGINES
def test_a_batch_size_never_seen_is_known_from_others(engine):
    times = taught(engine, 300, requests=(4, 16, 64))
    assert relative(times, 32, 128) == pytest.approx(engine(32, 128) / engine(32, 0), rel=0.1)


@ENGINES
def test_small_batches_are_remembered_while_large_ones_run(engine):
    times = taught(engine, 300, requests=(1,))
    for _ in range(3000):
        times.observe(64, 0, engine(64, 0))
    assert relative(times, 1, 16) == pytest.approx(engine(1, 16) / engine(1, 0), rel=0.05)


steps = st.tuples(st.integers(1, 8), st.integers(0, 32), st.floats(1e-4, 1e3))


@given(st.lists(steps, max_size=30), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_more_tokens_never_take_less_time_whatever_was_observed(observed, requests):
    times = StepTimes(8, 4)
    for step in observed:
        times.observe(*step)
    assert (np.diff(times.seconds(requests, 32)) >= 0).all()


@given(st.lists(steps, max_size=30), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_times_are_positive_whatever_was_observed(observed, requests):
    times = StepTimes(8, 4)
    for step in observed:
        times.observe(*step)
    assert times.seconds(requests, 32)[0] > 0


@pytest.mark.parametrize("verified", [0, 64])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_one_odd_step_moves_nothing_by_two_percent(verified, factor):
    times = taught(lab_cpu, 300)
    before = times.seconds(64, 128)
    times.observe(64, verified, factor * lab_cpu(64, verified))
    assert times.seconds(64, 128) == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_jump_of_the_level_is_followed_within_twenty_steps(factor):
    times = taught(lab_cpu, 300)
    for _ in range(20):
        times.observe(64, 0, factor * lab_cpu(64, 0))
    assert times.seconds(64, 0)[0] == pytest.approx(factor * lab_cpu(64, 0), rel=0.05)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_jump_of_the_level_leaves_the_ratios_of_what_is_not_seen(factor):
    times = taught(lab_cpu, 300)
    for _ in range(20):
        times.observe(64, 0, factor * lab_cpu(64, 0))
    assert relative(times, 1, 16) == pytest.approx(lab_cpu(1, 16) / lab_cpu(1, 0), rel=0.1)


def test_a_slow_drift_is_followed():
    times = taught(lab_cpu, 300)
    for step in range(1000):
        times.observe(64, 0, (1 + step / 1000) * lab_cpu(64, 0))
    assert times.seconds(64, 0)[0] == pytest.approx(2 * lab_cpu(64, 0), rel=0.05)


def test_an_odd_first_step_is_forgotten():
    times = StepTimes(REQUESTS, MOST)
    times.observe(64, 0, 20 * lab_cpu(64, 0))
    assert taught(lab_cpu, 50, times=times).seconds(64, 0)[0] == pytest.approx(lab_cpu(64, 0), rel=0.1)


@pytest.mark.parametrize("step", [(0, 0, 1.0), (1, -1, 1.0), (1, 0, 0.0), (1, 0, float("nan")), (1, 0, float("inf"))])
def test_nonsense_is_left_out(step):
    times = StepTimes(REQUESTS, MOST)
    times.observe(*step)
    assert times.steps == 0


def test_more_requests_than_announced_are_extrapolated():
    times = taught(lab_cpu, 300)
    assert times.seconds(96, 0)[0] == pytest.approx(lab_cpu(96, 0), rel=0.15)


def test_the_noise_is_learned():
    assert taught(lab_cpu, 500, noise=0.03).noise == pytest.approx(0.03, rel=0.35)


def error(times, verified):
    seconds = times.seconds(64, verified)
    return times.errors(64, np.array([verified]), 0, seconds)[0][0]


def test_what_was_never_verified_is_known_to_be_unknown():
    times = StepTimes(REQUESTS, MOST)
    for _ in range(100):
        times.observe(64, 0, lab_cpu(64, 0))
    assert error(times, 64) > 0.05


def test_certainty_comes_with_steps():
    assert error(taught(lab_cpu, 300), 64) < 0.03


def test_certainty_fades_where_nothing_is_seen():
    times = taught(lab_cpu, 300)
    before = error(times, 64)
    for _ in range(20_000):
        times.observe(64, 0, lab_cpu(64, 0))
    assert error(times, 64) > 1.5 * before


def test_nothing_is_uncertain_against_itself():
    times = taught(lab_cpu, 10)
    assert times.errors(64, np.array([32]), 32, times.seconds(64, 32))[0][0] == pytest.approx(0.0, abs=1e-6)


def test_choices_are_where_the_times_bend():
    times = taught(staircase, 300)
    seconds, choices = times.seconds(16, 256), times.choices(16, 256)
    assert seconds == pytest.approx(np.interp(np.arange(257), choices, seconds[choices]))


@pytest.mark.parametrize(("requests", "most"), [(0, 1), (1, 0)])
def test_at_least_one_request_and_one_token(requests, most):
    with pytest.raises(InputError, match="at least 1"):
        StepTimes(requests, most)
