"""What is kept of replies: written, read back, refused in words, and made comparable."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_servers import reply

from toolkit.analysis.audit.replies import (
    FILE,
    Reply,
    comparable,
    prompts_differ,
    read_replies,
    reply_of,
    write_replies,
)
from toolkit.engines.contract import SpecCounts
from toolkit.errors import InputError

FULL = reply(
    "sample",
    "arm",
    3,
    [5, 6],
    seed=7,
    chunks=[1, 1],
    text='a\u2028b\n"é\x1b[31m',
    stop="x",
    top=[[(5, -0.1), (6, -2.5)], [(6, -0.2), (5, -9999.0)]],
    counts=SpecCounts(1, 4, 2, 4, [4], [2]),
    scores=[[(5, -0.1)], [(6, -0.2)]],
    words={5: "fi", 6: "\r\n"},
)


class TestFile:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        kept = [FULL, reply("greedy", "baseline", 0, [])]
        write_replies(tmp_path, kept)
        assert read_replies(tmp_path) == kept

    def test_more_is_appended(self, tmp_path: Path) -> None:
        write_replies(tmp_path, [FULL])
        write_replies(tmp_path, [FULL, FULL])
        assert len(read_replies(tmp_path)) == 3

    def test_a_reply_is_a_line(self, tmp_path: Path) -> None:
        write_replies(tmp_path, [FULL, FULL])
        assert (tmp_path / FILE).read_bytes().count(b"\n") == 2

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("{", "Invalid JSON"),
            ("{}", "question: Field required"),
            ("null", "Input should be"),
            ('{"question": "other"}', "question: Input should be 'greedy'"),
        ],
    )
    def test_another_line_is_refused_with_its_place(self, tmp_path: Path, line: str, said: str) -> None:
        write_replies(tmp_path, [FULL])
        with (tmp_path / FILE).open("a") as handle:
            handle.write(f"{line}\n")
        with pytest.raises(InputError) as refused:
            read_replies(tmp_path)
        assert f"{FILE}:2: not a reply of an audit: " in str(refused.value)
        assert said in str(refused.value)

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"replies.jsonl: cannot be read as an audit's replies: No such file"):
            read_replies(tmp_path)

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(b"\xff\xfe\n")
        with pytest.raises(InputError, match=f"{FILE}:1"):
            read_replies(tmp_path)


class TestReplyOf:
    def test_its_own_fields(self) -> None:
        assert reply_of(asdict(FULL)) == FULL

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("token_ids", ["x"], "token_ids.0: "),
            ("token_ids", [1.5], "token_ids.0: "),
            ("token_ids", [-1], "token_ids.0: "),
            ("token_ids", [2**31], "token_ids.0: "),
            ("token_ids", None, "token_ids: "),
            ("text", 5, "text: "),
            ("counts", {"steps": "many", "drafted": 1, "accepted": 1}, "counts.steps: "),
            ("top", [[(1, float("nan"))]], "top.0.0.1: "),
            ("top", [[(1, float("-inf"))]], "top.0.0.1: "),
            ("finish_reason", None, "finish_reason: "),
        ],
    )
    def test_nonsense_is_refused_with_its_place_and_without_repeating_it(
        self, field: str, value: Any, said: str
    ) -> None:
        with pytest.raises(ValueError) as refused:
            reply_of({**asdict(FULL), field: value})
        assert str(refused.value).startswith(said)


class TestComparable:
    def test_replies_with_token_ids_stay(self) -> None:
        assert comparable([FULL, reply("sample", "arm", 0, [])]) == [FULL, reply("sample", "arm", 0, [])]

    def test_one_without_makes_words_stand_for_the_tokens_of_all(self) -> None:
        """A server of ours beside a hosted one: ids against words would differ everywhere."""
        hosted = reply("sample", "baseline", 0, [], text="one two", chunks=[])
        ours = reply("sample", "arm", 0, [4, 8, 15], text="one two", top=[[(4, 0.0)]] * 3)
        found = comparable([hosted, ours])
        assert found[0].token_ids == found[1].token_ids
        assert [len(one.token_ids) for one in found] == [2, 2]
        assert [(one.top, one.chunks) for one in found] == [(None, []), (None, [])]

    @given(st.text(" ab\n", max_size=12), st.text(" ab\n", max_size=12))
    def test_words_are_the_same_only_where_the_texts_are(self, one: str, other: str) -> None:
        hosted = reply("sample", "arm", 0, [], text="x", chunks=[])
        found = comparable([hosted, *(reply("sample", "arm", 0, [1], text=text) for text in (one, other))])
        assert (found[1].token_ids == found[2].token_ids) == (one == other)


class TestPromptsDiffer:
    def ask(self, arm: list[int], baseline: list[int]) -> bool:
        asked: list[Reply] = [
            reply("greedy", "arm", 1, [5], prompt_ids=arm),
            reply("greedy", "baseline", 1, [5], prompt_ids=baseline),
        ]
        return prompts_differ([*asked, reply("sample", "arm", 1, [5], prompt_ids=[9, 9, 9])])

    def test_the_same_tokens_do_not(self) -> None:
        assert not self.ask([1, 2], [1, 2])

    def test_others_do(self) -> None:
        assert self.ask([1, 2], [1, 3])

    def test_a_side_that_does_not_tell_is_believed(self) -> None:
        assert not self.ask([1, 2], [])
