"""Each number of a comparison from known counts, what is said beside it, and what is unavailable with its reason."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.caveats import REUSED
from toolkit.analysis.compare import Comparison, compare
from toolkit.analysis.compare.comparison import Row
from toolkit.analysis.compare.output import after, as_json, before, headline
from toolkit.analysis.compare.quantities import NOTHING_DRAFTED, NOTHING_KEPT, Quantities, quantities
from toolkit.analysis.records import CellKey, CounterReading, RequestRecord
from toolkit.analysis.run import Run, WorkloadInfo

MakeContender = Callable[..., Run]
Fields = Mapping[str, Any]
K = 4
CELL = CellKey(arm="a", side="arm", workload="w", concurrency=4, round=1)
FULL = st.lists(st.lists(st.integers(0, K), min_size=1, max_size=8), min_size=1, max_size=6)  # kept, a list a prompt
PARTIAL = st.lists(
    st.lists(st.integers(1, K).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
)


def uneven(i: int) -> Fields:
    """Odd prompts keep one whole draft, even ones nothing of nine: 8 of each are 80 steps, 32 of 320 tokens kept."""
    if i % 2:
        return {"steps": 1, "drafted": 4, "accepted": 4, "completion_tokens": 6, "passes": (2, 2)}
    return {"steps": 9, "drafted": 36, "accepted": 0, "completion_tokens": 10, "passes": (10, 10)}


def nothing_kept(_: int) -> Fields:
    return {"accepted": 0, "completion_tokens": 7, "passes": (7, 7)}


def nothing_drafted(_: int) -> Fields:
    return {"steps": 0, "drafted": 0, "accepted": 0, "passes": (20, 20)}


def stepwise(_: int) -> Fields:
    return {
        **{"steps": 3, "drafted": 10, "accepted": 4, "completion_tokens": 8, "passes": (4, 4)},
        **{"per_step_drafted": [4, 2, 4], "per_step_accepted": [2, 2, 0]},
    }


def record(steps: Sequence[tuple[int, int]], histogram: bool) -> RequestRecord:
    kept = Counter(accepted for _, accepted in steps)
    each = {"per_step_drafted": [d for d, _ in steps], "per_step_accepted": [a for _, a in steps]}
    told: Fields = {"accepted_histogram": [kept[i] for i in range(max(kept) + 1)]} if histogram else each
    return RequestRecord(
        **{"cell": CELL, "attempt": 1, "served_by": "a", "warmup": False, "category": "code", "prompt": 0},
        **{"prompt_hash": "0", "sent": 0.0, "ended": 1.0, "steps": len(steps)},
        drafted=sum(drafted for drafted, _ in steps),
        accepted=sum(accepted for _, accepted in steps),
        **told,
    )


def both(prompts: Sequence[Sequence[tuple[int, int]]]) -> tuple[Quantities, Quantities]:
    """Of the same steps: from per-step data, and from histograms."""
    found = [quantities([[record(steps, histogram)] for steps in prompts], "sglang", K) for histogram in (False, True)]
    return found[0], found[1]


def rows(*runs: Run, **options: Any) -> list[Row]:
    (level,) = compare(list(runs), **options).levels
    return level.rows


def told(found: Comparison) -> list[str]:
    return list(after(found, found.levels[0]))


class TestRatios:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("acceptance_length", 1 + 32 / 80), ("tokens_per_pass", 128 / 96), ("draft_acceptance_rate", 32 / 320)],
    )
    def test_each_is_of_summed_counts(self, contender: MakeContender, name: str, value: float) -> None:
        row, _ = rows(contender("a", uneven), contender("b"))
        assert row.estimates[name].value == pytest.approx(value)

    def test_the_counts_are_kept_beside_them(self, contender: MakeContender) -> None:
        counts = rows(contender("a", uneven), contender("b"))[0].counts
        assert (counts.steps, counts.drafted, counts.accepted) == (80, 320, 32)
        assert (counts.completion_tokens, counts.passes) == (128, (96, 96))

    def test_passes_without_a_draft_count_in_tokens_per_pass_only(self, contender: MakeContender) -> None:
        row, _ = rows(contender("a", lambda _: {"passes": (10, 10)}), contender("b"))
        assert (row.estimates["tokens_per_pass"].value, row.estimates["acceptance_length"].value) == (2.0, 3.0)

    def test_a_difference_is_the_first_less_the_second(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a", uneven), contender("b")]).levels
        found = {one.quantity: one for one in level.differences if one.position is None}
        rate = found["draft_acceptance_rate"].estimate
        assert rate is not None
        assert rate.value == pytest.approx(0.1 - 0.5)
        assert rate.word == "less"

    def test_a_contender_against_its_twin_shows_no_difference(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a", uneven), contender("b", uneven)]).levels
        assert {one.word for one in level.differences} == {"no difference seen"}

    def test_every_pair_of_three_is_told_apart(self, contender: MakeContender) -> None:
        (level,) = compare([contender(name) for name in "abc"]).levels
        assert dict.fromkeys((one.one, one.other) for one in level.differences) == dict.fromkeys(
            [("a", "b"), ("a", "c"), ("b", "c")]
        )

    def test_a_prompt_served_twice_is_one_prompt(self, contender: MakeContender) -> None:
        runs = [contender(name, lambda i: {"prompt_hash": str(i // 2)}) for name in ("a", "b")]
        row, _ = rows(*runs)
        assert (row.counts.requests, row.estimates["draft_acceptance_rate"].prompts, row.dropped) == (16, 8, 0)

    def test_one_arm_of_two_runs_is_named_with_its_folder(self, contender: MakeContender) -> None:
        found = rows(contender("a", folder="one"), contender("a", folder="other"))
        assert [row.name for row in found] == ["a (one)", "a (other)"]


class TestPromptsOfOneContender:
    @staticmethod
    def runs(contender: MakeContender) -> list[Run]:
        """Three prompts of b are its own, and it kept whatever it drafted there."""
        odd = {"prompt_hash": "own", "accepted": 24}
        return [contender("a"), contender("b", lambda i: {**odd, "prompt_hash": f"own {i}"} if i > 12 else {})]

    def test_they_are_dropped_of_both_and_counted(self, contender: MakeContender) -> None:
        assert [(row.dropped, row.counts.requests) for row in rows(*self.runs(contender))] == [(3, 13), (3, 13)]

    def test_they_are_in_no_number(self, contender: MakeContender) -> None:
        assert rows(*self.runs(contender))[1].estimates["draft_acceptance_rate"].value == 0.5

    def test_it_is_said(self, contender: MakeContender) -> None:
        said = told(compare(self.runs(contender)))
        assert "b: 3 prompts dropped, not every contender answered them." in said

    def test_a_prompt_that_failed_for_one_is_dropped_of_both(self, contender: MakeContender) -> None:
        found = rows(contender("a", lambda i: {} if i else {"error": "no answer"}), contender("b"))
        assert [(row.dropped, row.counts.requests) for row in found] == [(1, 15), (1, 15)]

    def test_where_prompts_differ_only_the_failed_are_dropped(self, contender: MakeContender) -> None:
        ours = contender("a", lambda i: {"prompt_hash": f"own {i}", "error": None if i else "no answer"})
        found = rows(ours, contender("b"), allow=["prompts"])
        assert [(row.dropped, row.counts.requests) for row in found] == [(1, 15), (0, 16)]


class TestByPosition:
    def test_it_is_of_all_drafts_and_of_those_that_came_so_far(self, contender: MakeContender) -> None:
        row, _ = rows(contender("a", stepwise), contender("b"))
        found = [
            (one.position, one.unconditional and one.unconditional.value, one.given and one.given.value)
            for one in row.positions
        ]
        assert found == [
            (1, pytest.approx(2 / 3), pytest.approx(2 / 3)),
            (2, pytest.approx(2 / 3), 1),
            (3, 0, 0),
            (4, 0, None),
        ]

    @given(FULL)
    def test_histograms_of_full_drafts_say_what_steps_say(self, prompts: list[list[int]]) -> None:
        steps, histograms = both([[(K, kept) for kept in one] for one in prompts])
        assert [one.position for one in histograms.positions] == [one.position for one in steps.positions]
        for one, other in zip(steps.positions, histograms.positions, strict=True):
            assert other.given is not None
            assert one.given is not None
            assert (one.unconditional.value, one.given.value) == (other.unconditional.value, other.given.value)

    @given(PARTIAL)
    def test_histograms_of_any_drafts_say_how_many_kept_each_place(self, prompts: list[list[tuple[int, int]]]) -> None:
        steps, histograms = both(prompts)
        kept = [one.unconditional.value for one in steps.positions]
        found = [one.unconditional.value for one in histograms.positions]
        assert found == kept[: len(found)]
        assert not any(kept[len(found) :])

    def test_how_many_came_so_far_is_not_guessed_from_shorter_drafts(self) -> None:
        _, histograms = both([[(K, 2), (2, 2)]])
        assert [one.given for one in histograms.positions] == [None, None]

    def test_nor_where_one_prompt_alone_had_shorter_drafts(self) -> None:
        _, histograms = both([[(K, 2)], [(2, 0)]])
        assert [one.given for one in histograms.positions] == [None] * K

    def test_one_prompt_without_either_makes_it_unavailable(self, contender: MakeContender) -> None:
        found = compare([contender("a", lambda i: stepwise(i) if i else {}), contender("b", stepwise)])
        assert found.levels[0].rows[0].positions == []
        assert any(text.startswith("a: acceptance by position unavailable, 1 of 16 answers") for text in told(found))

    def test_of_drafts_of_which_nothing_was_kept_no_position_is_told(self) -> None:
        _, histograms = both([[(2, 0), (3, 0)]])
        assert (histograms.positions, histograms.no_positions) == ([], NOTHING_KEPT)

    def test_where_nothing_was_drafted_that_is_the_reason(self, contender: MakeContender) -> None:
        assert rows(contender("a", nothing_drafted), contender("b"))[0].counts.no_positions == NOTHING_DRAFTED

    def test_a_difference_is_told_at_each_position_of_both(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a", stepwise), contender("b", stepwise)]).levels
        found = [(one.position, one.quantity, one.word) for one in level.differences if one.position in (1, 4)]
        assert found == [
            (1, "unconditional", "no difference seen"),
            (1, "given", "no difference seen"),
            (4, "unconditional", "no difference seen"),
            (4, "given", "unavailable"),
        ]


class TestOwnFigures:
    @staticmethod
    def sentence(
        contender: MakeContender, own: Callable[[int], dict[str, float]], each: Callable[[int], Fields]
    ) -> str:
        found = compare([contender("a", lambda i: {**each(i), "own": own(i)}), contender("b")])
        (said,) = [text for text in told(found) if "the engine's own" in text]
        return said

    def test_the_mean_of_requests_stands_beside_ours_with_the_reason(self, contender: MakeContender) -> None:
        said = self.sentence(contender, lambda i: {"mean_acceptance_length": 5.0 if i % 2 else 1.0}, uneven)
        assert said.startswith(
            "a: the engine's own mean_acceptance_length is 3.000, the mean of 16 requests (1 + accepted / steps, of "
            "each request; 1.0 where nothing was drafted, from summed counts 1.400); our acceptance length is 1.400. "
            "The mean over requests gives a request of one step the weight of one of thirty; ours divides the sums"
        )

    def test_where_they_agree_there_is_no_reason(self, contender: MakeContender) -> None:
        said = self.sentence(contender, lambda _: {"draft_acceptance_rate": 0.5}, lambda _: {})
        assert said.endswith("our draft acceptance rate is 0.500.")

    def test_sglangs_length_holds_the_token_of_the_prefill(self, contender: MakeContender) -> None:
        said = self.sentence(contender, lambda _: {"spec_accept_length": 20 / 6}, lambda _: {})
        assert "is 3.333" in said
        assert "from summed counts 3.333" in said
        assert "our acceptance length is 3.000. The engine's holds the prefill's token" in said

    @pytest.mark.parametrize(
        "own",
        [
            {"mean_acceptance_length": 3.0},
            {"draft_acceptance_rate": 0.5},
            {"spec_accept_length": 20 / 6},
            {"spec_accept_rate": 0.5},
        ],
    )
    def test_a_figure_of_its_own_counts_contradicts_nothing(
        self, contender: MakeContender, own: dict[str, float]
    ) -> None:
        assert compare([contender("a", lambda _: {"own": own}), contender("b")]).disagreements == []

    @pytest.mark.parametrize(("value", "why"), [(0.5, type(None)), (0.4, str)])
    def test_json_has_a_reason_where_they_differ_only(self, contender: MakeContender, value: float, why: type) -> None:
        found = compare([contender("a", lambda _: {"own": {"spec_accept_rate": value}}), contender("b")])
        assert isinstance(as_json(found)["levels"][0]["contenders"][0]["own"][0]["why"], why)

    def test_sglangs_rate_of_requests_of_one_length_is_ours(self, contender: MakeContender) -> None:
        said = self.sentence(contender, lambda _: {"spec_accept_rate": 0.5}, lambda _: {})
        assert said.endswith("our draft acceptance rate is 0.500.")

    def test_of_an_unknown_figure_no_formula_is_claimed(self, contender: MakeContender) -> None:
        said = self.sentence(contender, lambda _: {"luck": 0.5}, lambda _: {})
        assert said == "a: the engine's own luck is 0.500, the mean of 16 requests; we do not know its formula."

    def test_ours_may_be_unavailable(self, contender: MakeContender) -> None:
        said = self.sentence(contender, lambda _: {"draft_acceptance_rate": 0.5}, lambda _: {"drafted": None})
        assert "our draft acceptance rate is unavailable." in said


class TestUnavailable:
    @pytest.mark.parametrize(
        ("each", "name", "reason"),
        [
            ({"steps": None}, "acceptance_length", "no answer tells it: start vLLM (after 0.28) with "),
            ({"drafted": None}, "draft_acceptance_rate", "no answer tells it: start vLLM (after 0.28) with "),
            ({"passes": None}, "tokens_per_pass", "no answer tells it: start vLLM (after 0.28) with "),
            ({"passes": (5, 10)}, "tokens_per_pass", "only bounds are known, 2.00 to 4.00"),
            (nothing_drafted(0), "acceptance_length", NOTHING_DRAFTED),
            (nothing_drafted(0), "draft_acceptance_rate", NOTHING_DRAFTED),
        ],
    )
    def test_it_has_a_reason_and_no_number(
        self, contender: MakeContender, each: Fields, name: str, reason: str
    ) -> None:
        found = as_json(compare([contender("a", lambda _: each), contender("b")]))["levels"][0]["contenders"][0][name]
        assert (found["value"], found["low"], found["high"]) == (None, None, None)
        assert found["reason"].startswith(reason)

    def test_one_answer_that_does_not_tell_is_enough(self, contender: MakeContender) -> None:
        row, _ = rows(contender("a", lambda i: {} if i else {"accepted": None}), contender("b"))
        assert row.reasons["draft_acceptance_rate"].startswith("1 of 16 answers do not tell it: ")

    @pytest.mark.parametrize(
        ("engine", "hint"),
        [
            ("llamacpp", "llama-server tells running totals"),
            ("sglang", "our client asks SGLang for it"),
            ("other", "this endpoint does not report its speculation"),
        ],
    )
    def test_what_would_make_it_known_is_of_its_engine(self, contender: MakeContender, engine: str, hint: str) -> None:
        row, _ = rows(contender("a", lambda _: {"steps": None}, arm={"engine": engine}), contender("b"))
        assert hint in row.reasons["acceptance_length"]

    def test_the_difference_is_unavailable_and_says_of_whom(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a", lambda _: {"steps": None}), contender("b")]).levels
        length = next(one for one in level.differences if one.quantity == "acceptance_length")
        assert (length.estimate, length.word) == (None, "unavailable")
        assert length.reason.startswith("a: no answer tells it")

    def test_it_is_said_with_its_reason(self, contender: MakeContender) -> None:
        said = told(compare([contender("a", lambda _: {"passes": None}), contender("b")]))
        assert any(text.startswith("a: tokens per pass unavailable, no answer tells it: ") for text in said)

    def test_the_headline_does_not_hide_it(self, contender: MakeContender) -> None:
        (level,) = compare([contender("a", lambda _: {"passes": None}), contender("b")]).levels
        assert headline(level) == ["a: tokens per pass unavailable against b"]


class TestCounters:
    """A server whose answers do not tell, and whose counters do."""

    @staticmethod
    def compared(contender: MakeContender, accepted: float) -> Comparison:
        zero = CounterReading(at=0.0, drafts=0, drafted=0, accepted=0)
        counters = [zero, CounterReading(at=9.0, drafts=100, drafted=400, accepted=accepted)]
        silent = {"steps": None, "drafted": None, "accepted": None}
        return compare([contender("a", lambda _: silent, cell={"counters": counters}), contender("b")])

    def test_they_tell_the_ratios_of_all_it_served_and_nothing_else(self, contender: MakeContender) -> None:
        row = self.compared(contender, 100).levels[0].rows[0]
        assert row.aggregate == {"acceptance_length": 2.0, "draft_acceptance_rate": 0.25}

    def test_they_are_not_asked_where_answers_tell(self, contender: MakeContender) -> None:
        assert [row.aggregate for row in self.compared(contender, 100).levels[0].rows][1] == {}

    def test_they_are_no_number_of_the_common_prompts(self, contender: MakeContender) -> None:
        assert list(self.compared(contender, 100).levels[0].rows[0].estimates) == ["tokens_per_pass"]

    def test_it_is_said_that_they_hold_more(self, contender: MakeContender) -> None:
        assert (
            "a: by its server's counters, warm-up and other prompts included: acceptance length 2.000, draft "
            "acceptance rate 0.250." in told(self.compared(contender, 100))
        )

    def test_a_draft_that_does_nothing_is_seen_by_them_too(self, contender: MakeContender) -> None:
        assert self.compared(contender, 5).idle == [
            "a: this draft does nothing here, its acceptance length is 1.05 at best"
        ]


class TestSaidFirst:
    def test_a_draft_of_which_nothing_is_kept_does_nothing(self, contender: MakeContender) -> None:
        assert compare([contender("a", nothing_kept), contender("b")]).idle == [
            "a: this draft does nothing here, its acceptance length is 1.00 at best"
        ]

    def test_nothing_drafted_does_nothing(self, contender: MakeContender) -> None:
        assert compare([contender("a"), contender("b", nothing_drafted)]).idle == [
            "b: this draft does nothing here, not one token was drafted"
        ]

    def test_it_comes_before_what_was_allowed_and_before_doubts(self, contender: MakeContender) -> None:
        other = contender("b", arm={"num_speculative_tokens": 8, "precision": "bfloat16"})
        said = before(compare([contender("a", nothing_kept), other], allow=["depth"]))
        starts = ("a: this draft does nothing", "allowed: the draft lengths differ", "the precisions differ: ")
        assert [text.startswith(start) for text, start in zip(said, starts, strict=False)] == [True] * 3

    def test_a_draft_that_is_kept_is_not_called_idle(self, contender: MakeContender) -> None:
        assert compare([contender("a"), contender("b")]).idle == []


class TestDoubts:
    @staticmethod
    def any_caveat(found: Comparison, text: str) -> bool:
        return any(text in caveat for caveat in found.caveats)

    def test_sglangs_ngram_fills_its_drafts(self, contender: MakeContender) -> None:
        found = compare([contender("a"), contender("b", arm={"engine": "sglang", "method": "ngram"})])
        assert self.any_caveat(found, "b: SGLang's n-gram fills every draft up to K, found or not")

    @pytest.mark.parametrize("arm", [{"engine": "sglang", "method": "eagle3"}, {"engine": "vllm", "method": "ngram"}])
    def test_no_other_draft_is_said_to_be_filled(self, contender: MakeContender, arm: Fields) -> None:
        found = compare([contender("a"), contender("b", arm=arm)])
        assert not self.any_caveat(found, "fills every draft")

    def test_precisions_that_differ(self, contender: MakeContender) -> None:
        found = compare([contender("a"), contender("b", arm={"precision": "bfloat16"})])
        assert "the precisions differ: a float32, b bfloat16; so may the answers" in found.caveats

    def test_prompts_that_were_reused(self, contender: MakeContender) -> None:
        of = WorkloadInfo(name="copy-code", digest="d" * 64, seed=0, size=None, reuse=True)
        run = contender("b")
        info = run.info.model_copy(update={"workload": of})
        (run.folder / "run.json").write_text(info.model_dump_json(by_alias=True))
        assert REUSED in compare([contender("a"), Run(run.folder)]).caveats


class TestAnswers:
    @staticmethod
    def answering(contender: MakeContender, name: str, differ: int) -> Run:
        return contender(name, lambda i: {"answer_ids_hash": name if i < differ else str(i)})

    def test_answers_that_differ_are_counted_and_said(self, contender: MakeContender) -> None:
        found = compare([self.answering(contender, "a", 4), self.answering(contender, "b", 4)])
        assert (found.levels[0].answers[0].same, found.levels[0].answers[0].prompts) == (12, 16)
        assert found.caveats == [
            "at 4: a and b gave the same answer on 12 of 16 prompts; on the others acceptance is of different texts"
        ]

    def test_of_answers_that_are_alike_nothing_is_said(self, contender: MakeContender) -> None:
        assert compare([self.answering(contender, name, 0) for name in ("a", "b")]).caveats == []

    def test_without_token_ids_it_is_not_known(self, contender: MakeContender) -> None:
        other = contender("b", lambda i: {"completion_tokens": 19 if i < 2 else 20})
        found = compare([self.answering(contender, "a", 0), other])
        assert found.levels[0].answers[0].same is None
        assert found.caveats == [
            "b did not tell the token ids of every answer: whether the answers are those of the others is not known"
        ]
        assert (
            found.levels[0]
            .answers[0]
            .reason.endswith("b did not tell the token ids of every answer; 2 were of other lengths")
        )


class TestContradictions:
    @pytest.mark.parametrize(
        ("each", "said"),
        [
            ({"accepted": 25}, "its counts cannot be true: 25 accepted draft tokens of 24 drafted"),
            ({"drafted": 25}, "its counts cannot be true: 25 draft tokens in 6 steps, at K = 4"),
            ({"completion_tokens": 14}, "6 steps and 12 accepted draft tokens in an answer of 14 tokens"),
            (
                {"own": {"draft_acceptance_rate": 0.9}},
                "the engine says draft_acceptance_rate 0.90 where its own counts",
            ),
        ],
    )
    def test_counts_that_cannot_be_true_are_said(self, contender: MakeContender, each: Fields, said: str) -> None:
        (found,) = compare([contender("a", lambda _: each), contender("b")]).disagreements
        assert found.startswith("a: ")
        assert said in found

    def test_counts_that_cannot_be_true_are_said_before_all_else(self, contender: MakeContender) -> None:
        found = compare([contender("a", lambda _: {"accepted": 999}), contender("b")])
        assert before(found)[0] == found.disagreements[0].removesuffix(".")

    def test_tokens_that_no_pass_of_a_draft_model_made_are_said(self, contender: MakeContender) -> None:
        fewer = {"steps": 4, "drafted": 16, "accepted": 8}
        (found,) = compare([contender("a", lambda _: fewer, arm={"method": "eagle3"}), contender("b")]).disagreements
        assert found.startswith(
            "a: its answers have 320 tokens, and its counts account for 208: eagle3 drafts at every "
        )

    def test_a_lookup_may_make_tokens_without_a_draft(self, contender: MakeContender) -> None:
        fewer = {"steps": 4, "drafted": 16, "accepted": 8}
        assert compare([contender("a", lambda _: fewer), contender("b")]).disagreements == []

    def test_a_last_step_that_was_cut_off_is_none(self, contender: MakeContender) -> None:
        assert compare([contender("a", lambda _: {"completion_tokens": 16}), contender("b")]).disagreements == []
