"""Files of logged distributions: the three formats read alike, and what is wrong is named by file and row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.analysis.forecast.distributions import Logged, matched, read_logged
from toolkit.analysis.forecast.rounds import UNKNOWN
from toolkit.errors import InputError

ROWS = [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [1.0, 0.0, 0.0]]
RECORDS: list[dict[str, Any]] = [
    {"probs": row, "token": token, "sequence": sequence, "position": position}
    for row, token, sequence, position in zip(ROWS, [2, 1, 0], ["a", "a", "b"], [4, 5, 0], strict=True)
]


def jsonl(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def npz(path: Path, **columns: Any) -> Path:
    np.savez(path, **columns)
    return path


def changed(row: int, **fields: Any) -> list[dict[str, Any]]:
    """RECORDS with fields of one row (from 1) changed."""
    return [{**record, **fields} if i == row else record for i, record in enumerate(RECORDS, start=1)]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_logged(path)
    return str(error.value)


def mismatch(tmp_path: Path, *draft: Any) -> str:
    ours, theirs = jsonl(tmp_path / "p.jsonl", *RECORDS), jsonl(tmp_path / "q.jsonl", *draft)
    with pytest.raises(InputError) as error:
        matched(read_logged(ours), read_logged(theirs))
    return str(error.value)


class TestFormats:
    @pytest.fixture(params=["jsonl", "npz"])
    def logged(self, request: pytest.FixtureRequest, tmp_path: Path) -> Logged:
        if request.param == "jsonl":
            return read_logged(jsonl(tmp_path / "p.jsonl", *RECORDS))
        columns = {name: [record[name] for record in RECORDS] for name in ("probs", "token", "sequence", "position")}
        return read_logged(npz(tmp_path / "p.npz", **columns))

    def test_rows_are_the_probabilities(self, logged: Logged) -> None:
        assert logged.rows(slice(0, 3)).tolist() == ROWS

    def test_tokens_are_those_that_followed(self, logged: Logged) -> None:
        assert logged.tokens.tolist() == [2, 1, 0]

    def test_a_text_is_a_sequence(self, logged: Logged) -> None:
        assert logged.texts() == [slice(0, 2), slice(2, 3)]

    def test_npy_is_one_text_without_tokens(self, tmp_path: Path) -> None:
        np.save(tmp_path / "p.npy", np.array(ROWS, dtype=np.float32))
        logged = read_logged(tmp_path / "p.npy")
        assert (logged.texts(), set(logged.tokens.tolist())) == ([slice(0, 3)], {UNKNOWN})

    def test_jsonl_needs_nothing_but_probs(self, tmp_path: Path) -> None:
        logged = read_logged(jsonl(tmp_path / "p.jsonl", *({"probs": row} for row in ROWS)))
        assert (logged.texts(), logged.positions.tolist()) == ([slice(0, 3)], [0, 1, 2])

    def test_a_token_may_be_unknown_in_some_rows(self, tmp_path: Path) -> None:
        logged = read_logged(jsonl(tmp_path / "p.jsonl", *changed(2, token=None)))
        assert logged.tokens.tolist() == [2, UNKNOWN, 0]

    def test_a_sum_within_the_tolerance_is_scaled_to_1(self, tmp_path: Path) -> None:
        logged = read_logged(jsonl(tmp_path / "p.jsonl", {"probs": [0.5, 0.50009]}))
        assert logged.rows(slice(0, 1)).sum() == pytest.approx(1, abs=1e-15)

    def test_float16_is_read_where_its_sums_are_right(self, tmp_path: Path) -> None:
        path = npz(tmp_path / "p.npz", probs=np.array(ROWS, dtype=np.float16))
        assert read_logged(path).rows(slice(0, 3)).tolist() == ROWS


class TestRefusedRows:
    @pytest.mark.parametrize(
        ("probs", "said"),
        [
            ([0.5, 0.25, 0.2], "sums to 0.95, not to 1 within 0.0001"),
            ([0.5, 0.25, 0.2502], "sums to 1.0002, not to 1"),
            ([1.25, -0.25, 0.0], "holds -0.25: a probability is not negative"),
            ([float("nan"), 0.5, 0.5], "holds NaN"),
            ([float("inf"), 0.0, 0.0], "sums to inf"),
            ([0.0, 0.0, 0.0], "sums to 0"),
            ([0.5, 0.5], "has 2 probabilities and row 1 has 3"),
            ([0.5, "0.25", 0.25], "that are not all numbers"),
            ([], "is not an object with a list of `probs`"),
        ],
    )
    def test_in_jsonl_with_file_and_row(self, tmp_path: Path, probs: list[Any], said: str) -> None:
        path = jsonl(tmp_path / "p.jsonl", *changed(3, probs=probs))
        message = refusal(path)
        assert message.startswith(f"{path}: row 3 ")
        assert said in message

    def test_in_numpy_with_file_and_row(self, tmp_path: Path) -> None:
        probs = np.tile([0.5, 0.5], (100, 1))
        probs[69] = [0.5, 0.4]
        path = npz(tmp_path / "p.npz", probs=probs)
        assert refusal(path).startswith(f"{path}: row 70 sums to 0.9")

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"token": 3}, "row 3 has token 3, outside the vocabulary of 3"),
            ({"token": 1.5}, "row 3 has token 1.5, not a whole number"),
            ({"token": -2}, "row 3 has token -2, not a whole number"),
            ({"sequence": "a", "position": 7}, "row 3 is position 7 after 5"),
            ({"sequence": None}, "row 3 and row 1 differ in whether they have a `sequence`"),
            ({"position": -1}, "row 3 has position -1"),
        ],
    )
    def test_where_its_place_is_wrong(self, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
        assert said in refusal(jsonl(tmp_path / "p.jsonl", *changed(3, **fields)))

    def test_that_go_back_to_a_sequence(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "p.jsonl", *RECORDS, {**RECORDS[0], "position": 6})
        assert "row 4 goes back to sequence 'a'" in refusal(path)


class TestRefusedFiles:
    def test_that_are_not_there(self, tmp_path: Path) -> None:
        assert "p.npz: cannot read" in refusal(tmp_path / "p.npz")

    def test_that_are_not_json(self, tmp_path: Path) -> None:
        (tmp_path / "p.jsonl").write_text('{"probs": [1.0]}\n{"probs": [1.0')
        assert "p.jsonl: row 2 is not JSON" in refusal(tmp_path / "p.jsonl")

    def test_that_are_not_numpy(self, tmp_path: Path) -> None:
        (tmp_path / "p.npy").write_text("0.5 0.5")
        assert "p.npy: is not a NumPy file" in refusal(tmp_path / "p.npy")

    def test_that_would_run_code_when_read(self, tmp_path: Path) -> None:
        np.save(tmp_path / "p.npy", np.array([{"probs": 1}], dtype=object), allow_pickle=True)
        assert "p.npy: is not a NumPy file of plain numbers" in refusal(tmp_path / "p.npy")

    def test_without_probs(self, tmp_path: Path) -> None:
        assert "has no array `probs`, but logits" in refusal(npz(tmp_path / "p.npz", logits=ROWS))

    def test_of_one_dimension(self, tmp_path: Path) -> None:
        assert "must be floating point numbers [rows, vocabulary]" in refusal(npz(tmp_path / "p.npz", probs=ROWS[0]))

    def test_of_whole_numbers(self, tmp_path: Path) -> None:
        assert "not int64 [1, 2]" in refusal(npz(tmp_path / "p.npz", probs=[[1, 0]]))

    def test_with_a_column_of_another_length(self, tmp_path: Path) -> None:
        assert "`token` has the shape [2]" in refusal(npz(tmp_path / "p.npz", probs=ROWS, token=[1, 2]))

    def test_that_are_empty(self, tmp_path: Path) -> None:
        (tmp_path / "p.jsonl").write_text("\n")
        assert "p.jsonl: row 1 is not JSON" in refusal(tmp_path / "p.jsonl")


class TestMatched:
    def test_tokens_come_from_either_file(self, tmp_path: Path) -> None:
        ours = read_logged(jsonl(tmp_path / "p.jsonl", *changed(1, token=None)))
        theirs = read_logged(jsonl(tmp_path / "q.jsonl", *changed(3, token=None)))
        assert matched(ours, theirs).tolist() == [2, 1, 0]

    def test_another_number_of_rows(self, tmp_path: Path) -> None:
        assert "have 3 and 2 rows" in mismatch(tmp_path, *RECORDS[:2])

    def test_another_vocabulary(self, tmp_path: Path) -> None:
        narrow = [{**record, "probs": [0.5, 0.5], "token": 0} for record in RECORDS]
        assert "are over 3 and 2 tokens" in mismatch(tmp_path, *narrow)

    def test_another_sequence(self, tmp_path: Path) -> None:
        message = mismatch(tmp_path, *changed(3, sequence="c"))
        assert "q.jsonl: row 3 is position 0 of sequence 'c'" in message

    def test_another_position(self, tmp_path: Path) -> None:
        assert "q.jsonl: row 3 is position 1 of sequence 'b'" in mismatch(tmp_path, *changed(3, position=1))

    def test_another_text(self, tmp_path: Path) -> None:
        message = mismatch(tmp_path, *changed(2, token=0))
        assert "q.jsonl: row 2 is followed by token 0" in message
