"""Further fields of a request: JSON where it is JSON, refused where a flag says it, and part of the resume key."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from toolkit.analysis.ask import Ask
from toolkit.analysis.further_fields import read_fields, refuse_fields
from toolkit.analysis.prepare import sweep
from toolkit.analysis.run import Run
from toolkit.engines import ENGINES
from toolkit.errors import InputError

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


class Quiet:
    def stage(self, text: str) -> None: ...

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


class TestRead:
    @given(plain | st.lists(plain, max_size=3) | st.dictionaries(st.text(), plain, max_size=3))
    def test_a_json_value_comes_back(self, value: Any) -> None:
        assert read_fields([f"x={json.dumps(value)}"]) == {"x": value}

    @pytest.mark.parametrize("text", ["abc", "", "NaN", "1,2", "a=b", "[" * 100_000])
    def test_all_else_is_a_text(self, text: str) -> None:
        assert read_fields([f"x={text}"]) == {"x": text}

    @pytest.mark.parametrize("text", ["", "x", "=1", "a-b=1", "1x=2"])
    def test_what_is_no_field_is_refused(self, text: str) -> None:
        with pytest.raises(InputError, match="NAME=VALUE"):
            read_fields([text])

    @pytest.mark.parametrize(
        ("field", "flag"),
        [("max_tokens=4", "--max-tokens"), ("temperature=1", "--temperature"), ("model=x", "--model")],
    )
    def test_what_a_flag_says_is_refused_naming_it(self, field: str, flag: str) -> None:
        with pytest.raises(InputError, match=f"{flag} says it"):
            read_fields([field])


class TestRefuse:
    @pytest.mark.parametrize("engine", sorted(ENGINES))
    def test_a_field_that_the_engine_honours_is_let_through(self, engine: str) -> None:
        refuse_fields("arm", ENGINES[engine], {"top_p": 0.9})

    @pytest.mark.parametrize("value", [0, 0.0, {}, None, ""])
    def test_so_is_a_value_that_asks_for_nothing(self, value: Any) -> None:
        refuse_fields("arm", ENGINES["vllm"], {"min_p": value})


def test_another_field_is_another_measurement(tmp_path: Path, stub: StubServer) -> None:
    def measured(*fields: str) -> Run:
        small: dict[str, Any] = {"workload": "chat", "concurrency": "1", "requests": 4, "max_tokens": 4}
        return Run(sweep(Ask(**small, base_url=stub.url, fields=fields, run=tmp_path), Quiet()))

    measured("top_p=0.9")
    with pytest.raises(InputError, match="holds another measurement: sampling differ"):
        measured("top_p=0.8")


def test_without_fields_the_run_says_nothing_of_them(tmp_path: Path, stub: StubServer) -> None:
    """Runs made before there were any go on."""
    small: dict[str, Any] = {"workload": "chat", "concurrency": "1", "requests": 4, "max_tokens": 4}
    run = Run(sweep(Ask(**small, base_url=stub.url, run=tmp_path), Quiet()))
    assert set(run.info.sampling) == {"max_tokens", "temperature", "ignore_eos"}
