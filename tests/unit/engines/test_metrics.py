"""A /metrics page of vLLM: summed over engines and labels, timestamps aside, absent is None."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.engines.contract import Counters
from toolkit.engines.metrics import Page
from toolkit.engines.vllm import VLLM

PAGE = (Path(__file__).parents[2] / "data" / "vllm" / "metrics.txt").read_text(encoding="utf-8")
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@pytest.fixture(scope="module")
def counters() -> Counters:
    return VLLM().counters(PAGE)


class TestCounters:
    def test_two_engines_on_one_page_are_summed(self, counters: Counters) -> None:
        assert (counters.drafts, counters.drafted, counters.accepted) == (30, 330, 100)

    def test_acceptance_at_position_0_is_26_of_30(self, counters: Counters) -> None:
        """speculators#1095: 8 of 10 and 18 of 20."""
        assert (counters.accepted_per_position[0], counters.drafts) == (26, 30)

    def test_positions_are_sorted_as_numbers(self, counters: Counters) -> None:
        assert counters.accepted_per_position == [26, 17, 13, 10, 9, 7, 6, 5, 3, 2, 2]

    def test_labels_stand_in_any_order(self) -> None:
        """A Spark serving repository's issue 92."""
        page = f'{PER_POSITION}{{engine="0",model_name="m",position="0"}} 16131.0\n'
        page += f'{PER_POSITION}{{position="0",model_name="m",engine="1"}} 9.0\n'
        assert VLLM().counters(page).accepted_per_position == [16140]

    def test_created_timestamps_are_not_counts(self, counters: Counters) -> None:
        """The page's `_created` samples are 1.764e9: one of them in a sum would show."""
        numbers = [counters.drafts, counters.generation_tokens, counters.iterations, *counters.accepted_per_position]
        assert max(number or 0 for number in numbers) < 1000

    def test_iterations_are_the_count_of_the_histogram(self, counters: Counters) -> None:
        assert counters.iterations == 100

    def test_tokens_and_preemptions(self, counters: Counters) -> None:
        assert (counters.generation_tokens, counters.preemptions) == (350, 1)

    def test_gauges_are_summed(self, counters: Counters) -> None:
        assert (counters.running, counters.waiting) == (7, 2)

    def test_kv_capacity_is_summed_over_engines(self, counters: Counters) -> None:
        assert counters.kv_tokens == 2 * 93184

    def test_a_kv_capacity_that_is_not_told_is_unavailable(self) -> None:
        page = 'vllm:cache_config_info{engine="0",kv_cache_size_tokens="None",num_gpu_blocks="7"} 1.0\n'
        assert VLLM().counters(page).kv_tokens is None

    def test_an_absent_series_is_none_not_zero(self) -> None:
        page = 'vllm:num_requests_running{engine="0"} 0.0\n'
        assert VLLM().counters(page) == Counters(running=0)

    def test_a_series_at_zero_is_zero_not_none(self) -> None:
        assert VLLM().counters('vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n').drafts == 0

    def test_an_empty_page_tells_nothing(self) -> None:
        assert VLLM().counters("") == Counters()

    @pytest.mark.parametrize("page", ["<html>404</html>", '{"detail":"Not Found"}', "Not Found", 'a{b="c" 3'])
    def test_what_is_not_exposition_format_is_a_value_error(self, page: str) -> None:
        with pytest.raises(ValueError):
            VLLM().counters(page)


class TestPage:
    @given(st.dictionaries(st.integers(0, 40), st.lists(st.integers(0, 10**6), min_size=1, max_size=3), max_size=15))
    def test_sums_by_label_add_up_to_the_total(self, values: dict[int, list[int]]) -> None:
        lines = [f'x{{p="{p}",e="{e}"}} {v}' for p, many in values.items() for e, v in enumerate(many)]
        page = Page("\n".join(lines) + "\n")
        assert page.by_label("x", "p") == {str(p): sum(many) for p, many in values.items()}
        assert page.total("x") == (sum(map(sum, values.values())) if values else None)

    def test_a_series_without_the_label_is_left_out(self) -> None:
        assert Page('x{a="1"} 2\nx{b="1"} 3\n').by_label("x", "a") == {"1": 2}
