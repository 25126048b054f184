"""One request through the loop: text that never breaks a character, stop strings, log probabilities."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.lab.answer import Job, Piece, Written, _score, answer
from toolkit.lab.reference import ModelDrafter, Sampling
from toolkit.lab.toy import ToyTokenizer, toy_pair, toy_target

TOY = ToyTokenizer()


class ByteTokenizer:
    """A token per byte, so that most characters beyond ASCII take several; as byte-level BPE at its worst."""

    eos = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(one for one in ids if one < 256).decode(errors="replace")

    def chat(self, messages: Sequence[object]) -> list[int]:
        raise NotImplementedError


def job(**changes: object) -> Job:
    return Job(**{"prompt": (1,), "sampling": Sampling(), "max_tokens": 10_000, **changes})  # type: ignore[arg-type]


def steps(tokens: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """`tokens` cut at some of its places, none of the parts empty."""
    places = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    return [tokens[a:b] for a, b in pairwise(places)]


def written(of: Job, parts: Sequence[Sequence[int]]) -> tuple[Written, list[int], list[str]]:
    """What was taken of `parts` until the answer ended: tokens, and the texts shown."""
    made, tokens, texts = Written(ByteTokenizer(), of), [], []
    for part in parts:
        taken, text = made.add(part)
        tokens += taken
        texts.append(text)
        if made.finish_reason is not None:
            break
    return made, tokens, texts


CUTS = st.lists(st.integers(0, 1000), max_size=10)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


class TestText:
    @given(TEXT, CUTS)
    def test_the_deltas_add_up_to_the_text_however_the_steps_fall(self, text: str, cuts: list[int]) -> None:
        parts = steps([*text.encode(), ByteTokenizer.eos], cuts)
        assert "".join(written(job(), parts)[2]) == text

    @given(st.text("aé€😀", min_size=1, max_size=20), CUTS)
    def test_no_delta_has_half_a_character(self, text: str, cuts: list[int]) -> None:
        parts = steps([*text.encode(), ByteTokenizer.eos], cuts)
        assert "\ufffd" not in "".join(written(job(), parts)[2])

    def test_an_answer_cut_off_in_a_character_shows_that_it_was(self) -> None:
        assert written(job(max_tokens=2), [[97], ["€".encode()[0]]])[2] == ["a", "\ufffd"]

    def test_bytes_that_are_no_character_do_not_hold_the_rest_back(self) -> None:
        assert written(job(), [[0xFF], [97]])[2] == ["", "\ufffda"]


class TestStopStrings:
    @given(st.text("ab€", max_size=30), st.lists(st.text("ab€", min_size=1, max_size=3), min_size=1, max_size=3), CUTS)
    def test_text_ends_before_the_first_of_them(self, text: str, stops: list[str], cuts: list[int]) -> None:
        ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
        expected = text
        if ends:
            first = min(end for end, _ in ends)
            expected = min((text[: end - len(stop)] for end, stop in ends if end == first), key=len)
        parts = steps([*text.encode(), ByteTokenizer.eos], cuts)
        assert "".join(written(job(stops=tuple(stops)), parts)[2]) == expected

    @given(st.text("ab€", max_size=30), CUTS)
    def test_tokens_end_with_the_one_that_completes_it_however_the_steps_fall(self, text: str, cuts: list[int]) -> None:
        tokens = [*text.encode(), ByteTokenizer.eos]
        one_by_one = written(job(stops=("ba",)), [[token] for token in tokens])[1]
        assert written(job(stops=("ba",)), steps(tokens, cuts))[1] == one_by_one

    def test_the_reason_names_it(self) -> None:
        made, _, _ = written(job(stops=("x", "b")), [list(b"abc")])
        assert (made.finish_reason, made.stop_reason) == ("stop", "b")

    def test_a_beginning_that_leads_nowhere_is_shown(self) -> None:
        assert written(job(stops=("abc",)), [list(b"xab"), list(b"d")])[2] == ["x", "abd"]

    def test_a_beginning_at_the_end_is_shown(self) -> None:
        assert written(job(stops=("abc",)), [list(b"xab"), [256]])[2] == ["x", "ab"]


class TestEnds:
    @pytest.mark.parametrize(
        ("changes", "tokens", "reasons"),
        [
            ({}, [97, 256], ("stop", None)),
            ({"stop_ids": frozenset({97})}, [97], ("stop", 97)),
            ({"max_tokens": 1}, [97], ("length", None)),
            ({"max_tokens": 2}, [97, 256], ("stop", None)),
            ({"ignore_eos": True, "max_tokens": 3}, [97, 256, 97], ("length", None)),
        ],
    )
    def test_an_answer_ends(self, changes: dict[str, object], tokens: list[int], reasons: tuple[str, object]) -> None:
        made, taken, _ = written(job(**changes), [[97, 256, 97]])
        assert (taken, (made.finish_reason, made.stop_reason)) == (tokens, reasons)

    def test_the_end_has_no_text(self) -> None:
        assert written(job(), [[97, 256]])[2] == ["a"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def pieces(**changes: object) -> list[Piece]:
    target, draft = toy_pair()
    asked = {"prompt": tuple(TOY.encode("The target")), "sampling": Sampling(1.0), "max_tokens": 60, "seed": 3}
    return list(answer(target, TOY, job(**{**asked, **changes}), ModelDrafter(draft), 4))


class TestScores:
    def test_each_token_has_the_targets_own_log_probability(self) -> None:
        found = pieces(top=0)
        sequence = [*TOY.encode("The target"), *(token for piece in found for token in piece.tokens)]
        rows = log_softmax(toy_target().extend(sequence))[len("The target") - 1 : -1]
        expected = [row[token] for row, token in zip(rows, sequence[len("The target") :], strict=True)]
        assert [one.choice.logprob for piece in found for one in piece.scores or ()] == pytest.approx(expected)

    def test_temperature_does_not_change_them(self) -> None:
        found = pieces(top=0, sampling=Sampling(0.5, top_k=4))
        again = pieces(top=0, prompt=tuple(TOY.encode("The target")), sampling=Sampling(0.5, top_k=4))
        rows = log_softmax(toy_target().extend(TOY.encode("The target")))[-1]
        assert found == again
        assert found[0].scores is not None
        assert found[0].scores[0].choice.logprob == pytest.approx(rows[found[0].tokens[0]])

    def test_the_prompts_tokens_have_theirs(self) -> None:
        prompt = TOY.encode("The target")
        rows = log_softmax(toy_target().extend(prompt))
        found = pieces(prompt_top=1)[0].prompt_scores
        assert found is not None
        assert [one.choice.logprob for one in found] == pytest.approx(
            [row[token] for row, token in zip(rows, prompt[1:], strict=False)]
        )

    def test_only_the_first_piece_has_the_prompts(self) -> None:
        assert [piece.prompt_scores for piece in pieces(prompt_top=1)[1:]] == [None] * (len(pieces(prompt_top=1)) - 1)

    def test_the_likeliest_come_first_and_the_lower_id_among_equals(self) -> None:
        scored = _score(np.log(np.array([0.1, 0.3, 0.3, 0.2, 0.1])), 0, 4)
        assert [one.token for one in scored.top] == [1, 2, 3, 0]

    def test_ties_beyond_the_asked_count_are_cut(self) -> None:
        assert [one.token for one in _score(np.zeros(5), 0, 2).top] == [0, 1]

    @pytest.mark.parametrize(("token", "rank"), [(1, 1), (3, 2), (0, 4), (2, 4)])
    def test_a_rank_counts_the_tokens_that_are_as_likely(self, token: int, rank: int) -> None:
        assert _score(np.log(np.array([0.1, 0.5, 0.1, 0.3])), token, 0).choice.rank == rank

    @pytest.mark.parametrize("top", [0, 3, 7, 20])
    def test_as_many_as_asked_for_or_as_there_are(self, top: int) -> None:
        assert len(_score(np.arange(7.0), 0, top).top) == min(top, 7)


class TestLoop:
    @pytest.mark.parametrize("stop", ["th", "e ", "ing"])
    def test_greedy_tokens_are_those_of_plain_decoding_with_a_stop_string_too(self, stop: str) -> None:
        asked = job(prompt=tuple(TOY.encode("It is")), max_tokens=100, stops=(stop,))
        target, draft = toy_pair()
        plain = [token for piece in answer(target, TOY, asked) for token in piece.tokens]
        drafted = [token for piece in answer(target, TOY, asked, ModelDrafter(draft), 5) for token in piece.tokens]
        assert drafted == plain

    def test_the_same_seed_gives_the_same_answer(self) -> None:
        assert pieces(seed=-7) == pieces(seed=-7)

    def test_another_seed_gives_another(self) -> None:
        assert pieces(seed=1) != pieces(seed=2)
