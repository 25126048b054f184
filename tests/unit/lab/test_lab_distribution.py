"""What the rule emits, by many draws: the exact one passes, another one does not."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.lab import distribution as experiment
from toolkit.lab.distribution import Emitted, P, Q, binned, distribution, prefix, words
from toolkit.lab.faults import FAULTS
from toolkit.lab.pairing import load_pair
from toolkit.lab.reference import Sampling

DRAWS = 20_000
UNLIKELY = 1e-7  # chance that a sound rule fails one of these tests
SIGMAS = 5.5  # beyond which a sum of so many draws lies with a chance of 4e-8


@cache
def drawn(certain: bool) -> Emitted:
    return words(DRAWS, 1, certain)


class TestWords:
    def test_the_lessons_numbers_are_the_theorys(self) -> None:
        found = words(1, 0)
        assert (found.alpha, found.expected_tokens_per_pass) == pytest.approx((0.88, 3.9356), abs=5e-5)

    @pytest.mark.parametrize("certain", [False, True])
    def test_the_exact_rule_emits_the_targets_distribution(self, certain: bool) -> None:
        assert drawn(certain).p_value > UNLIKELY

    @pytest.mark.parametrize("certain", [False, True])
    def test_total_variation_is_what_chance_makes_it(self, certain: bool) -> None:
        """`noise` is its mean. Four times as much makes chi-square at least 42 over 6 words: a chance of 6e-8."""
        assert drawn(certain).total_variation < 4 * drawn(certain).noise

    @pytest.mark.parametrize(("certain", "alpha"), [(False, 0.88), (True, 0.38)])
    def test_drafts_are_kept_at_alpha(self, certain: bool, alpha: float) -> None:
        assert drawn(certain).kept == pytest.approx(alpha, abs=SIGMAS * np.sqrt(0.25 / DRAWS))

    @pytest.mark.parametrize("certain", [False, True])
    def test_tokens_per_pass_are_the_theorys(self, certain: bool) -> None:
        """A step has 1 to 5 tokens, so its standard deviation is 2 at most."""
        found = drawn(certain)
        assert found.tokens_per_pass == pytest.approx(found.expected_tokens_per_pass, abs=SIGMAS * 2 / np.sqrt(DRAWS))

    def test_a_rule_that_resamples_from_p_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(experiment, "verify", FAULTS["resample-from-p"].rule.verify)
        assert words(DRAWS, 5).p_value < 1e-6


class TestPrefix:
    @pytest.mark.parametrize("drafter", ["bigram", "unigram", "lookup"])
    def test_the_exact_rule_emits_the_targets_distribution(self, drafter: str) -> None:
        found = prefix(load_pair("toy", drafter), "the large model and the l", DRAWS, Sampling(1.0), 1)
        assert found.p_value > UNLIKELY

    def test_drafts_are_kept_at_alpha(self) -> None:
        found = prefix(load_pair("toy", "bigram"), "the l", DRAWS, Sampling(0.8), 2)
        assert found.kept == pytest.approx(found.alpha, abs=SIGMAS * np.sqrt(0.25 / DRAWS))

    def test_another_rule_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(experiment, "accept_or_fix", lambda p, q, token, rng: (token, True))
        assert prefix(load_pair("toy", "bigram"), "the l", DRAWS, Sampling(1.0), 3).p_value < 1e-6

    def test_at_temperature_0_one_token_is_all(self) -> None:
        found = prefix(load_pair("toy", "bigram"), "the l", 100, Sampling(), 4)
        assert (found.bins, found.total_variation, found.p_value) == (1, 0.0, 1.0)

    @pytest.mark.parametrize(
        ("draws", "sampling", "seed", "said"),
        [
            (0, Sampling(1.0), 0, "--draws takes at least 1"),
            (9, Sampling(-1.0), 0, "--temperature -1.0"),
            (9, Sampling(1.0), -1, "--seed -1"),
        ],
    )
    def test_draws_that_are_none_are_refused(self, draws: int, sampling: Sampling, seed: int, said: str) -> None:
        with pytest.raises(InputError, match=said):
            prefix(load_pair("toy"), "the l", draws, sampling, seed)

    @pytest.mark.parametrize(
        ("drafter", "text", "said"),
        [
            ("none", "a", "choose a --drafter"),
            ("bigram", "", "--prefix is empty"),
            ("lookup", "xyz", "the drafter guesses nothing after 'xyz'"),
        ],
    )
    def test_what_cannot_be_drawn_is_refused(self, drafter: str, text: str, said: str) -> None:
        with pytest.raises(InputError, match=said):
            prefix(load_pair("toy", drafter), text, 10, Sampling(1.0), 0)


def test_the_experiments_are_the_six_words_twice_and_a_prefix() -> None:
    found = distribution(load_pair("toy"), "the l", 5, Sampling(1.0), 0)
    assert [(one.vocabulary, one.draws) for one in found] == [(6, 5), (6, 5), (97, 5)]


class TestBins:
    @given(st.lists(st.floats(0, 30), min_size=1, max_size=30).filter(lambda values: sum(values) > 5))
    def test_each_bin_expects_enough(self, expected: list[float]) -> None:
        _, found = binned(np.zeros(len(expected)), np.array(expected))
        assert found.min() >= 5

    @given(st.lists(st.floats(0, 30), min_size=1, max_size=30).filter(lambda values: sum(values) > 5))
    def test_nothing_is_lost(self, expected: list[float]) -> None:
        counts = np.arange(len(expected), dtype=np.float64)
        seen, kept = binned(counts, np.array(expected))
        assert (seen.sum(), kept.sum()) == pytest.approx((counts.sum(), sum(expected)))

    def test_what_can_never_be_emitted_is_among_the_rare(self) -> None:
        seen, expected = binned(np.array([90.0, 3.0, 7.0]), np.array([90.0, 10.0, 0.0]))
        assert (seen.tolist(), expected.tolist()) == ([10.0, 90.0], [10.0, 90.0])


def test_the_lessons_vectors_are_distributions() -> None:
    assert (P.sum(), Q.sum()) == pytest.approx((1, 1))
