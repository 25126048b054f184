"""Rows of a run, what a second add changes, what survives in the .md, and that no text can break a form."""

import csv
import io
import json
import os
import unicodedata
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from toolkit.analysis.escape import csv_cell, markdown, one_line
from toolkit.analysis.run import Run
from toolkit.analysis.scoreboard import Row, add, export
from toolkit.errors import InputError

MakeRun = Callable[..., Run]
COLUMNS = 15
PAYS = [(150.0, 100.0), (153.0, 100.0), (148.0, 100.0), (151.0, 100.0), (149.0, 100.0), (152.0, 100.0)]
# Characters that mean something to Markdown, HTML, a spreadsheet or a terminal come often.
hostile = st.text(
    st.one_of(
        st.sampled_from("|\\`*_[]()<>&!#~$@:/=+-'\"\x1b\x9b\n\r\t\x00\u202ewWa1. ,;\u2028\U0001f600"), st.characters()
    )
)
snippets = st.sampled_from(
    ["<!-- x -->", "<b>", "[a](http://b)", "https://a.b", "www.a.b", "`|`", "\\|", "a@b.c", "\x1b[31m"]
)
texts = st.lists(st.one_of(hostile, snippets), max_size=4).map("".join)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tmp_path / "SCOREBOARD.md"


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", {("lab-ngram", 1): PAYS, ("lab-ngram", 4): PAYS})


def rows_of(board: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(export(board, "json"))["rows"]
    return found


def arm_row(board: Path) -> dict[str, Any]:
    return next(row for row in rows_of(board) if row["side"] == "arm")


def row(**fields: Any) -> Row:
    needed = {"date": date(2026, 1, 2), "target": "m", "engine": "vllm", "workload": "w", "concurrency": 1}
    return Row(**{**needed, "arm": "a", "side": "arm", "cells": 1, "run": "k", "id": "0" * 16, **fields})


def write_rows(board: Path, *rows: Row) -> None:
    lines = "".join(one.model_dump_json(by_alias=True) + "\n" for one in rows)
    board.with_suffix(".jsonl").write_text(lines, encoding="utf-8")


def cells_of(table: str) -> list[list[str]]:
    """Text of the cells of each row, as a Markdown reader shows them; any markup in them is an error."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(table)
    found: list[list[str]] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "tr_open":
            found.append([])
        if token.type == "inline":
            assert before is not None
            assert before.type in ("td_open", "th_open")
            children = token.children or []
            assert {child.type for child in children} <= {"text"}
            found[-1].append("".join(child.content for child in children))
    return found


def test_a_row_per_arm_and_concurrency_and_for_the_baseline(run: Run, board: Path) -> None:
    assert add(run, None, board) == 4


def test_the_baseline_comes_first_with_method_none(run: Run, board: Path) -> None:
    add(run, None, board)
    assert [(one["method"], one["concurrency"]) for one in rows_of(board)] == [
        ("none", 1),
        ("none", 4),
        ("ngram", 1),
        ("ngram", 4),
    ]


def test_the_baseline_of_two_arms_is_one_row_over_all_its_cells(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    rates = {("a", 1): [(150.0, 100.0)] * 6, ("b", 1): [(150.0, 110.0)] * 6}
    add(make_run(tmp_path / "run", rates), None, board)
    baseline = [(one["arm"], one["tokens_per_second"]) for one in rows_of(board) if one["side"] == "baseline"]
    assert baseline == [("lab-baseline", 105.0)]


def test_the_numbers_of_an_arm(run: Run, board: Path) -> None:
    add(run, None, board)
    found = arm_row(board)
    measured = ("tokens_per_second", "ttft_p50_ms", "tpot_p95_ms", "tokens_per_pass", "draft_acceptance_rate")
    assert [found[name] for name in measured] == [150.5, 100.0, 100.0, 2.5, 0.5]


def test_the_speedup_has_an_interval_and_a_verdict(run: Run, board: Path) -> None:
    add(run, None, board)
    assert "1.50x (1.49 to 1.52), pays" in board.read_text()


def test_a_level_where_requests_failed_is_inconclusive(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    add(make_run(tmp_path / "run", {("a", 1): PAYS}, failed={("a", 1): 1}), None, board)
    assert arm_row(board)["verdict"] == "inconclusive"


def test_the_date_is_the_day_the_run_was_created(run: Run, board: Path) -> None:
    add(run, None, board)
    assert arm_row(board)["date"] == "2026-01-02"


def test_the_target_of_the_run_goes_before_the_model(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    add(make_run(tmp_path / "run", {("a", 1): PAYS}, target="SmolLM2"), None, board)
    assert arm_row(board)["target"] == "SmolLM2"


@pytest.mark.parametrize(("asked", "expected"), [(None, "of the run"), ("asked", "asked"), ("", None)])
def test_the_change(make_run: MakeRun, tmp_path: Path, board: Path, asked: str | None, expected: str | None) -> None:
    add(make_run(tmp_path / "run", {("a", 1): PAYS}, change="of the run"), asked, board)
    assert arm_row(board)["change"] == expected


def test_a_run_without_a_baseline_has_no_speedup(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    add(make_run(tmp_path / "run", {("a", 1): PAYS}, baseline=None), None, board)
    assert [one["speedup"] for one in rows_of(board)] == [None]


def test_the_same_run_twice_adds_nothing(run: Run, board: Path) -> None:
    add(run, None, board)
    assert add(run, "another change", board) == 0


@pytest.mark.parametrize("suffix", [".md", ".jsonl"])
def test_the_same_run_twice_leaves_every_byte(run: Run, board: Path, suffix: str) -> None:
    add(run, None, board)
    before = board.with_suffix(suffix).read_bytes()
    add(run, None, board)
    assert board.with_suffix(suffix).read_bytes() == before


def test_an_extended_run_adds_new_rows(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    add(make_run(tmp_path / "run", {("a", 1): PAYS}), None, board)
    assert add(make_run(tmp_path / "run", {("a", 1): [*PAYS, (160.0, 100.0)]}), None, board) == 2


def test_notes_of_a_person_stay(run: Run, board: Path) -> None:
    board.write_text("# Mine\r\n\r\nA note without a newline")
    add(run, None, board)
    assert board.read_bytes().startswith(b"# Mine\r\n\r\nA note without a newline\n\n| date |")


def test_rows_after_a_note_get_a_header_of_their_own(run: Run, make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    add(run, None, board)
    with board.open("a") as handle:
        handle.write("\nA note.\n")
    add(make_run(tmp_path / "other", {("b", 1): PAYS}), None, board)
    assert board.read_text().count("| date |") == 2


def test_rows_after_rows_go_into_the_same_table(run: Run, make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    add(run, None, board)
    add(make_run(tmp_path / "other", {("b", 1): PAYS}), None, board)
    assert board.read_text().count("| date |") == 1


def test_a_row_that_the_md_lost_comes_back(run: Run, board: Path) -> None:
    add(run, None, board)
    whole = board.read_text()
    board.write_text("\n".join(whole.split("\n")[:-2]) + "\n")
    add(run, None, board)
    assert board.read_text() == whole


def test_every_line_of_the_table_has_all_columns(run: Run, board: Path) -> None:
    add(run, "a | b \\| c", board)
    lines = [line for line in board.read_text().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {COLUMNS + 1}


def test_a_lost_md_comes_back(run: Run, board: Path) -> None:
    add(run, None, board)
    whole = board.read_text()
    board.unlink()
    add(run, None, board)
    assert board.read_text() == whole


@pytest.mark.parametrize(
    "argv",
    [
        ["--speculative-config", '{"rejection_sample_method": "synthetic"}'],
        ["--speculative-config", '{"rejection_sample_method":"synthetic"}'],
        ["--speculative-config.rejection_sample_method", "synthetic"],
        ["--spec-synthetic-acceptance", "0.7"],
    ],
)
def test_synthetic_acceptance_is_refused(make_run: MakeRun, tmp_path: Path, board: Path, argv: list[str]) -> None:
    run = make_run(tmp_path / "run", {("a", 1): PAYS}, arm={"argv": argv})
    with pytest.raises(InputError, match="synthetic acceptance"):
        add(run, None, board)


def test_simulated_acceptance_in_the_environment_is_refused(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    run = make_run(tmp_path / "run", {("a", 1): PAYS}, arm={"env": {"SGLANG_SIMULATE_ACC_LEN": "3"}})
    with pytest.raises(InputError, match="synthetic acceptance"):
        add(run, None, board)


def test_a_run_without_finished_cells_is_refused(make_run: MakeRun, tmp_path: Path, board: Path) -> None:
    with pytest.raises(InputError, match="no cell of this run is finished"):
        add(make_run(tmp_path / "run", {}), None, board)


def test_a_malformed_line_is_named(run: Run, board: Path) -> None:
    write_rows(board, row())
    with board.with_suffix(".jsonl").open("a") as handle:
        handle.write('{"schema": 1}\n')
    with pytest.raises(InputError, match=r"SCOREBOARD\.jsonl:2: "):
        add(run, None, board)


def test_a_board_must_be_markdown(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.md"):
        add(run, None, tmp_path / "SCOREBOARD.jsonl")


def test_a_missing_folder_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        add(run, None, tmp_path / "nowhere" / "SCOREBOARD.md")


def full_disk(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_said(run: Run, board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="no space is left on the disk"):
        add(run, None, board)


def test_a_full_disk_leaves_what_was_there(
    run: Run, make_run: MakeRun, tmp_path: Path, board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(run, None, board)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    other = make_run(tmp_path / "other", {("b", 1): PAYS})
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError):
        add(other, None, board)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_export_without_a_scoreboard_says_how_to_begin(board: Path) -> None:
    with pytest.raises(InputError, match="scoreboard add"):
        export(board, "md")


def test_unavailable_in_markdown(board: Path) -> None:
    write_rows(board, row())
    shown = cells_of(export(board, "md"))[1]
    assert shown[3:6] + shown[8:] == ["n/a"] * 4 + ["n/a / n/a"] * 2 + ["n/a"] * 4


def test_unavailable_in_csv(board: Path) -> None:
    write_rows(board, row())
    (found,) = csv.DictReader(io.StringIO(export(board, "csv")))
    assert found["tokens_per_second"] == ""


def test_unavailable_in_json(board: Path) -> None:
    write_rows(board, row())
    assert rows_of(board)[0]["tokens_per_second"] is None


def test_a_negative_number_in_csv_stays_a_number() -> None:
    assert csv_cell(-1.5) == -1.5


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "  =1+1", "＝1+1"])
def test_a_formula_in_csv_is_text(text: str) -> None:
    assert csv_cell(text) == "'" + text


def test_json_cannot_end_a_script(board: Path) -> None:
    write_rows(board, row(change="</script><!--"))
    assert "<" not in export(board, "json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://a\x07link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("a\r\nb\tc", "a  b c"),
        ("a\x00\x08b\x7f", "ab"),
        ("\u202eabc", "abc"),
        ("a\ud800b", "ab"),
    ],
)
def test_one_line(text: str, expected: str) -> None:
    assert one_line(text) == expected


@pytest.mark.parametrize("text", ["see https://a.b/c", "www.a.b", "WWW.a.b", "a@b.c"])
def test_no_automatic_link(text: str) -> None:
    assert not any(start in markdown(text).lower() for start in ("://", "www.", "@"))


@given(texts)
def test_a_clean_text_is_one_line_without_controls(text: str) -> None:
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in one_line(text))


@given(texts)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert one_line(one_line(text)) == one_line(text)


@given(texts, texts)
def test_a_markdown_row_keeps_its_columns_and_shows_the_text(
    tmp_path_factory: pytest.TempPathFactory, target: str, change: str
) -> None:
    board = tmp_path_factory.getbasetemp() / "md" / "SCOREBOARD.md"
    board.parent.mkdir(exist_ok=True)
    write_rows(board, row(target=target, change=change))
    _, shown = cells_of(export(board, "md"))
    expected = [one_line(text) or "n/a" for text in (target, change)]
    assert (len(shown), shown[1], shown[14]) == (COLUMNS, *expected)


@given(texts, texts)
def test_csv_gives_the_text_back(tmp_path_factory: pytest.TempPathFactory, target: str, change: str) -> None:
    board = tmp_path_factory.getbasetemp() / "csv" / "SCOREBOARD.md"
    board.parent.mkdir(exist_ok=True)
    write_rows(board, row(target=target, change=change))
    (found,) = csv.DictReader(io.StringIO(export(board, "csv"), newline=""))
    assert [found["target"], found["change"]] == [csv_cell(one_line(text)) for text in (target, change)]


@given(texts, texts)
def test_json_gives_the_text_back(tmp_path_factory: pytest.TempPathFactory, target: str, change: str) -> None:
    board = tmp_path_factory.getbasetemp() / "json" / "SCOREBOARD.md"
    board.parent.mkdir(exist_ok=True)
    write_rows(board, row(target=target, change=change))
    (found,) = rows_of(board)
    assert [found["target"], found["change"]] == [one_line(target), one_line(change)]
