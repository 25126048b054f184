"""Greedy replies compared: where they part, by how much, and what rounding may do."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_servers import Noise, World, greedy, reply

from toolkit.analysis.audit.greedy import (
    COARSEST,
    ENDED,
    FLOOR,
    Divergence,
    Rounding,
    divergences,
    judge_greedy,
    rounding_scale,
)
from toolkit.analysis.audit.judgement import Findings, judge
from toolkit.analysis.audit.replies import LOWEST, PROMPTS_DIFFER, Ranked, Reply

K = 4
TOKENS = [11, 12, 13, 14, 15, 16]


def top(token: int, gap: float, rival: int) -> Ranked:
    return [(token, -0.1), (rival, -0.1 - gap), (99, -9.0)]


def answer(tokens: list[int], side: str = "arm", concurrency: int = 1, prompt: int = 0, **rest: object) -> Reply:
    """Each token leads by 3 nats, its rival being the token 100 above it."""
    simple = {"top": [top(token, 3.0, token + 100) for token in tokens], "concurrency": concurrency}
    return reply("greedy", side, prompt, tokens, **{**simple, **rest})


def asked(arm: list[int] = TOKENS, baseline: list[int] = TOKENS, **rest: object) -> list[Reply]:
    """Six prompts to both sides at 1 and 8; the first one's answers are these."""
    return [
        answer({"arm": arm, "baseline": baseline}[side] if prompt == 0 else TOKENS, side, n, prompt, **rest)
        for side in ("arm", "baseline")
        for n in (1, 8)
        for prompt in range(6)
    ]


def changed(replies: list[Reply], side: str, **values: object) -> list[Reply]:
    """The first prompt's replies of `side` with other values."""
    hit = [one.side == side and one.prompt == 0 for one in replies]
    return [replace(one, **values) if is_hit else one for one, is_hit in zip(replies, hit, strict=True)]  # type: ignore[arg-type]


def verdict(found: Findings) -> str:
    return judge({"greedy": found}).levels["greedy"].verdict


def one_divergence(arm: Reply, baseline: Reply) -> Divergence:
    (found,) = divergences({0: arm}, {0: baseline})
    return found


class TestDivergence:
    def test_the_same_tokens_have_none(self) -> None:
        assert divergences({0: answer(TOKENS)}, {0: answer(TOKENS)}) == []

    def test_it_is_the_first_place_with_both_tokens_and_the_baselines_gap(self) -> None:
        found = one_divergence(answer([11, 112, 7]), answer([11, 12, 13]))
        assert found == Divergence(0, 1, 112, 12, pytest.approx(3.0))

    def test_a_token_that_the_baseline_did_not_list_has_a_gap_of_at_least_its_last(self) -> None:
        assert one_divergence(answer([11, 55]), answer([11, 12])).gap == pytest.approx(8.9)

    def test_without_log_probabilities_the_gap_is_unknown(self) -> None:
        assert one_divergence(answer([11, 55]), answer([11, 12], top=None)).gap is None

    def test_an_arm_that_breaks_off_at_its_length_has_ended(self) -> None:
        found = one_divergence(answer([11, 12]), answer([11, 12, 13]))
        assert (found.position, found.ours, found.theirs, found.gap) == (2, None, 13, ENDED)

    def test_an_arm_that_runs_over_its_length_has_not(self) -> None:
        found = one_divergence(answer([11, 12, 13]), answer([11, 12]))
        assert (found.ours, found.theirs, found.gap) == (13, None, ENDED)

    def test_an_end_of_text_that_is_no_listed_token_lies_at_least_behind_the_second(self) -> None:
        """It may have been the second best, so a near tie is possible."""
        short = answer([11, 12], finish_reason="stop")
        near = answer([11, 12, 13], top=[*[top(t, 3.0, 1) for t in (11, 12)], top(13, 0.001, 2)])
        assert one_divergence(short, near).gap == pytest.approx(0.001)
        assert one_divergence(near, short).gap == pytest.approx(0.001)

    def test_an_end_of_text_where_the_other_side_was_sure_of_its_token_is_wide(self) -> None:
        assert one_divergence(answer([11, 12], finish_reason="stop"), answer([11, 12, 13])).gap == pytest.approx(3.0)

    def test_an_empty_reply_diverges_at_once(self) -> None:
        assert one_divergence(answer([]), answer([11])).position == 0

    def test_prompts_that_one_side_did_not_answer_are_left_out(self) -> None:
        assert divergences({0: answer([1])}, {1: answer([2])}) == []


class TestRounding:
    @given(st.floats(1e-3, 1.0), st.integers(1, 1000), st.floats(0, 5), st.floats(0, 5))
    def test_a_wider_gap_is_less_likely(self, scale: float, positions: int, gap: float, more: float) -> None:
        assert Rounding(scale).p(gap + more, positions) <= Rounding(scale).p(gap, positions) <= 1

    def test_it_bounds_what_normal_rounding_does(self) -> None:
        """320 places with gaps of all sizes: the widest that rounding turns has p < 0.01 in 1 % of audits at most.

        Of 2,000 audits 39 at most, but once in 100,000 times.
        """
        rng = np.random.default_rng(3)
        alarms = 0
        for _ in range(2000):
            gaps, moved = rng.exponential(1.0, 320), rng.normal(0, 0.1, 320)
            scale = float(np.quantile(np.abs(rng.normal(0, 0.1, 320)), 0.95)) / 3
            turned = gaps[moved > gaps]
            alarms += bool(len(turned)) and Rounding(scale).p(float(turned.max()), 320) < 0.01
        assert alarms <= 39

    def test_the_control_measures_its_scale(self) -> None:
        """The lead of each token moves by a normal amount: 95 % of them by less than 1.96 sd, taken as 3 scales."""
        rng = np.random.default_rng(3)
        shapes = {
            n: {i: answer([1] * 50, top=[top(1, 3.0 + rng.normal(0, 0.1), 2) for _ in range(50)]) for i in range(20)}
            for n in (1, 8)
        }
        assert rounding_scale(shapes) == pytest.approx(1.96 * 0.1 * math.sqrt(2) / 3, rel=0.1)

    def test_a_still_control_leaves_a_floor(self) -> None:
        assert rounding_scale({1: {0: answer(TOKENS)}, 8: {0: answer(TOKENS)}}) == FLOOR

    def test_a_token_of_no_probability_is_no_rival(self) -> None:
        far = [[(11, -0.1), (5, LOWEST)], [(11, -0.1), (5, -9990.0)]]
        shapes = {n: {0: answer([11], top=[row])} for n, row in zip((1, 8), far, strict=True)}
        assert rounding_scale(shapes) == FLOOR

    def test_places_behind_a_divergence_do_not_count(self) -> None:
        ones, others = (
            answer([11, 12, 13]),
            answer([11, 112, 13], top=[top(11, 3.0, 5), top(112, 3.0, 5), top(13, 0.0, 5)]),
        )
        assert rounding_scale({1: {0: ones}, 8: {0: others}}) == FLOOR


class TestJudge:
    def test_the_same_tokens_are_lossless(self) -> None:
        found = judge_greedy(asked(), K)
        assert (verdict(found), found.proved.partition(";")[0]) == ("lossless", "72 tokens compared")

    def test_another_token_where_the_baseline_was_sure_is_lossy(self) -> None:
        assert verdict(judge_greedy(asked(arm=[11, 55, 13]), K)) == "lossy"

    def test_another_token_at_a_near_tie_is_not(self) -> None:
        """vllm#54506: the two best lie within rounding. Told, with its place and gap, and no fault."""
        tie = [top(11, 3.0, 5), top(12, 0.004, 55), top(13, 3.0, 5)]
        found = judge_greedy(changed(asked([11, 55, 13], [11, 12, 13]), "baseline", top=tie), K)
        assert verdict(found) == "lossless"
        assert "1 of 6 prompts diverge, 1 of them at a near tie" in found.proved
        assert "token 2, gap 0.004 nats" in found.examples[0]

    def test_a_gap_that_is_narrow_but_wider_than_rounding_is_lossy(self) -> None:
        tie = [top(11, 3.0, 5), top(12, 0.1, 55), top(13, 3.0, 5)]
        assert verdict(judge_greedy(changed(asked([11, 55, 13], [11, 12, 13]), "baseline", top=tie), K)) == "lossy"

    def test_the_same_gap_under_coarser_rounding_of_the_baseline_is_not(self) -> None:
        """bf16: the baseline's own leads move by 0.1 when its batch changes."""
        tie = [top(11, 3.0, 5), top(12, 0.1, 55), top(13, 3.0, 5)]
        coarse = [
            replace(one, top=[top(t, 3.0 + 0.1 * (one.concurrency == 8), 5) for t in one.token_ids])
            for one in asked([11, 55, 13], [11, 12, 13])
        ]
        assert verdict(judge_greedy(changed(coarse, "baseline", top=tie), K)) == "lossless"

    def test_the_same_gap_under_coarser_rounding_of_the_arm_is_not(self) -> None:
        """The baseline's shapes share one kernel, the arm's verification has another."""
        tie = [top(11, 3.0, 5), top(12, 0.1, 55), top(13, 3.0, 5)]
        coarse = [
            replace(one, top=[top(t, 3.0 + 0.03 * (one.side == "arm"), 5) for t in one.token_ids])
            for one in asked([11, 55, 13], [11, 12, 13])
        ]
        assert verdict(judge_greedy(changed(coarse, "baseline", top=tie), K)) == "lossless"

    def test_a_broken_cache_does_not_excuse_itself(self) -> None:
        """Its log probabilities are off everywhere, by 2 nats; rounding may be `COARSEST` at most."""
        off = [replace(one, top=[top(t, 3.0 + 2 * (one.side == "arm"), 5) for t in one.token_ids]) for one in asked()]
        found = judge_greedy(changed(off, "arm", token_ids=[11, 55], top=[top(11, 5.0, 5), top(55, 5.0, 5)]), K)
        assert verdict(found) == "lossy"
        assert f"rounding moves gaps by {COARSEST:.2g}" in found.tests[0].note

    def test_the_baseline_of_the_nearest_shape_is_compared(self) -> None:
        """At K = 4 a step of one request has the rows of five: nearer to eight than to one."""
        names = [check.name for check in judge_greedy(asked(), K).tests if check.name.startswith("tokens")]
        assert names == ["tokens at concurrency 1, baseline at 8", "tokens at concurrency 8, baseline at 8"]

    def test_without_drafts_each_shape_is_compared_with_itself(self) -> None:
        names = [check.name for check in judge_greedy(asked(), 0).tests if check.name.startswith("tokens")]
        assert names == ["tokens at concurrency 1, baseline at 1", "tokens at concurrency 8, baseline at 8"]

    def test_examples_are_the_widest_gaps_in_words(self) -> None:
        found = judge_greedy(asked(arm=[11, 55, 13]), K)
        assert len(found.examples) == 2
        assert (
            "after ' 11 ' the arm goes on '55 13' (token 55), the baseline '12 13 14 15 16' (token 12)"
            in found.examples[0]
        )

    @pytest.mark.parametrize("side", ["arm", "baseline"])
    def test_one_side_unasked_is_inconclusive(self, side: str) -> None:
        assert verdict(judge_greedy([one for one in asked() if one.side != side], K)) == "inconclusive"

    def test_few_prompts_that_both_answered_are_inconclusive(self) -> None:
        """Each side answered six, three of them the same."""
        mixed = [replace(one, prompt=one.prompt + 3 * (one.side == "arm"), prompt_ids=[]) for one in asked()]
        assert verdict(judge_greedy(mixed, K)) == "inconclusive"

    def test_a_baseline_with_more_prompts_is_compared_where_both_answered(self) -> None:
        more = [answer([5, 6], "baseline", n, prompt=9) for n in (1, 8)]
        assert verdict(judge_greedy([*asked(), *more], K)) == "lossless"

    def test_servers_without_log_probabilities_that_agree_are_lossless(self) -> None:
        assert verdict(judge_greedy(asked(top=None), K)) == "lossless"

    def test_servers_without_log_probabilities_that_differ_are_inconclusive(self) -> None:
        found = judge_greedy(asked(arm=[11, 55, 13], top=None), K)
        assert (verdict(found), "2 replies diverge and the server gives no log probabilities" in found.gap) == (
            "inconclusive",
            True,
        )

    def test_a_divergence_without_a_control_is_inconclusive(self) -> None:
        tie = [top(11, 3.0, 5), top(12, 0.001, 55), top(13, 3.0, 5)]
        replies = changed(asked([11, 55, 13], [11, 12, 13]), "baseline", top=tie)
        alone = [one for one in replies if one.side == "arm" or one.concurrency == 8]
        assert "there is no control" in judge_greedy(alone, K).gap

    def test_other_prompt_tokens_of_the_same_messages_are_another_question(self) -> None:
        """Two chat templates: nothing about speculation can be said, however the tokens differ."""
        other = changed(asked(arm=[55, 56]), "arm", prompt_ids=[4, 5])
        assert judge_greedy(other, K) == Findings(gap=PROMPTS_DIFFER)

    def test_the_control_is_told(self) -> None:
        """The baseline leaves itself on one prompt of six when its batch changes."""
        tie = [top(11, 3.0, 5), top(12, 0.001, 55), *[top(t, 3.0, 5) for t in TOKENS[2:]]]
        left = [
            replace(one, token_ids=[11, 55, *TOKENS[2:]], top=tie)
            if (one.side, one.concurrency, one.prompt) == ("baseline", 1, 0)
            else one
            for one in asked()
        ]
        assert judge_greedy(left, K).proved.endswith("the baseline leaves itself 1 times when its batch changes")


class TestEndings:
    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"finish_reason": "stop"}, "finish reasons: 1 of 6"),
            ({"text": " 11 12 13 14 15 1"}, "texts of the same tokens: 1 of 6"),
        ],
    )
    def test_the_same_tokens_with_another_ending_are_lossy(self, values: dict[str, object], said: str) -> None:
        found = judge_greedy(changed(asked(), "arm", **values), K)
        assert (verdict(found), said in found.examples[0]) == ("lossy", True), found.examples

    def test_other_tokens_may_end_otherwise(self) -> None:
        tie = [top(11, 3.0, 5), top(12, 0.001, 55), top(13, 3.0, 5)]
        replies = changed(asked([11, 55, 13], [11, 12, 13]), "baseline", top=tie, finish_reason="stop")
        assert verdict(judge_greedy(replies, K)) == "lossless"

    def test_a_tail_that_is_missing_is_lossy(self) -> None:
        """Ids shorter than the baseline's, text and reason to finish alike: the last chunk lost its tokens."""
        cut = changed(asked(arm=TOKENS[:-1]), "arm", text="".join(f" {token}" for token in TOKENS))
        assert verdict(judge_greedy(cut, K)) == "lossy"

    def test_going_on_behind_the_end_of_text_is_lossy(self) -> None:
        """The end is token 16, which both sides list; the arm's step went on behind it."""
        over = changed(asked(arm=[*TOKENS, 17, 18]), "baseline", finish_reason="stop")
        assert verdict(judge_greedy(over, K)) == "lossy"


class TestStopStrings:
    def stopped(self, arm: list[int], text: str, finish_reason: str = "stop") -> list[Reply]:
        """One prompt under a stop string; the baseline ends before it at its third token."""
        rest = {"stop": "13", "concurrency": 8}
        return [
            *asked(),
            reply("stop", "arm", 2, arm, text=text, finish_reason=finish_reason, **rest),
            reply("stop", "baseline", 2, TOKENS[:3], text=" 11 12 ", finish_reason="stop", **rest),
        ]

    def test_the_same_ending_is_lossless(self) -> None:
        assert verdict(judge_greedy(self.stopped(TOKENS[:3], " 11 12 "), K)) == "lossless"

    def test_tokens_of_the_same_step_behind_the_stop_are_no_fault_where_the_text_is_the_same(self) -> None:
        assert verdict(judge_greedy(self.stopped(TOKENS[:5], " 11 12 "), K)) == "lossless"

    def test_a_text_that_goes_on_is_lossy_and_says_where(self) -> None:
        found = judge_greedy(self.stopped(TOKENS[:5], " 11 12 13 14 15", "length"), K)
        assert (verdict(found), "like prompt 2 at '13'" in found.examples[0]) == ("lossy", True)

    def test_another_reason_to_finish_is_lossy(self) -> None:
        assert verdict(judge_greedy(self.stopped(TOKENS[:3], " 11 12 ", "length"), K)) == "lossy"

    def test_replies_that_part_before_the_stop_are_left_to_the_tokens(self) -> None:
        found = judge_greedy(self.stopped([11, 55, 13, 14], " 11 55 13 14", "length"), K)
        assert not any(check.name == "stop strings" for check in found.tests)

    def test_prompts_missing_on_one_side_are_left_out(self) -> None:
        found = judge_greedy(self.stopped(TOKENS[:3], " 11 12 ")[:-1], K)
        assert not any(check.name == "stop strings" for check in found.tests)


@pytest.mark.parametrize("noise", [Noise(), Noise(0.1, 0.1, 0.1), Noise(0.1, 0.1, 0.1, baseline_steady=True)])
def test_a_sound_server_is_lossless_however_it_rounds(noise: Noise) -> None:
    """Ten simulated ones; at the rate that is allowed, one alarm in ten servers comes once in ten times: none here."""
    world = World(7)
    for seed in range(10):
        assert verdict(judge_greedy(greedy(world, np.random.default_rng(seed), noise), K)) == "lossless"
