"""The loop emits what plain decoding would, greedy or sampled, and its caches hold nothing but the sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import NEVER, PROMPT, SIZE, Table, draft, law_p_value, target

from toolkit.errors import InputError
from toolkit.lab.reference import Draft, Drafter, LookupDrafter, ModelDrafter, Rule, Sampling, Step, generate
from toolkit.lab.toy import toy_pair, toy_target, toy_text
from toolkit.sampling import FloatArray, Verified, one_hot

GREEDY = Sampling()
SAMPLED = Sampling(temperature=1.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


class Scripted:
    """Drafts that are given, the same in every round."""

    size = SIZE

    def __init__(self, *drafts: int) -> None:
        self.drafts = list(drafts)
        self.asked: list[int] = []

    def propose(self, sequence: Sequence[int], k: int, sampling: Sampling, rng: np.random.Generator) -> Draft:
        self.asked.append(k)
        return Draft(self.drafts[:k], one_hot(self.drafts[:k], SIZE))


DRAFTERS = ["unigram", "bigram", "lookup"]


def toy_drafter(name: str) -> Drafter:
    return LookupDrafter(toy_target().size) if name == "lookup" else ModelDrafter(toy_pair(name)[1])


class TestGreedy:
    @pytest.mark.parametrize("name", DRAFTERS)
    @given(st.integers(0, len(toy_text()) - 20), st.integers(1, 20), st.integers(1, 6))
    def test_the_answer_is_that_of_plain_decoding(self, name: str, start: int, length: int, k: int) -> None:
        prompt = toy_text()[start : start + length]
        plain = list(generate(toy_target(), prompt, GREEDY, rng(), 40))
        speculated = list(generate(toy_target(), prompt, GREEDY, rng(), 40, toy_drafter(name), k))
        assert tokens(speculated) == tokens(plain)

    def test_a_draft_that_is_the_target_is_always_kept(self) -> None:
        steps = list(generate(target(), PROMPT, GREEDY, rng(), 16, ModelDrafter(target()), 4))
        assert [(len(step.tokens), step.accepted) for step in steps] == [(1, 0), (5, 4), (5, 4), (5, 4)]


class TestSampled:
    @pytest.mark.parametrize("k", [1, 2, 5])
    def test_answers_of_a_draft_model_follow_the_targets_law(self, k: int) -> None:
        assert law_p_value(SAMPLED, ModelDrafter(draft()), k) > NEVER

    def test_answers_of_prompt_lookup_follow_the_targets_law(self) -> None:
        assert law_p_value(SAMPLED, LookupDrafter(SIZE, shortest=1)) > NEVER

    def test_answers_at_a_temperature_and_top_k_follow_that_law(self) -> None:
        assert law_p_value(Sampling(0.6, top_k=2), ModelDrafter(draft())) > NEVER

    def test_answers_of_plain_decoding_follow_the_targets_law(self) -> None:
        assert law_p_value(SAMPLED, None) > NEVER

    def test_one_seed_gives_one_answer(self) -> None:
        first, second = (
            tokens(list(generate(target(), PROMPT, SAMPLED, rng(5), 30, ModelDrafter(draft()), 3))) for _ in range(2)
        )
        assert first == second


class Watched(Table):
    """A table that remembers what it was fed."""

    def __init__(self, memory: int, seed: int) -> None:
        super().__init__(memory, seed)
        self.fed: list[list[int]] = []

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        self.fed.append(list(tokens))
        return super().extend(tokens)


@dataclass(frozen=True)
class Round:
    sequence: list[int]
    target_cache: list[int]
    draft_cache: list[int]
    drafts: list[int]


class Looking:
    """A draft model that keeps what lies in both caches: the target's before it guesses, its own after."""

    size = SIZE

    def __init__(self, target: Table) -> None:
        self.target, self.draft = target, draft()
        self.drafter = ModelDrafter(self.draft)
        self.rounds: list[Round] = []

    def propose(self, sequence: Sequence[int], k: int, sampling: Sampling, rng: np.random.Generator) -> Draft:
        before = self.target.cached.copy()
        guess = self.drafter.propose(sequence, k, sampling, rng)
        self.rounds.append(Round(list(sequence), before, self.draft.cached.copy(), guess.tokens))
        return guess


def rounds(seed: int, k: int) -> list[Round]:
    model = target()
    looking = Looking(model)
    list(generate(model, PROMPT, SAMPLED, rng(seed), 20, looking, k))
    return looking.rounds


class TestCaches:
    @given(st.integers(0, 1000), st.integers(1, 5))
    def test_the_targets_covers_all_but_the_newest_token(self, seed: int, k: int) -> None:
        assert all(each.target_cache == each.sequence[:-1] for each in rounds(seed, k))

    @given(st.integers(0, 1000), st.integers(1, 5))
    def test_the_drafts_has_read_the_sequence_and_its_own_guesses_but_the_last(self, seed: int, k: int) -> None:
        assert all(each.draft_cache == [*each.sequence, *each.drafts[:-1]] for each in rounds(seed, k))

    def test_the_target_reads_the_newest_token_and_the_drafts_behind_it(self) -> None:
        model = Watched(2, 1)
        steps = list(generate(model, PROMPT, SAMPLED, rng(), 20, Scripted(0, 1), 2))
        assert model.fed == [PROMPT, *([step.tokens[-1], 0, 1] for step in steps[:-1])]

    def test_a_draft_model_reads_only_what_is_new_to_it(self) -> None:
        """After five kept tokens: the last draft, which it never read, and the bonus; then its own guesses."""
        model = Watched(2, 1)
        list(generate(target(), PROMPT, GREEDY, rng(), 8, ModelDrafter(model), 4))
        assert [len(fed) for fed in model.fed] == [3, 1, 1, 1, 2, 1, 1, 1]

    def test_what_an_earlier_answer_left_is_dropped(self) -> None:
        model, drafter = target(), ModelDrafter(draft())
        first, second = (tokens(list(generate(model, PROMPT, SAMPLED, rng(1), 20, drafter, 3))) for _ in range(2))
        assert first == second


class TestSteps:
    def test_the_first_is_the_prefills_single_token(self) -> None:
        best = int(target().extend(PROMPT)[-1].argmax())
        assert next(generate(target(), PROMPT, GREEDY, rng(), 20, ModelDrafter(draft()), 3)) == Step((best,), 0, 0)

    @given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 5))
    def test_they_hold_max_tokens_together(self, seed: int, max_tokens: int, k: int) -> None:
        steps = list(generate(target(), PROMPT, SAMPLED, rng(seed), max_tokens, ModelDrafter(draft()), k))
        assert len(tokens(steps)) == max_tokens

    @given(st.integers(0, 1000), st.integers(1, 5))
    def test_all_but_the_last_hold_the_accepted_and_one_more(self, seed: int, k: int) -> None:
        steps = list(generate(target(), PROMPT, SAMPLED, rng(seed), 20, ModelDrafter(draft()), k))
        assert [len(step.tokens) for step in steps[:-1]] == [step.accepted + 1 for step in steps[:-1]]

    @given(st.integers(0, 1000))
    def test_the_first_stop_token_is_the_last_of_the_answer(self, seed: int) -> None:
        answer = tokens(list(generate(target(), PROMPT, SAMPLED, rng(seed), 40, ModelDrafter(draft()), 3)))
        stopped = generate(target(), PROMPT, SAMPLED, rng(seed), 40, ModelDrafter(draft()), 3, frozenset({2}))
        assert tokens(list(stopped)) == (answer[: answer.index(2) + 1] if 2 in answer else answer)

    def test_accepted_is_counted_before_the_answer_is_trimmed(self) -> None:
        steps = list(generate(target(), PROMPT, GREEDY, rng(), 3, ModelDrafter(target()), 4))
        assert [(len(step.tokens), step.drafted, step.accepted) for step in steps] == [(1, 0, 0), (2, 4, 4)]

    def test_a_round_without_a_guess_is_a_plain_step(self) -> None:
        steps = list(generate(target(), PROMPT, GREEDY, rng(), 4, Scripted(), 4))
        assert [(len(step.tokens), step.drafted) for step in steps] == [(1, 0)] * 4

    def test_at_k_0_the_drafter_is_not_asked(self) -> None:
        drafter = Scripted(1)
        list(generate(target(), PROMPT, GREEDY, rng(), 4, drafter, 0))
        assert drafter.asked == []


class TestRefusals:
    def test_two_vocabularies(self) -> None:
        with pytest.raises(InputError, match=r"target's vocabulary has 97 tokens and the draft's 3"):
            generate(toy_target(), PROMPT, GREEDY, rng(), 4, Scripted(1), 2)

    @pytest.mark.parametrize(("prompt", "max_tokens", "k"), [([], 1, 1), (PROMPT, 0, 1), (PROMPT, 1, -1)])
    def test_numbers_that_cannot_be(self, prompt: list[int], max_tokens: int, k: int) -> None:
        with pytest.raises(ValueError, match="needs a prompt"):
            generate(target(), prompt, GREEDY, rng(), max_tokens, None, k)


class TestModelDrafter:
    def test_draws_its_guesses_as_the_request_is_sampled(self) -> None:
        guess = ModelDrafter(draft()).propose(PROMPT, 3, Sampling(0.6, top_k=2), rng())
        read = draft().extend([*PROMPT, *guess.tokens])[len(PROMPT) - 1 : -1]
        np.testing.assert_array_equal(guess.q, Sampling(0.6, top_k=2).of(read))

    def test_guesses_nothing_when_nothing_is_asked(self) -> None:
        assert ModelDrafter(draft()).propose(PROMPT, 0, SAMPLED, rng()).tokens == []


def looked_up(sequence: list[int], k: int = 3) -> list[int]:
    return LookupDrafter(10).propose(sequence, k, SAMPLED, rng()).tokens


class TestLookup:
    def test_guesses_what_followed_the_same_words(self) -> None:
        assert looked_up([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]

    def test_a_longer_match_wins_over_a_later_one(self) -> None:
        assert looked_up([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], k=1) == [7]

    def test_of_two_matches_the_later_one(self) -> None:
        assert looked_up([1, 2, 7, 1, 2, 8, 1, 2], k=1) == [8]

    def test_one_word_alone_is_no_match(self) -> None:
        assert looked_up([1, 2, 3, 2]) == []

    def test_words_beyond_the_longest_suffix_do_not_count(self) -> None:
        """Six agree with the first place and five with the second, which is later."""
        assert looked_up([6, 1, 2, 3, 4, 5, 7, 0, 1, 2, 3, 4, 5, 8, 6, 1, 2, 3, 4, 5], k=1) == [8]

    def test_a_match_may_overlap_the_end(self) -> None:
        assert looked_up([4, 4, 4]) == [4]

    def test_a_sequence_too_short_to_repeat_gives_nothing(self) -> None:
        assert looked_up([1]) == []

    def test_it_is_certain_of_each_guess(self) -> None:
        guess = LookupDrafter(10).propose([1, 2, 3, 1, 2], 2, SAMPLED, rng())
        np.testing.assert_array_equal(guess.q, one_hot([3, 1], 10))

    def test_no_guess_has_no_rows(self) -> None:
        assert LookupDrafter(10).propose([1, 2, 3], 2, SAMPLED, rng()).q.shape == (0, 10)


def test_a_rule_takes_the_place_of_the_exact_one() -> None:
    rule = Rule(verify=lambda p, q, drafts, rng: Verified((2,), 0))
    assert tokens(list(generate(target(), PROMPT, SAMPLED, rng(), 3, rule=rule))) == [2, 2, 2]
