"""The file format: what a record holds, what it refuses, and the rate of a cell."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolkit.analysis.records import CellKey, CellRecord, RequestRecord

KEY = CellKey(arm="a", side="arm", workload="w", concurrency=2, round=3)


def cell(**fields: Any) -> CellRecord:
    needed = {"cell": KEY, "attempt": 1, "served_by": "a", "order": 0, "finished_at": "t", "seconds": 1.0}
    counts = {"requests": 8, "failed": 0, "client_cpu": 0.1, "prompts_digest": "p"}
    return CellRecord(**{**needed, **counts, **fields})


def request(**fields: Any) -> RequestRecord:
    needed = {"cell": KEY, "attempt": 1, "served_by": "a", "warmup": False, "category": "c", "prompt": 0}
    return RequestRecord(**{**needed, "prompt_hash": "h", "sent": 0.0, "ended": 1.0, **fields})


class TestRate:
    def test_tokens_per_second_of_the_window(self) -> None:
        assert cell(window=(1.0, 3.0), window_tokens=50.0).tokens_per_second == 25.0

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"window": (1.0, 3.0)},
            {"window_tokens": 50.0},
            {"window": (3.0, 3.0), "window_tokens": 50.0},
            {"window": (3.0, 1.0), "window_tokens": 50.0},
        ],
    )
    def test_unavailable_without_a_window(self, fields: dict[str, Any]) -> None:
        assert cell(**fields).tokens_per_second is None

    def test_no_token_in_a_window_is_a_rate_of_zero(self) -> None:
        assert cell(window=(1.0, 3.0), window_tokens=0.0).tokens_per_second == 0.0


class TestFormat:
    @given(
        st.builds(
            request,
            ttft=st.none() | st.floats(0, 1e6),
            chunks=st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.integers(0, 100))),
            passes=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
            error=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            per_step_accepted=st.none() | st.lists(st.integers(0, 16)),
        )
    )
    def test_a_request_comes_back_from_its_line(self, record: RequestRecord) -> None:
        line = record.model_dump_json(by_alias=True, exclude_none=True)
        assert RequestRecord.model_validate_json(line) == record

    def test_a_line_is_one_line(self) -> None:
        assert "\n" not in request(error="one\ntwo\r\u2028").model_dump_json()

    def test_a_line_carries_its_schema(self) -> None:
        assert '"schema":1' in request().model_dump_json(by_alias=True)

    def test_what_is_unavailable_comes_back_as_none(self) -> None:
        line = request().model_dump_json(by_alias=True, exclude_none=True)
        back = RequestRecord.model_validate_json(line)
        assert (back.accepted, back.ttft, back.completion_tokens) == (None, None, None)

    @pytest.mark.parametrize(
        "fields", [{"attempt": 0}, {"unknown": 1}, {"ended": None}, {"warmup": "perhaps"}, {"passes": (1,)}]
    )
    def test_a_wrong_field_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            request(**fields)

    @pytest.mark.parametrize("fields", [{"concurrency": 0}, {"round": 0}, {"side": "both"}])
    def test_a_wrong_cell_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            CellKey(**{**KEY.model_dump(), **fields})

    def test_the_two_sides_of_a_pair_are_two_cells(self) -> None:
        assert len({KEY, KEY.model_copy(update={"side": "baseline"}), CellKey(**KEY.model_dump())}) == 2

    def test_a_cell_is_named_by_all_its_parts(self) -> None:
        assert str(KEY) == "w/2/3/a/arm"
