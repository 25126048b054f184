"""The transform of emitted tokens: uniform for exact draws whatever the order, by hand where a hand can."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from simulated_servers import Noise, World, reply, sampled

from toolkit.analysis.audit.replies import LOWEST, Ranked
from toolkit.analysis.audit.transform import (
    EDGE,
    NEAR,
    BoolArray,
    FloatArray,
    Scored,
    Transformed,
    indices,
    lacking,
    repeats,
    scored,
    transform,
)
from toolkit.sampling import adjust

NEVER = 1e-6  # of a sound transform, per comparison
SIZE, TOP_K = 30, 16
COLUMNS = ("ids", "logprobs", "token", "before", "index", "repeats")


def exact_draws(
    seed: int, temperature: float, top_k: int | None, step: float, n: int = 3000, best: int = SIZE
) -> Scored:
    """Tokens drawn as `toolkit.sampling` draws them, in random contexts of 8 kinds. `step` coarsens logits: ties.

    The `best` are listed, and the emitted one behind them where it is none of them.
    """
    rng = np.random.default_rng(seed)
    before = rng.integers(8, size=n)
    logits = rng.normal(0, 2, (8, SIZE))[before] + rng.normal(0, 1, (n, SIZE))
    logits = np.round(logits / step) * step if step else logits
    p = adjust(logits, temperature, top_k)
    token = (np.cumsum(p, axis=1) > rng.random((n, 1))).argmax(axis=1)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = np.argsort(-logprobs, axis=1, kind="stable")
    logprobs = np.take_along_axis(logprobs, ids, 1)
    further = (np.arange(SIZE) >= best) & (ids != token[:, None])
    ids, logprobs = np.where(further, -1, ids), np.where(further, -np.inf, logprobs)
    return Scored(ids, logprobs, token, before, np.zeros(n, dtype=np.int64), before < 3, best=best)


def one(row: Ranked, token: int, before: int = 0) -> Scored:
    """A single token with its row."""
    return scored([reply("sample", "arm", 0, [before, token], scores=[row, row])])


def transformed(
    sample: Scored, other: Scored | None = None, temperature: float = 1.0, top_k: int = TOP_K
) -> Transformed:
    other = exact_draws(1, 1.0, TOP_K, 0.0, n=200) if other is None else other
    return transform(sample, other, temperature, top_k, np.random.default_rng(0))


def log_row(*p: float) -> Ranked:
    return [(token, math.log(value)) for token, value in enumerate(p)]


def part(sample: Scored, keep: BoolArray) -> Scored:
    columns = (getattr(sample, name)[keep] for name in COLUMNS)
    return Scored(*columns, best=sample.best)


def uniformity(u: FloatArray) -> float:
    return float(stats.kstest(u, "uniform").pvalue)


class TestUniform:
    """For exact draws. KS over 3,000 tokens; one in a million would fail a comparison by chance."""

    @given(
        seed=st.integers(0, 10_000),
        temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
        top_k=st.sampled_from([1, 2, 5, 16, 30, 100]),
        step=st.sampled_from([0.0, 0.05, 0.5]),
    )
    def test_in_either_order_with_ties_and_tokens_at_the_edge(
        self, seed: int, temperature: float, top_k: int, step: float
    ) -> None:
        sample = exact_draws(seed, temperature, top_k, step)
        found = transform(sample, exact_draws(seed + 1, 1.0, 16, 0.0), temperature, top_k, np.random.default_rng(seed))
        assert not found.outside.any()
        assert min(uniformity(found.by_probability), uniformity(found.by_guess)) > NEVER

    @given(seed=st.integers(0, 10_000), best=st.sampled_from([1, 5, 20, 30]), step=st.sampled_from([0.0, 0.05, 0.5]))
    def test_where_all_tokens_may_be_drawn_and_few_are_listed(self, seed: int, best: int, step: float) -> None:
        sample, other = (exact_draws(seed + i, 1.0, None, step, best=best) for i in (0, 1))
        found = transform(sample, other, 1.0, None, np.random.default_rng(seed))
        assert not found.outside.any()
        assert min(uniformity(found.by_probability), uniformity(found.by_guess)) > NEVER

    def test_also_where_the_guesser_knows_every_context(self) -> None:
        sample = exact_draws(3, 1.0, 16, 0.0)
        assert uniformity(transformed(sample, other=sample).by_guess) > NEVER

    def test_of_a_simulated_server_at_every_index_of_its_steps(self) -> None:
        drawn = sampled(World(5), np.random.default_rng(5), Noise())
        found = transformed(drawn.arm, drawn.control, top_k=None)
        for index in range(3):
            assert uniformity(found.by_probability[found.index == index]) > NEVER

    def test_not_for_draws_at_another_temperature(self) -> None:
        assert uniformity(transformed(exact_draws(3, 0.8, 16, 0.0)).by_probability) < NEVER

    def test_not_for_draws_that_favour_a_token_whatever_its_probability(self) -> None:
        """Probability cannot tell, the pooled errors cancel: a guesser's order can."""
        sample, control = exact_draws(3, 1.0, 16, 0.0), exact_draws(4, 1.0, 16, 0.0)
        again = np.random.default_rng(0).random(len(sample.token)) < 0.3
        favoured = np.where(again & (sample.ids[:, :16] == 7).any(axis=1), 7, sample.token)
        found = transformed(replace(sample, token=favoured), control)
        assert uniformity(found.by_guess) < NEVER


class TestByHand:
    def test_the_likeliest_token_lies_first(self) -> None:
        assert 0 <= transformed(one(log_row(0.5, 0.3, 0.2), 0)).by_probability[0] <= 0.5

    def test_the_others_lie_behind_the_mass_before_them(self) -> None:
        assert 0.8 <= transformed(one(log_row(0.5, 0.3, 0.2), 2)).by_probability[0] <= 1.0

    def test_temperature_sharpens_the_mass(self) -> None:
        """At 0.5, .25 .09 .04 of .38."""
        assert transformed(one(log_row(0.5, 0.3, 0.2), 0), temperature=0.5).probability[0] == pytest.approx(0.25 / 0.38)

    def test_top_k_takes_the_mass_of_the_rest(self) -> None:
        assert transformed(one(log_row(0.5, 0.3, 0.2), 1), top_k=2).probability[0] == pytest.approx(0.375)

    def test_a_tie_with_the_kth_stays(self) -> None:
        """vLLM masks what lies below the k-th value, so both tokens of 0.2 are kept at k = 2."""
        assert transformed(one(log_row(0.6, 0.2, 0.2), 2), top_k=2).probability[0] == pytest.approx(0.2)

    def test_tokens_about_the_kth_share_one_bin_behind_the_others(self) -> None:
        near = [(0, 0.0), (1, -2.0), (2, -2.0 - EDGE / 2), (3, -2.0 - 0.9 * NEAR)]
        mass = 1 / (1 + math.exp(-2))
        for token in (1, 2, 3):
            assert mass <= transformed(one(near, token), top_k=2).by_probability[0] <= 1.0

    def test_a_token_that_rounding_cannot_have_brought_is_outside(self) -> None:
        found = transformed(one([(0, 0.0), (1, -2.0), (2, -2.01 - NEAR)], 2), top_k=2)
        assert (found.outside[0], found.possible, found.probability[0]) == (True, 0, 0.0)
        assert np.isnan(found.by_probability[0])
        assert np.isnan(found.by_guess[0])

    def test_a_token_that_the_row_does_not_hold_is_outside(self) -> None:
        """The reference lists the emitted token, so that this is a server that does not."""
        assert transformed(one(log_row(0.5, 0.3, 0.2), 9)).outside[0]

    @pytest.mark.parametrize("lowest", [LOWEST, -1e5])
    def test_a_token_of_no_probability_is_outside_of_a_short_row_too(self, lowest: float) -> None:
        assert transformed(one([*log_row(0.7, 0.3), (2, lowest)], 2)).outside[0]

    def test_a_vocabulary_smaller_than_top_k_is_whole(self) -> None:
        found = transformed(one(log_row(0.5, 0.3, 0.2), 2), top_k=16)
        assert (found.outside[0], found.probability[0]) == (False, pytest.approx(0.2))

    def test_where_all_may_be_drawn_the_unlisted_share_what_is_left(self) -> None:
        """The two best have 0.5 and 0.3; the emitted one is listed behind them because it was emitted."""
        found = transformed(two_best(emitted=7, logprob=-4.0), top_k=None)
        assert 0.8 <= found.by_probability[0] <= 1.0
        assert 0.8 <= found.by_guess[0] <= 1.0
        assert (found.unlisted[0], found.rest[0], found.outside[0]) == (True, pytest.approx(0.2), False)

    def test_the_raw_log_probability_of_the_emitted_token_is_kept(self) -> None:
        assert transformed(two_best(emitted=7, logprob=-4.0), top_k=None).logprob[0] == -4.0
        assert transformed(one(log_row(0.5, 0.3, 0.2), 1), temperature=0.5).logprob[0] == pytest.approx(math.log(0.3))
        assert np.isnan(transformed(one(log_row(0.5, 0.3), 7), top_k=None).logprob[0])

    def test_where_all_may_be_drawn_the_best_have_their_raw_probability(self) -> None:
        found = transformed(two_best(emitted=0, logprob=math.log(0.5)), top_k=None)
        assert (found.probability[0], found.unlisted[0]) == (pytest.approx(0.5), False)

    def test_where_all_may_be_drawn_a_token_of_no_probability_is_outside(self) -> None:
        assert transformed(two_best(emitted=7, logprob=LOWEST), top_k=None).outside[0]

    def test_where_all_may_be_drawn_a_token_that_is_not_listed_at_all_is_unlisted(self) -> None:
        """A reference that lists its best alone."""
        found = transformed(one(log_row(0.5, 0.3), 7), top_k=None)
        assert (found.unlisted[0], found.outside[0], found.tail[0]) == (True, False, pytest.approx(0.2))

    def test_only_one_token_possible_leaves_all_to_chance(self) -> None:
        assert 0 <= transformed(one([(4, 0.0), (5, LOWEST)], 4)).by_probability[0] <= 1


def two_best(emitted: int, logprob: float) -> Scored:
    """The emitted token behind the two best, in one reply with another that shows how many the best are."""
    short = log_row(0.5, 0.3)
    long = [*[pair for pair in short if pair[0] != emitted], (emitted, logprob)]
    return scored([reply("sample", "arm", 0, [0, emitted, 0], scores=[short, long, short])])


class TestTail:
    def test_the_likeliest_token_has_all(self) -> None:
        assert transformed(one(log_row(0.5, 0.3, 0.2), 0)).tail[0] == pytest.approx(1.0)

    def test_the_least_likely_of_the_listed_has_its_own(self) -> None:
        assert transformed(two_best(emitted=1, logprob=math.log(0.3)), top_k=None).tail[0] == pytest.approx(0.5)

    def test_a_token_in_the_last_bin_has_the_bin_at_most(self) -> None:
        assert transformed(two_best(emitted=7, logprob=-4.0), top_k=None).tail[0] == pytest.approx(0.2)

    def test_an_impossible_one_has_none(self) -> None:
        assert transformed(one(log_row(0.5, 0.3, 0.2), 9)).tail[0] == 0

    @pytest.mark.parametrize(("top_k", "best"), [(16, 30), (None, 20), (None, 5)])
    def test_no_more_draws_have_a_small_one_than_its_size(self, top_k: int | None, best: int) -> None:
        """30,000 exact draws, five times; Poisson, once in a million."""
        sample = exact_draws(3, 1.0, top_k, 0.0, n=30_000, best=best)
        tail = transformed(sample, top_k=top_k).tail
        for size in (0.001, 0.01, 0.1):
            assert stats.poisson.sf((tail <= size).sum() - 1, size * len(tail)) > NEVER


class TestGuesser:
    def test_it_orders_by_what_the_other_side_saw_behind_the_same_token(self) -> None:
        """The other side saw token 0 behind token 5 with 0.8, this place gives it 0.4: a guesser's favourite, first."""
        sample = one(log_row(0.4, 0.4, 0.2), 0, before=5)
        assert transformed(sample, one(log_row(0.8, 0.1, 0.1), 0, before=5)).by_guess[0] <= 0.4
        assert 0.4 <= transformed(sample, one(log_row(0.1, 0.8, 0.1), 0, before=5)).by_guess[0] <= 0.8

    def test_it_knows_nothing_of_its_own_side(self) -> None:
        """All of the sample's other tokens and rows are replaced: the place of the first one stays."""
        sample, stranger = exact_draws(3, 1.0, 16, 0.0), exact_draws(4, 1.0, 16, 0.0)
        first = np.arange(len(sample.token)) == 0
        mixed = Scored(
            *(
                np.concatenate([getattr(part(sample, first), name), getattr(part(stranger, ~first), name)])
                for name in COLUMNS
            ),
            best=sample.best,
        )
        assert transformed(mixed).by_guess[0] == transformed(sample).by_guess[0]

    def test_an_other_side_without_tokens_is_no_error(self) -> None:
        assert np.isfinite(transformed(one(log_row(0.5, 0.5), 0), scored([])).by_guess).all()


class TestScored:
    def test_the_first_token_of_a_reply_comes_from_the_prefill_and_is_left_out(self) -> None:
        rows = [log_row(1.0), log_row(0.6, 0.4), log_row(0.9, 0.1)]
        found = scored([reply("sample", "arm", 0, [0, 1, 0], chunks=[1, 2], scores=rows)])
        assert (found.token.tolist(), found.before.tolist(), found.index.tolist()) == ([1, 0], [0, 1], [0, 1])

    def test_rows_of_different_length_are_padded(self) -> None:
        rows = [log_row(1.0), log_row(0.6, 0.4), log_row(0.5, 0.3, 0.2)]
        found = scored([reply("sample", "arm", 0, [0, 1, 0], scores=rows)])
        assert found.ids.tolist() == [[0, 1, -1], [0, 1, 2]]
        assert np.isneginf(found.logprobs[0, 2])

    def test_the_best_are_as_many_as_the_shortest_row_has(self) -> None:
        """A longer one holds the emitted token besides."""
        rows = [log_row(1.0), log_row(0.6, 0.4), log_row(0.5, 0.3, 0.2)]
        assert scored([reply("sample", "arm", 0, [0, 1, 2], scores=rows)]).best == 2

    def test_rows_are_sorted_by_probability(self) -> None:
        assert one([(4, -2.0), (9, -0.1), (7, -3.0)], 4).ids.tolist() == [[9, 4, 7]]

    @pytest.mark.parametrize("tokens", [[], [3]])
    def test_a_reply_that_ends_with_its_first_token_has_none(self, tokens: list[int]) -> None:
        found = scored([reply("sample", "arm", 0, tokens, scores=[log_row(1.0)] * len(tokens))])
        assert (len(found.token), transformed(found).possible) == (0, 0)

    def test_replies_without_scores_are_left_out(self) -> None:
        assert len(scored([reply("sample", "arm", 0, [1, 2, 3])]).token) == 0


class TestIndices:
    def test_a_chunk_is_a_step(self) -> None:
        assert indices(reply("sample", "arm", 0, [7] * 6, chunks=[1, 3, 1, 1])) == [0, 0, 1, 2, 0, 0]

    def test_chunks_that_hold_another_number_of_tokens_tell_nothing(self) -> None:
        assert indices(reply("sample", "arm", 0, [7] * 3, chunks=[1, 1])) == [-1] * 3

    def test_a_first_chunk_that_holds_more_than_the_prefills_token_tells_nothing(self) -> None:
        assert indices(reply("sample", "arm", 0, [7] * 3, chunks=[2, 1])) == [-1] * 3

    def test_no_tokens_have_no_index(self) -> None:
        assert indices(reply("sample", "arm", 0, [])) == []


class TestRepeats:
    def test_two_tokens_that_stood_so_before(self) -> None:
        """The prompt is 5 6 7, the reply 5 6 7 8 7: its third token stands behind 5 6, its fourth behind 6 7."""
        assert repeats(reply("sample", "arm", 0, [5, 6, 7, 8, 7], prompt_ids=[5, 6, 7])) == [
            False,
            False,
            True,
            True,
            False,
        ]

    def test_a_pair_is_not_its_own_earlier_one(self) -> None:
        assert repeats(reply("sample", "arm", 0, [1, 1, 1, 1], prompt_ids=[])) == [False, False, False, True]

    def test_what_follows_decides_nothing(self) -> None:
        """The split must be known before the token is drawn."""
        one_way, other = (repeats(reply("sample", "arm", 0, [5, 6, last], prompt_ids=[5, 6, 7])) for last in (7, 9))
        assert one_way == other

    def test_no_tokens(self) -> None:
        assert repeats(reply("sample", "arm", 0, [])) == []


class TestLacking:
    def test_as_many_as_top_k_lack_nothing(self) -> None:
        assert lacking([(i, -9.0) for i in range(16)], 16) == ""

    def test_fewer_than_top_k_hide_what_could_be_drawn(self) -> None:
        assert lacking(log_row(0.5, 0.3, 0.1), 16) == "it gives 3 log probabilities of a place where 16 are needed"

    @pytest.mark.parametrize("top_k", [16, None])
    def test_a_whole_vocabulary_lacks_nothing(self, top_k: int | None) -> None:
        assert lacking(log_row(0.5, 0.3, 0.2), top_k) == ""

    def test_a_few_are_enough_where_all_may_be_drawn(self) -> None:
        assert lacking(log_row(0.5, 0.1, 0.1, 0.1, 0.1), None) == ""

    def test_the_emitted_one_alone_is_not(self) -> None:
        assert lacking(log_row(0.5), None) == "it gives 1 log probabilities of a place where 5 are needed"

    def test_logits_are_no_log_probabilities(self) -> None:
        """vLLM under --logprobs-mode raw_logits: fine for a top k, which is normalised, and for nothing else."""
        logits = [(i, 4.0 - i / 10) for i in range(20)]
        assert lacking(logits, 16) == ""
        assert "they add up to more than 1" in lacking(logits, None)
