"""What SGLang reports: recorded responses and a page, counts of a request, its target passes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.stream import Answer, EventStream
from toolkit.engines.contract import Counters, SpecCounts
from toolkit.engines.sglang import SGLang
from toolkit.engines.vllm import VLLM

ENGINE = SGLang()
RECORDED = Path(__file__).parents[2] / "data" / "sglang"

# Of a merged pull request (sglang#33518): an answer of 106 tokens, draft of 5 tokens.
DETAILS = {
    "spec_accept_rate": 0.2930232558139535,
    "spec_accept_length": 2.4651162790697674,
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_verify_ct": 43,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}
OWN = {"spec_accept_rate": 0.2930232558139535, "spec_accept_length": 2.4651162790697674}


def chunk(details: Any) -> dict[str, Any]:
    return {"choices": [], "sglext": {"spec_tokens_details": details}}


class TestCounts:
    def test_of_the_chunk_at_the_end(self) -> None:
        assert ENGINE.spec_counts(chunk(DETAILS)) == SpecCounts(
            steps=43,
            drafted=215,
            accepted=63,
            num_speculative_tokens=5,
            accepted_histogram=[11, 14, 11, 4, 0, 3],
            own=OWN,
        )

    def test_of_an_answer_that_was_not_streamed(self) -> None:
        whole = {"choices": [{"message": {"content": "text"}, "meta_info": DETAILS}]}
        assert ENGINE.spec_counts(whole) == ENGINE.spec_counts(chunk(DETAILS))

    def test_a_histogram_that_does_not_sum_to_the_steps_is_not_taken(self) -> None:
        counts = ENGINE.spec_counts(chunk({**DETAILS, "spec_correct_drafts_histogram": [11, 14]}))
        assert counts is not None
        assert counts.accepted_histogram is None

    def test_drafts_of_several_lengths_have_no_k(self) -> None:
        counts = ENGINE.spec_counts(chunk({**DETAILS, "spec_num_proposed_drafts": 214}))
        assert counts is not None
        assert counts.num_speculative_tokens is None

    @pytest.mark.parametrize("absent", ["spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts"])
    def test_a_count_that_is_missing_makes_all_unavailable(self, absent: str) -> None:
        assert ENGINE.spec_counts(chunk({**DETAILS, absent: None})) is None

    @pytest.mark.parametrize("details", [None, {}, [DETAILS, DETAILS], "many", {**DETAILS, "spec_verify_ct": 0}])
    def test_what_tells_nothing_is_unavailable_not_zero(self, details: Any) -> None:
        assert ENGINE.spec_counts(chunk(details)) is None

    def test_a_baselines_last_chunk_has_ids_and_no_counts(self) -> None:
        assert ENGINE.spec_counts({"choices": [], "sglext": {"input_ids": [1], "output_ids": [[2]]}}) is None

    def test_vllms_field_names_are_unavailable_not_zero(self) -> None:
        """vime#84: an engine's response read with another's names."""
        vllm = {"num_spec_steps": 7, "num_draft_tokens": 28, "num_accepted_draft_tokens": 18}
        assert ENGINE.spec_counts(chunk(vllm)) is None
        assert ENGINE.spec_counts({"choices": [], "metrics": {"speculative_decoding": vllm}}) is None
        assert VLLM().spec_counts(chunk(DETAILS)) is None


class TestStream:
    def test_ids_and_counts_and_tokens_so_far_are_asked_for(self) -> None:
        assert ENGINE.request_fields() == {
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_spec_tokens_details": True,
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
        }

    @pytest.mark.parametrize("one", [{"choices": [{"delta": {"content": "two words"}}]}, chunk(DETAILS)])
    def test_a_chunk_does_not_say_by_itself_how_many_tokens_it_holds(self, one: dict[str, Any]) -> None:
        assert ENGINE.chunk_tokens(one) is None

    def test_the_ids_of_prompt_and_answer_come_together(self) -> None:
        last = {"choices": [], "sglext": {"input_ids": [5, 6], "output_ids": [[7, 8, 9]]}}
        assert (ENGINE.prompt_ids(last), ENGINE.answer_ids(last)) == ([5, 6], [7, 8, 9])

    def test_other_chunks_have_none(self) -> None:
        one = {"choices": [{"delta": {"content": "a"}}]}
        assert (ENGINE.prompt_ids(one), ENGINE.answer_ids(one)) == (None, None)

    def test_several_answers_have_no_ids_of_one(self) -> None:
        assert ENGINE.answer_ids({"choices": [], "sglext": {"output_ids": [[1], [2]]}}) is None


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], int]:
    """Drafts kept per verified pass, and how many tokens of the last pass a stop cuts off."""
    k = draw(st.integers(1, 6))
    kept = draw(st.lists(st.integers(0, k), min_size=1, max_size=30))
    return kept, draw(st.integers(0, kept[-1]))


def counted(kept: list[int]) -> SpecCounts:
    histogram = [kept.count(i) for i in range(max(kept) + 1)]
    return SpecCounts(len(kept), 6 * len(kept), sum(kept), 6, accepted_histogram=histogram)


class TestPasses:
    @given(requests())
    def test_the_prefill_and_each_verified_pass(self, request_: tuple[list[int], int]) -> None:
        kept, cut = request_
        tokens = 1 + sum(one + 1 for one in kept) - cut
        assert ENGINE.passes(tokens, [], counted(kept)) == (1 + len(kept), 1 + len(kept))

    @given(requests(), st.integers(1, 3))
    def test_bounds_hold_the_truth_of_a_retracted_request(self, request_: tuple[list[int], int], times: int) -> None:
        """Prefilled again, it gets one more token without a verified pass."""
        kept, cut = request_
        tokens = 1 + times + sum(one + 1 for one in kept) - cut
        bounds = ENGINE.passes(tokens, [], counted(kept))
        assert bounds is not None
        truth, low_if_unseen = 1 + times + len(kept), 1 + len(kept)
        assert bounds[0] <= truth <= bounds[1] or (cut >= times and bounds == (low_if_unseen, low_if_unseen))

    def test_of_the_public_answer(self) -> None:
        counts = ENGINE.spec_counts(chunk(DETAILS))
        assert counts is not None
        assert ENGINE.passes(106, [], counts) == (44, 44)

    def test_counts_that_leave_tokens_unexplained_tell_none(self) -> None:
        """sglang#13754: its log says 4.00 tokens a pass, its counts that not one draft token was kept."""
        assert ENGINE.passes(101, [], SpecCounts(25, 100, 0, 4, accepted_histogram=[25])) is None

    def test_more_kept_than_the_answer_holds_tells_none(self) -> None:
        assert ENGINE.passes(10, [], SpecCounts(5, 20, 15, 4, accepted_histogram=[1, 1, 0, 2, 1])) is None

    def test_counts_of_tokens_alone_tell_none(self) -> None:
        assert ENGINE.passes(10, [], SpecCounts(None, 20, 5, 4)) is None


# Names and labels as metrics_collector.py 0.5.23 writes them, two ranks, in our numbers.
PAGE = """
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 300.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 16.0
# TYPE sglang:cuda_graph_passes_total counter
sglang:cuda_graph_passes_total{mode="decode_none",model_name="m",tp_rank="0"} 120.0
sglang:cuda_graph_passes_total{mode="prefill_none",model_name="m",tp_rank="0"} 9.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m"} 120.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 40960.0
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{model_name="m",tp_rank="0"} 2.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",model_name="m"} 64.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 6.0
"""


class TestCounters:
    def test_series_are_summed_over_their_labels(self) -> None:
        assert ENGINE.counters(PAGE) == Counters(
            iterations=129.0,
            generation_tokens=316.0,
            preemptions=2.0,
            drafts=120.0,
            cached_tokens=70.0,
            running=4.0,
            waiting=1.0,
            kv_tokens=40960.0,
        )

    def test_a_gauge_of_the_last_log_line_is_not_taken_for_acceptance(self) -> None:
        counters = ENGINE.counters(PAGE)
        assert (counters.accepted, counters.drafted, counters.accepted_per_position) == (None, None, [])

    def test_a_page_without_its_series_tells_nothing(self) -> None:
        assert ENGINE.counters("# TYPE other counter\nother_total 1.0\n") == Counters()

    def test_what_is_no_page_is_refused(self) -> None:
        with pytest.raises(ValueError):
            ENGINE.counters("<html>")

    def test_a_page_before_the_first_request_ended_shows_no_retraction(self) -> None:
        page = "# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens 40960.0\n"
        assert ENGINE.counters(page) == Counters(preemptions=0.0, cached_tokens=0.0, kv_tokens=40960.0)

    @pytest.mark.parametrize(
        ("gone", "speculates"),
        [("", True), ("sglang:spec_verify_calls_total", False), ("sglang:generation_tokens_total", None)],
    )
    def test_whether_it_speculates_is_known_once_a_request_has_ended(self, gone: str, speculates: bool | None) -> None:
        """A health check alone makes a prefill that the page counts."""
        page = "\n".join(line for line in PAGE.splitlines() if not gone or gone not in line) + "\n"
        assert ENGINE.counters(page).speculates is speculates


class TestRecorded:
    """SGLang 0.5.23 itself, n-gram with K = 4 on the lab model: see tests/data/sglang/README.md."""

    @pytest.fixture
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (RECORDED / "stream.jsonl").read_text(encoding="utf-8").splitlines()]

    @pytest.fixture
    def ending(self, chunks: list[dict[str, Any]]) -> dict[str, Any]:
        (one,) = [chunk for chunk in chunks if "sglext" in chunk]
        return one

    def test_the_counts_of_a_stream(self, ending: dict[str, Any]) -> None:
        assert ENGINE.spec_counts(ending) == SpecCounts(
            steps=31,
            drafted=124,
            accepted=10,
            num_speculative_tokens=4,
            accepted_histogram=[27, 1, 1, 1, 1],
            own={"spec_accept_rate": 0.08064516129032258, "spec_accept_length": 1.2903225806451613},
        )

    def test_no_other_chunk_tells_counts(self, chunks: list[dict[str, Any]]) -> None:
        assert sum(ENGINE.spec_counts(chunk) is not None for chunk in chunks) == 1

    def test_the_last_pass_was_trimmed_and_is_one_pass(self, ending: dict[str, Any]) -> None:
        counts = ENGINE.spec_counts(ending)
        assert counts is not None
        assert 1 + counts.steps + counts.accepted - 40 == 2
        assert ENGINE.passes(40, [], counts) == (32, 32)

    def test_the_ids_are_as_many_as_usage_says(self, chunks: list[dict[str, Any]], ending: dict[str, Any]) -> None:
        prompt, answer, usage = ENGINE.prompt_ids(ending), ENGINE.answer_ids(ending), chunks[-1]["usage"]
        assert prompt is not None
        assert answer is not None
        assert (len(prompt), len(answer)) == (usage["prompt_tokens"], usage["completion_tokens"]) == (37, 40)

    def test_its_own_ratio_holds_the_prefills_token(self, chunks: list[dict[str, Any]], ending: dict[str, Any]) -> None:
        counts = ENGINE.spec_counts(ending)
        assert counts is not None
        assert counts.own["spec_accept_length"] == chunks[-1]["usage"]["completion_tokens"] / counts.steps

    def test_our_client_sizes_its_chunks_by_their_differences(self, chunks: list[dict[str, Any]]) -> None:
        answer = Answer(sent=0.0)
        endpoint = Endpoint("sglang", "http://127.0.0.1:8000/v1", "m", ENGINE)
        reader = EventStream(endpoint, answer, None)
        for chunk in chunks:
            reader.feed(f"data: {json.dumps(chunk)}\n\n".encode(), 0.0)
        assert sum(size or 0 for _, size in answer.chunks) == answer.completion_tokens == len(answer.answer_ids) == 40
        assert answer.passes(endpoint, True) == (32, 32)

    def test_a_draft_model_whose_chunks_hold_several_tokens(self) -> None:
        lines = (RECORDED / "stream-draft.jsonl").read_text(encoding="utf-8").splitlines()
        answer = Answer(sent=0.0)
        endpoint = Endpoint("sglang", "http://127.0.0.1:8000/v1", "m", ENGINE)
        reader = EventStream(endpoint, answer, None)
        for line in lines:
            reader.feed(f"data: {line}\n\n".encode(), 0.0)
        assert answer.counts == SpecCounts(
            steps=9,
            drafted=36,
            accepted=30,
            num_speculative_tokens=4,
            accepted_histogram=[1, 0, 0, 2, 6],
            own={"spec_accept_rate": 0.8333333333333334, "spec_accept_length": 4.444444444444445},
        )
        sizes = [size for _, size in answer.chunks]
        assert sum(size or 0 for size in sizes) == answer.completion_tokens == 40
        assert answer.passes(endpoint, True) == (10, 10) == (len(sizes), len(sizes))

    def test_an_answer_that_was_not_streamed(self) -> None:
        whole = json.loads((RECORDED / "answer.json").read_text(encoding="utf-8"))
        counts = ENGINE.spec_counts(whole)
        assert counts is not None
        assert (counts.steps, counts.drafted, counts.accepted, counts.accepted_histogram) == (38, 152, 1, [37, 1])
        assert ENGINE.passes(whole["usage"]["completion_tokens"], [], counts) == (39, 39)

    def test_a_page(self) -> None:
        """Requests one after the other: each of the 180 decode batches is one verified pass, beside 9 of prefill."""
        assert ENGINE.counters((RECORDED / "metrics.txt").read_text(encoding="utf-8")) == Counters(
            iterations=189.0,
            generation_tokens=236.0,
            preemptions=0.0,
            drafts=180.0,
            cached_tokens=188.0,
            running=0.0,
            waiting=0.0,
            kv_tokens=16384.0,
        )

    def test_the_owner_of_its_model_is_known(self) -> None:
        models = json.loads((RECORDED / "models.json").read_text(encoding="utf-8"))["data"]
        assert {one["owned_by"] for one in models} == ENGINE.owners

    def test_its_version_is_where_it_is_looked_for(self) -> None:
        assert ENGINE.version_at is not None
        path, key = ENGINE.version_at
        assert json.loads((RECORDED / f"{path.strip('/')}.json").read_text(encoding="utf-8"))[key] == "0.5.23"


FAILURES = {
    "OSError: You are trying to access a gated repo.": "gated: accept its licence",
    "ERROR:    [Errno 98] error while attempting to bind on address ('::', 8000): address already in use": "port",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": "leave no room for the KV cache",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.": "not enough memory",
    "ValueError: Warning: User-specified context_length (9) is greater than the derived context_length (8).": "longer",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "cu130",
    "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.": "NVIDIA driver",
    "OSError: foo/bar is not a local folder and is not a valid model identifier listed on 'https://hf.co'": "fetched",
    "sglang serve: error: unrecognized arguments: --speculative-foo 1": "has no such argument",
    "/usr/bin/python: No module named sglang": "SGLANG_PYTHON",
}


class TestKnownFailures:
    @pytest.mark.parametrize("log", FAILURES)
    def test_the_log_line_finds_its_advice(self, log: str) -> None:
        found = next((one for one in ENGINE.known_failures if re.search(one.pattern, log)), None)
        assert found is not None
        assert FAILURES[log] in found.advice

    def test_every_pattern_has_a_log_line_here(self) -> None:
        unseen = [
            one.pattern for one in ENGINE.known_failures if not any(re.search(one.pattern, log) for log in FAILURES)
        ]
        assert unseen == []
