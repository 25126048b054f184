"""Examples that a person can read: impossible tokens first, then wrong shares."""

import math

import numpy as np
import pytest
from simulated_servers import reply

from toolkit.analysis.audit.examples import SHOWN, telling_examples, unlikely_tokens, wrong_shares
from toolkit.analysis.audit.replies import LOWEST, Ranked, Reply
from toolkit.analysis.audit.transform import scored

WORDS = {1: "cat", 2: " sat", 3: "er", 9: "oids"}
ROW: Ranked = [(1, math.log(0.6)), (2, math.log(0.3)), (3, math.log(0.1))]


def sample(tokens: list[int], rows: list[Ranked], prompt: int = 4) -> Reply:
    return reply("sample", "arm", prompt, tokens, scores=rows, words=WORDS)


def often(share: float, n: int = 200) -> list[Reply]:
    """Behind the token 1 the token 2 comes in this share of n places, where the model gives it 0.3."""
    drawn = np.random.default_rng(1).random(n) < share
    return [sample([1, 2 if is_two else 1], [ROW, ROW]) for is_two in drawn]


class TestUnlikely:
    def test_it_tells_place_token_rank_and_odds(self) -> None:
        row = [*ROW, (9, math.log(0.6) - 8.0)]
        (told,) = unlikely_tokens([sample([1, 2, 9], [ROW, ROW, row])], [], 1.0, 2)
        assert told == (
            "prompt 4, token 3: after 'cat sat' came 'oids' (beyond rank 3 where the top 2 are allowed, "
            "e^8.0 times less likely than 'cat')"
        )

    def test_temperature_is_in_the_odds(self) -> None:
        row = [*ROW, (9, math.log(0.6) - 8.0)]
        assert "e^16.0 times" in unlikely_tokens([sample([1, 9], [ROW, row])], [], 0.5, 2)[0]

    @pytest.mark.parametrize("row", [ROW, [*ROW, (9, LOWEST)]])
    def test_a_token_without_a_chance_has_no_odds(self, row: Ranked) -> None:
        assert unlikely_tokens([sample([1, 9], [ROW, row])], [], 1.0, 2)[0].endswith("are allowed, of no probability)")

    def test_the_deepest_come_first_one_of_a_reply_and_three_at_most(self) -> None:
        replies = [sample([1, 9, 9], [ROW, [*ROW, (9, -8.0 - i)], [*ROW, (9, -9.0 - i)]], prompt=i) for i in range(5)]
        found = unlikely_tokens(replies, [], 1.0, 2)
        assert [told.partition(",")[0] for told in found] == ["prompt 4", "prompt 3", "prompt 2"]
        assert all("token 3" in told for told in found)

    def test_a_token_that_rounding_may_have_brought_is_none(self) -> None:
        row = [*ROW, (9, math.log(0.3) - 0.4)]
        assert unlikely_tokens([sample([1, 9], [ROW, row])], [], 1.0, 2) == []

    def test_a_token_no_less_likely_than_one_of_the_baselines_is_none(self) -> None:
        """Where all tokens may be drawn, the least likely of many is very unlikely."""
        arm, baseline = ([sample([1, 9], [ROW, [*ROW, (9, depth)]])] for depth in (-9.0, -9.5))
        assert unlikely_tokens(arm, baseline, 1.0, None) == []
        assert len(unlikely_tokens(baseline, arm, 1.0, None)) == 1

    def test_where_all_may_be_drawn_the_words_say_nothing_of_a_top_k(self) -> None:
        told = unlikely_tokens([sample([1, 9], [ROW, [*ROW, (9, -40.0)]])], [], 1.0, None)
        assert told[0].endswith("came 'oids' (beyond rank 3, e^39.5 times less likely than 'cat')")

    def test_tokens_within_the_top_k_are_none(self) -> None:
        assert unlikely_tokens([sample([1, 2], [ROW, ROW])], [], 1.0, 2) == []

    def test_the_prefills_token_is_not_looked_at(self) -> None:
        assert unlikely_tokens([sample([9], [[*ROW, (9, -50.0)]])], [], 1.0, 2) == []

    def test_words_that_the_server_did_not_spell_are_question_marks(self) -> None:
        told = unlikely_tokens([sample([7, 8], [ROW, [*ROW, (8, -50.0)]])], [], 1.0, 2)
        assert "after '?' came '?'" in told[0]


class TestWrongShares:
    def shares(self, replies: list[Reply]) -> list[str]:
        return wrong_shares(scored(replies), 1.0, 16, WORDS)

    def test_a_token_that_came_too_often_is_told_with_what_was_to_be_expected(self) -> None:
        told = self.shares(often(0.6))
        assert "came 1" in told[0]
        assert "where the model's probabilities add up to " in told[0]
        assert {"' sat'", "'cat'"} <= {word for line in told for word in ("' sat'", "'cat'") if word in line}

    def test_its_expectation_is_the_sum_of_its_probabilities(self) -> None:
        (told,) = [line for line in self.shares(often(0.6)) if "' sat' came" in line]
        assert told.endswith("add up to 60.0")

    def test_each_token_is_told_once(self) -> None:
        told = self.shares(often(0.6))
        assert len(told) == len({line.partition(" came ")[0].rpartition(" ")[2] for line in told})

    def test_tokens_that_are_listed_because_they_were_emitted_do_not_count(self) -> None:
        """Their probability is known only where they came, so that they would always seem to come too often."""
        best = [(token, math.log(p)) for token, p in ((1, 0.6), (2, 0.3))]
        ended = [sample([1, 1 + i % 2], [best, best]) for i in range(20)]
        came = [sample([1, 9], [best, [*best, (9, -4.0)]]) for _ in range(20)]
        assert not any("'oids'" in told for told in wrong_shares(scored([*ended, *came]), 1.0, None, WORDS))

    def test_rare_tokens_are_not_told(self) -> None:
        assert self.shares(often(0.6, n=4)) == []

    def test_no_tokens_are_no_error(self) -> None:
        assert self.shares([]) == []


class TestTelling:
    def test_impossible_tokens_come_before_wrong_shares(self) -> None:
        impossible = sample([1, 9], [ROW, [*ROW, (9, -50.0)]])
        replies = [*often(0.6), impossible]
        found = telling_examples(replies, [], 1.0, 2)
        assert "came 'oids'" in found[0]
        assert "add up to" in found[1]
        assert len(found) <= SHOWN

    def test_a_fault_without_impossible_tokens_has_examples_too(self) -> None:
        replies = often(0.6)
        assert telling_examples(replies, [], 1.0, None)

    def test_no_replies_have_none(self) -> None:
        assert telling_examples([], [], 1.0, 16) == []
