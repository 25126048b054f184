"""Texts of ids or pieces drawn at random are told from language."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.language import looks_random


class TestLooksRandom:
    def test_the_readme_is_language(self) -> None:
        text = (Path(__file__).parents[3] / "README.md").read_text()
        assert not any(looks_random(text[start : start + 2000]) for start in range(0, len(text) - 2000, 500))

    @given(st.integers(0, 10**6), st.sampled_from([32_000, 151_936]))
    def test_texts_of_drawn_ids_are_recognised(self, seed: int, vocabulary: int) -> None:
        ids = Random(seed).choices(range(vocabulary), k=200)
        assert looks_random(" ".join(map(str, ids)))

    @given(st.integers(0, 10**6))
    def test_so_are_texts_of_drawn_pieces_of_words(self, seed: int) -> None:
        """As a vocabulary of 50,000 pieces decodes: few of them repeat among 200."""
        ids = Random(seed).choices(range(50_000), k=200)
        text = " ".join(f"{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{i // 676}x" for i in ids)
        assert looks_random(text)

    @pytest.mark.parametrize("text", ["", "What is 17 * 23?", "1 2 3", "Sort 9 2 7 4 1 8 3 6 and say why it works."])
    def test_a_short_question_is_not(self, text: str) -> None:
        assert not looks_random(text)
