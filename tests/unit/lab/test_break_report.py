"""Which check of the toy pair catches which fault, and that none catches what is sound.

Seeds are fixed. A running test names a sound loop for one seed in a hundred by design (ALPHA); it does not for these.
"""

from itertools import count, islice

import numpy as np
import pytest

from toolkit.errors import InputError
from toolkit.lab import break_report
from toolkit.lab.break_report import ALPHA, Caught, acceptance, first_divergence, first_look, surprise, uniformity
from toolkit.lab.faults import FAULTS, Fault

SOUND = Fault("sound", lossy=False, what="nothing")


# (fault, tokens at which the running tests look once, the checks that catch it by then)
WHAT_CATCHES = [
    ("resample-from-p", 2_300, ["distribution"]),
    ("no-rollback", 600, ["greedy", "distribution"]),
    ("greedy-as-softmax", 600, ["distribution", "acceptance"]),
    ("tempered-undeclared", 900, ["distribution", "acceptance"]),
    ("bonus-from-wrong-row", 1_800, ["greedy", "distribution"]),
    ("other-family", 900, []),
    ("untempered-honest", 900, []),
]


@pytest.mark.parametrize(("fault", "tokens", "by"), WHAT_CATCHES)
def test_what_catches(monkeypatch: pytest.MonkeyPatch, fault: str, tokens: int, by: list[str]) -> None:
    monkeypatch.setattr(break_report, "LOOKS", (tokens,))
    monkeypatch.setattr(break_report, "GREEDY_ANSWERS", 20 if "greedy" in by else 5)
    report = break_report.break_report(fault, seed=0)
    assert [caught.check for caught in report if caught.tokens is not None] == by


def test_a_report_names_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(break_report, "LOOKS", (300,))
    monkeypatch.setattr(break_report, "GREEDY_ANSWERS", 2)
    monkeypatch.setitem(FAULTS, "sound", SOUND)
    expected = [Caught("greedy", None), Caught("distribution", None), Caught("acceptance", None)]
    assert break_report.break_report("sound", seed=0) == expected


def test_a_fault_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"no fault 'typo'.*no-rollback"):
        break_report.break_report("typo")


def test_greedy_counts_to_the_first_token_that_differs() -> None:
    """The bonus of the first full round, six tokens in: the prefill's, four drafts, and the wrong one."""
    assert first_divergence(FAULTS["bonus-from-wrong-row"], seed=0) == 6


def test_acceptance_holds_each_drafts_own_chance() -> None:
    chances = [chance for _, chance in islice(acceptance(SOUND, seed=0), 200)]
    assert all(0 <= chance <= 1 + 1e-12 for chance in chances)


class TestFirstLook:
    def test_names_the_look_at_which_the_level_was_passed(self) -> None:
        looks = break_report.LOOKS
        assert first_look(count(), lambda seen: 0.0 if len(seen) >= looks[2] else 1.0) == looks[2]

    def test_shares_the_level_among_the_looks(self) -> None:
        assert first_look(count(), lambda seen: ALPHA / len(break_report.LOOKS)) is None

    def test_counts_no_token_twice(self) -> None:
        lasts: list[float] = []
        first_look(count(), lambda seen: lasts.append(seen[-1]) or 1.0)
        assert lasts == [look - 1 for look in break_report.LOOKS]


class TestTests:
    def test_uniformity_of_what_is_uniform(self) -> None:
        assert uniformity(np.arange(0.05, 1, 0.1)) == 1

    def test_uniformity_of_what_is_not(self) -> None:
        """200 in the first of ten bins: chi-square 1800 with 9 degrees of freedom."""
        assert uniformity(np.full(200, 0.01)) < 1e-100

    def test_as_many_kept_as_chances_say_is_no_surprise(self) -> None:
        assert surprise(np.array([[1, 0.5], [0, 0.5]])) == 1

    def test_two_deviations_more_kept_are_one(self) -> None:
        """60 of 100 coins: p = 0.0455."""
        coins = np.array([[1, 0.5]] * 60 + [[0, 0.5]] * 40)
        assert surprise(coins) == pytest.approx(0.0455, abs=1e-4)
