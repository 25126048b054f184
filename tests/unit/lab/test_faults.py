"""The planted faults: the lossy ones break the target's law and the slow ones keep it; each does what it says.

Seeds are fixed. A sound rule would fail less than once in a million seeds (NEVER).
"""

import numpy as np
import pytest
from scipy import stats
from small_world import NEVER, PROMPT, SIZE, draft, law_p_value, target

from toolkit.lab.faults import FAULTS, SHARPENED, OtherFamily, resample_from_p_output
from toolkit.lab.reference import Draft, LookupDrafter, ModelDrafter, Rule, Sampling, generate
from toolkit.lab.toy import toy_pair, toy_text
from toolkit.sampling import FloatArray, adjust, one_hot, verify

LOSSY = ["resample-from-p", "no-rollback", "greedy-as-softmax", "tempered-undeclared", "bonus-from-wrong-row"]
SLOW = ["other-family", "untempered-honest"]
WARM = Sampling(0.7, top_k=2)
P = np.array([0.38, 0.22, 0.16, 0.12, 0.08, 0.04])
Q = np.array([0.30, 0.20, 0.20, 0.10, 0.14, 0.06])
DRAWS = 15_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def proposals(name: str, times: int, k: int = 1) -> list[Draft]:
    """What the drafter of a fault guesses after PROMPT."""
    drafter, random = FAULTS[name].drafter(draft()), rng()
    return [drafter.propose(PROMPT, k, WARM, random) for _ in range(times)]


def draft_logits() -> FloatArray:
    return draft().extend(PROMPT)[-1]


def test_all_seven_are_there_and_sorted_by_harm() -> None:
    assert [(name, fault.lossy) for name, fault in FAULTS.items()] == [
        *((name, True) for name in LOSSY),
        *((name, False) for name in SLOW),
    ]


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_filed_under_its_name(name: str) -> None:
    assert FAULTS[name].name == name


class TestHarm:
    @pytest.mark.parametrize("name", LOSSY)
    def test_answers_of_a_lossy_one_leave_the_targets_law(self, name: str) -> None:
        fault = FAULTS[name]
        assert law_p_value(Sampling(0.7), fault.drafter(draft()), rule=fault.rule) < NEVER

    @pytest.mark.parametrize("name", SLOW)
    def test_answers_of_a_slow_one_keep_the_targets_law(self, name: str) -> None:
        fault = FAULTS[name]
        assert law_p_value(WARM, fault.drafter(draft()), rule=fault.rule) > NEVER

    @pytest.mark.parametrize("name", ["resample-from-p", "no-rollback"])
    def test_one_in_the_rule_breaks_prompt_lookup_too(self, name: str) -> None:
        assert law_p_value(Sampling(0.7), LookupDrafter(SIZE, shortest=1), rule=FAULTS[name].rule) < NEVER

    @pytest.mark.parametrize("name", SLOW)
    def test_a_slow_one_keeps_fewer_drafts(self, name: str) -> None:
        """On the toy pair, by at least 5 of 100 drafted."""

        def kept(drafter_of: object) -> float:
            big, small = toy_pair()
            drafter, random = drafter_of(small), rng()  # type: ignore[operator]
            prompts = [toy_text()[start : start + 12] for start in range(0, 2000, 200)]
            sampling = Sampling(0.7, top_k=16)
            steps = [step for prompt in prompts for step in generate(big, prompt, sampling, random, 100, drafter, 4)]
            return sum(step.accepted for step in steps) / sum(step.drafted for step in steps)

        assert kept(FAULTS[name].drafter) < kept(ModelDrafter) - 0.05


@pytest.fixture(scope="module")
def resampled() -> FloatArray:
    """How often resample-from-p emits each token at the place of one draft drawn from Q."""
    rows, q, random = np.tile(P, (2, 1)), Q[None], rng()
    drafts = random.choice(len(Q), DRAWS, p=Q).tolist()
    emitted = [FAULTS["resample-from-p"].rule.verify(rows, q, [token], random).tokens[0] for token in drafts]
    return np.bincount(emitted, minlength=len(P)).astype(np.float64)


class TestResampleFromP:
    def test_emits_its_closed_form(self, resampled: FloatArray) -> None:
        assert stats.chisquare(resampled, DRAWS * resample_from_p_output(P, Q)).pvalue > NEVER

    def test_does_not_emit_p(self, resampled: FloatArray) -> None:
        assert stats.chisquare(resampled, DRAWS * P).pvalue < NEVER

    def test_closed_form_of_the_lessons_vector(self) -> None:
        """min(p, q) + 0.12 p."""
        expected = [0.3456, 0.2264, 0.1792, 0.1144, 0.0896, 0.0448]
        np.testing.assert_allclose(resample_from_p_output(P, Q), expected)

    def test_keeps_what_the_exact_rule_keeps(self) -> None:
        """With the same random numbers, for drafts of which the rule keeps p / q = 0.57."""
        rows, q = np.tile(P, (2, 1)), Q[None]
        rule = FAULTS["resample-from-p"].rule
        kept = [rule.verify(rows, q, [4], rng(seed)).accepted for seed in range(300)]
        assert kept == [verify(rows, q, [4], rng(seed)).accepted for seed in range(300)]

    def test_is_exact_where_the_draft_is_the_target(self) -> None:
        np.testing.assert_allclose(resample_from_p_output(P, P), P)


class TestNoRollback:
    def test_rejected_drafts_stay_in_the_targets_cache(self) -> None:
        model = target()
        best = int(model.extend(PROMPT)[-1].argmax())
        after = int(model.extend([best])[-1].argmax())
        wrong = (after + 1) % SIZE

        class Wrong:
            size = SIZE

            def propose(self, sequence: object, k: int, sampling: object, rng: object) -> Draft:
                return Draft([wrong], one_hot([wrong], SIZE))

        list(generate(model, PROMPT, Sampling(), rng(), 3, Wrong(), 1, rule=FAULTS["no-rollback"].rule))
        assert model.cached[: len(PROMPT) + 3] == [*PROMPT, best, wrong, after]


class TestBonusFromWrongRow:
    def test_the_bonus_is_of_the_row_that_judged_the_last_draft(self) -> None:
        rows = one_hot([1, 2, 3], 6)
        step = FAULTS["bonus-from-wrong-row"].rule.verify(rows, one_hot([1, 2], 6), [1, 2], rng())
        assert step.tokens == (1, 2, 2)

    def test_a_step_without_drafts_is_sound(self) -> None:
        step = FAULTS["bonus-from-wrong-row"].rule.verify(one_hot([3], 6), np.empty((0, 6)), [], rng())
        assert step.tokens == (3,)


class TestDrafts:
    def test_greedy_as_softmax_guesses_the_likeliest(self) -> None:
        assert {guess.tokens[0] for guess in proposals("greedy-as-softmax", 100)} == {int(draft_logits().argmax())}

    def test_tempered_undeclared_draws_at_half_the_temperature(self) -> None:
        guessed = [guess.tokens[0] for guess in proposals("tempered-undeclared", 4000)]
        law = adjust(draft_logits(), SHARPENED * WARM.temperature, WARM.top_k)
        counts = np.bincount(guessed, minlength=SIZE)
        assert stats.chisquare(counts[law > 0], 4000 * law[law > 0]).pvalue > NEVER

    @pytest.mark.parametrize("name", ["greedy-as-softmax", "tempered-undeclared"])
    def test_what_lies_declares_what_an_honest_draft_would(self, name: str) -> None:
        (guess,) = proposals(name, 1)
        np.testing.assert_array_equal(guess.q[0], WARM.of(draft_logits()))

    def test_untempered_honest_declares_the_softmax_alone(self) -> None:
        (guess,) = proposals("untempered-honest", 1)
        np.testing.assert_array_equal(guess.q[0], adjust(draft_logits()))

    def test_untempered_honest_draws_what_it_declares(self) -> None:
        counts = np.bincount([guess.tokens[0] for guess in proposals("untempered-honest", 4000)], minlength=SIZE)
        assert stats.chisquare(counts, 4000 * adjust(draft_logits())).pvalue > NEVER

    def test_the_other_familys_ids_are_shifted(self) -> None:
        np.testing.assert_array_equal(OtherFamily(draft()).extend(PROMPT), np.roll(draft().extend(PROMPT), 1, axis=-1))

    def test_the_other_familys_cache_is_its_models(self) -> None:
        model = OtherFamily(draft())
        model.extend([0, 1, 2])
        model.crop(1)
        assert (model.length, model.model.length) == (1, 1)

    @pytest.mark.parametrize("name", FAULTS)
    def test_only_those_in_the_draft_need_a_draft_model(self, name: str) -> None:
        assert FAULTS[name].needs_draft_model == (FAULTS[name].rule == Rule(verify))
