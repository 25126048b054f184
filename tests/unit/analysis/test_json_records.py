"""A file of JSON records, one at a time: right however it is cut, small in memory, and a fault is found where it is."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis import json_records
from toolkit.analysis.json_records import RecordError, records

values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 10**9) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


class TestArray:
    @given(st.lists(values, max_size=6), st.sampled_from([None, 0, 2]), st.integers(1, 40))
    def test_an_array_gives_its_elements_however_it_is_cut(
        self, folder: Path, wanted: list[object], indent: int | None, chunk: int
    ) -> None:
        path = folder / "any.json"
        path.write_text(json.dumps(wanted, indent=indent, ensure_ascii=False), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_records, "CHUNK", chunk)
            assert [value for _, value in records(path, lambda _: False)] == wanted

    def test_an_array_larger_than_a_chunk_is_held_an_element_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(json_records, "CHUNK", 20_000)
        path = tmp_path / "large.json"
        turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "é" * 2000}]
        path.write_text("[" + ",\n".join([json.dumps({"conversations": turns})] * 400) + "]")
        tracemalloc.start()
        found = sum(1 for _ in records(path, lambda _: False))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (found, path.stat().st_size > 4e6, peak < 0.4e6) == (400, True, True), peak

    def test_a_fault_early_in_a_large_array_is_found_before_all_of_it_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(json_records, "CHUNK", 64)
        path = tmp_path / "large.json"
        path.write_text('[\n"a",\n{"b" 1},\n' + '"c",\n' * 100_000 + '"d"]')
        with pytest.raises(RecordError) as caught:
            list(records(path, lambda _: False))
        assert caught.value.line == 3
