"""The toy pair: by hand on a tiny text, with a cache that is its state, and a fair victim for an audit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.lab.reference import Model, Sampling
from toolkit.lab.toy import (
    DRAFTS,
    NgramModel,
    NgramTable,
    ToyTokenizer,
    toy_draft,
    toy_pair,
    toy_table,
    toy_target,
    toy_text,
)
from toolkit.sampling import FloatArray

TOKENIZER = ToyTokenizer()
AUDITED = Sampling(1.0, top_k=16)


class TestTokenizer:
    @given(st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.just("\n")))
    def test_reads_back_what_it_wrote(self, text: str) -> None:
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text

    @given(st.lists(st.integers(0, TOKENIZER.size - 2)))
    def test_any_tokens_but_the_end_are_those_of_their_text(self, ids: list[int]) -> None:
        assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids

    def test_what_it_does_not_know_is_a_question_mark(self) -> None:
        assert TOKENIZER.decode(TOKENIZER.encode("naïve\t")) == "na?ve?"

    def test_the_end_has_no_text(self) -> None:
        assert TOKENIZER.decode([*TOKENIZER.encode("so"), TOKENIZER.eos]) == "so"

    def test_a_chat_is_its_messages_as_paragraphs(self) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
        assert TOKENIZER.decode(TOKENIZER.chat(messages)) == "Be brief.\n\nWhy?\n\n"


class TestTable:
    """Over the text 0 1 0 2 and a vocabulary of four, with the shipped weights .98, .75, .75."""

    table = NgramTable([0, 1, 0, 2], 4)
    unigram = 0.98 * np.array([2, 1, 1, 0]) / 4 + 0.02 / 4

    def test_without_a_context(self) -> None:
        np.testing.assert_allclose(np.exp(self.table.logits(())), self.unigram)

    def test_after_one_token(self) -> None:
        bigram = 0.75 * np.array([0, 0.5, 0.5, 0]) + 0.25 * self.unigram
        np.testing.assert_allclose(np.exp(self.table.logits((0,))), bigram)

    def test_after_two_tokens(self) -> None:
        bigram = 0.75 * np.array([0, 0.5, 0.5, 0]) + 0.25 * self.unigram
        trigram = 0.75 * np.array([0, 0, 1, 0]) + 0.25 * bigram
        np.testing.assert_allclose(np.exp(self.table.logits((1, 0))), trigram)

    def test_after_what_never_occurred_it_knows_what_the_shorter_context_says(self) -> None:
        np.testing.assert_array_equal(self.table.logits((3, 0)), self.table.logits((0,)))

    def test_a_token_that_ends_the_text_predicts_like_no_context(self) -> None:
        np.testing.assert_array_equal(self.table.logits((2,)), self.table.logits(()))

    def test_a_row_is_computed_once(self) -> None:
        assert self.table.logits((0,)) is self.table.logits((0,))


class TestModel:
    @pytest.mark.parametrize(("order", "context"), [(1, ()), (2, (7,)), (3, (5, 7))])
    def test_predicts_from_the_last_tokens_of_its_order(self, order: int, context: tuple[int, ...]) -> None:
        model = NgramModel(order, toy_table())
        np.testing.assert_array_equal(model.extend([3, 5, 7])[-1], toy_table().logits(context))

    def test_has_a_row_for_each_token(self) -> None:
        rows = toy_target().extend([3, 5, 7])
        expected = [toy_table().logits(context) for context in [(3,), (3, 5), (5, 7)]]
        np.testing.assert_array_equal(rows, expected)

    def test_reads_on_from_its_cache(self) -> None:
        whole, parts = toy_target(), toy_target()
        parts.extend([3, 5])
        np.testing.assert_array_equal(parts.extend([7, 9]), whole.extend([3, 5, 7, 9])[2:])

    def test_forgets_what_is_cropped(self) -> None:
        model, fresh = toy_target(), toy_target()
        model.extend([3, 5, 8, 8])
        model.crop(2)
        fresh.extend([3, 5])
        np.testing.assert_array_equal(model.extend([7]), fresh.extend([7]))

    def test_what_is_not_cropped_changes_what_follows(self) -> None:
        model, fresh = toy_target(), toy_target()
        model.extend(TOKENIZER.encode("the"))
        fresh.extend(TOKENIZER.encode("th"))
        assert not np.allclose(model.extend([1]), fresh.extend([1]))

    def test_counts_what_it_holds(self) -> None:
        model = toy_target()
        model.extend([3, 5, 7])
        model.crop(1)
        assert model.length == 1

    def test_two_of_one_text_have_caches_of_their_own(self) -> None:
        target, draft = toy_pair()
        target.extend([3, 5])
        assert draft.length == 0


def rows(model: Model) -> FloatArray:
    """p after each token of the toy's text."""
    return AUDITED.of(model.extend(toy_text()))


class TestAFairVictim:
    def test_the_target_is_neither_sure_nor_lost(self) -> None:
        """Mean entropy in nats over its text, sampled as the audit samples."""
        p = rows(toy_target())
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1).mean()
        assert 1 < entropy < 3

    @pytest.mark.parametrize(("name", "lowest", "highest"), [("unigram", 0.35, 0.5), ("bigram", 0.55, 0.7)])
    def test_the_drafts_are_near_it_but_not_it(self, name: str, lowest: float, highest: float) -> None:
        alpha = np.minimum(rows(toy_target()), rows(toy_draft(name))).sum(axis=-1).mean()
        assert lowest < alpha < highest

    def test_the_target_depends_on_more_than_the_last_token(self) -> None:
        """Mean distance of its p to its p where the token before the last is another one's."""
        text = toy_text()
        contexts = zip(text[7:], text[1:], strict=False)
        p_after_others = AUDITED.of(np.stack([toy_table().logits(context) for context in contexts]))
        p = rows(toy_target())[1 : len(p_after_others) + 1]
        assert np.abs(p - p_after_others).sum(axis=-1).mean() / 2 > 0.2

    def test_every_token_can_follow_any(self) -> None:
        assert np.isfinite(toy_target().extend(toy_text()[:500])).all()


def test_a_draft_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=f"trigram.*{', '.join(DRAFTS)}"):
        toy_draft("trigram")
