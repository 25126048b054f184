"""Many tests judged at once: Holm's step-down, verdicts of levels and of the audit, the shape of the JSON."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.audit.judgement import ALARM, LEVELS, Check, Findings, Judgement, holm, judge

SOUND = Findings([Check("sound", 0.0, 0.5, 10)], proved="10 tokens compared")
BAD = Findings([Check("bad", 3.0, 1e-9, 10, note="3 of 10 differ")], examples=["like this"])
GAP = Findings(gap="nothing was asked")

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def audit(**changed: Findings) -> Judgement:
    return judge({name: changed.get(name, SOUND) for name in LEVELS})


class TestHolm:
    def test_it_steps_down(self) -> None:
        """Holm 1979: 0.01/4, 0.01/3, 0.01/2, 0.01 in turn; the first that holds ends it."""
        assert holm([0.004, 0.002, 0.5, 0.0033]) == [True, True, False, True]
        assert holm([0.004, 0.0026, 0.5, 0.0033]) == [False, False, False, False]

    def test_nothing_to_judge_is_nothing_rejected(self) -> None:
        assert holm([]) == []

    @given(p_values)
    def test_it_rejects_what_bonferroni_does_and_nothing_above_the_level(self, p: list[float]) -> None:
        rejected = holm(p)
        for value, is_rejected in zip(p, rejected, strict=True):
            assert is_rejected or value > ALARM / len(p)
            assert not is_rejected or value <= ALARM

    @given(p_values, st.randoms())
    def test_the_order_does_not_matter(self, p: list[float], random: object) -> None:
        order = list(range(len(p)))
        random.shuffle(order)  # type: ignore[attr-defined]
        rejected = holm(p)
        assert holm([p[i] for i in order]) == [rejected[i] for i in order]

    def test_dependent_tests_raise_no_more_alarms(self) -> None:
        """Ten tests of one sample and ten of others: the chance of an alarm stays under 1 %.

        4,000 audits; at a rate of 1 % more than 75 alarms come once in a million (normal, sd 6.3).
        """
        rng = np.random.default_rng(5)
        p = np.concatenate([np.repeat(rng.random((4000, 1)), 10, axis=1), rng.random((4000, 10))], axis=1)
        assert sum(any(holm(list(row))) for row in p) <= 75


class TestVerdict:
    def test_all_levels_sound_is_lossless(self) -> None:
        assert audit().verdict == "lossless"

    @pytest.mark.parametrize("name", LEVELS)
    def test_one_level_lossy_is_lossy(self, name: str) -> None:
        judgement = audit(**{name: BAD})
        assert (judgement.verdict, judgement.levels[name].verdict) == ("lossy", "lossy")

    @pytest.mark.parametrize("name", ["greedy", "distribution"])
    def test_tokens_that_were_not_compared_are_inconclusive(self, name: str) -> None:
        assert audit(**{name: GAP}).verdict == "inconclusive"

    @pytest.mark.parametrize("name", ["acceptance", "structure"])
    def test_what_a_server_does_not_offer_is_no_doubt_about_its_tokens(self, name: str) -> None:
        assert audit(**{name: GAP}).verdict == "lossless"

    def test_a_fault_outweighs_a_gap_of_the_same_level(self) -> None:
        assert audit(greedy=Findings(BAD.tests, gap="no control")).levels["greedy"].verdict == "lossy"

    def test_a_test_that_is_not_counted_does_not_count(self) -> None:
        excused = Findings([Check("excused", 3.0, 1e-9, 10, counted=False)], proved="x")
        assert audit(greedy=excused).verdict == "lossless"

    def test_a_figure_without_p_is_no_test(self) -> None:
        assert audit(greedy=Findings([Check("figure", 3.0, None, 10)], proved="x")).verdict == "lossless"

    def test_many_sound_tests_beside_it_excuse_a_p_of_one_in_a_thousand(self) -> None:
        many = Findings([Check(f"test {i}", 0.0, 0.001 if i == 7 else 0.6, 10) for i in range(20)], proved="x")
        alone = Findings([Check("test", 0.0, 0.001, 10)])
        assert (audit(greedy=many).verdict, audit(greedy=alone).verdict) == ("lossless", "lossy")


class TestReason:
    def test_of_a_fault_is_the_strongest_test(self) -> None:
        two = Findings([Check("weak", 1.0, 1e-5, 10, note="so"), Check("strong", 1.0, 1e-12, 10, note="thus")])
        assert audit(greedy=two).levels["greedy"].reason == "strong: thus (p = 1e-12)"

    def test_a_p_of_zero_is_certain(self) -> None:
        assert audit(greedy=Findings([Check("ends", 1.0, 0.0, 10)])).levels["greedy"].reason == "ends (certain)"

    def test_of_a_gap_is_the_gap(self) -> None:
        assert audit(structure=GAP).levels["structure"].reason == "nothing was asked"

    def test_of_a_sound_level_is_what_it_proved(self) -> None:
        assert audit().levels["greedy"].reason == "10 tokens compared"

    def test_examples_are_those_of_a_lossy_level_alone(self) -> None:
        judgement = audit(greedy=BAD, distribution=Findings(SOUND.tests, examples=["no example of a fault"]))
        assert [judgement.levels[name].examples for name in ("greedy", "distribution")] == [["like this"], []]


class TestJson:
    def test_its_keys(self) -> None:
        assert list(audit().as_json()) == ["verdict", *LEVELS, "smallest_total_variation_caught"]

    def test_the_keys_of_a_level_and_of_a_test(self) -> None:
        level = audit().as_json()["greedy"]
        assert level == {
            "verdict": "lossless",
            "tests": [{"name": "sound", "statistic": 0.0, "p": 0.5, "n": 10}],
            "reason": "10 tokens compared",
        }

    def test_a_test_that_did_not_count_is_told_from_those_that_did(self) -> None:
        excused = Check("excused", 3.0, 1e-9, 10, counted=False, note="the baseline fails it as well")
        assert excused.as_json()["note"] == "the baseline fails it as well"

    def test_numbers_are_finite(self) -> None:
        text = json.dumps(audit(greedy=BAD, structure=GAP).as_json(), allow_nan=False)
        assert math.isfinite(json.loads(text)["greedy"]["tests"][0]["p"])
