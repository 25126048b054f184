"""Six contenders, two methods of three engines, are still read at a glance."""

from collections.abc import Callable

import pytest

from toolkit.analysis.compare import Comparison, compare
from toolkit.analysis.compare.output import after, as_json, headline
from toolkit.analysis.run import Run
from toolkit.cli.comparing import answer, contender_table, difference_table

ENGINES = ("vllm", "sglang", "llamacpp")
PAIRS = 15


@pytest.fixture
def six(contender: Callable[..., Run]) -> Comparison:
    """K = 4 everywhere; every figure of the engines' own is off, for the same reason."""
    runs = [
        contender(
            f"{engine}-{method}",
            lambda i, method=method: {"passes": (7 if method == "draft_model" else 8,) * 2, "own": {
                "draft_acceptance_rate": float(i % 2) / 2}},
            arm={"engine": engine, "method": method, "engine_version": "b1-pypi"},
        )
        for engine in ENGINES
        for method in ("ngram", "draft_model")
    ]  # fmt: skip
    return compare(runs)


def test_in_a_terminal_pairs_of_one_method_or_one_engine_are_shown(six: Comparison) -> None:
    of_one_method, of_one_engine, ratios = 2 * 3, 3, 3
    assert difference_table(six, six.levels[0], "").row_count == (of_one_method + of_one_engine) * ratios


def test_it_is_said_that_there_are_more_pairs(six: Comparison) -> None:
    assert any("all pairs are in the report and in --json" in part for part in answer(six) if isinstance(part, str))


def test_the_json_has_every_pair(six: Comparison) -> None:
    found = as_json(six)["levels"][0]["differences"]
    assert len([one for one in found if one["quantity"] == "tokens_per_pass"]) == PAIRS


def test_three_contenders_show_every_pair(contender: Callable[..., Run]) -> None:
    runs = [contender(f"{engine}", arm={"engine": engine, "method": method}) for engine, method in
            zip(ENGINES, ("ngram", "draft_model", "eagle3"), strict=True)]  # fmt: skip
    found = compare(runs)
    assert difference_table(found, found.levels[0], "").row_count == 3 * 3
    assert not any("all pairs" in part for part in answer(found) if isinstance(part, str))


def test_the_headline_is_their_range(six: Comparison) -> None:
    assert headline(six.levels[0]) == ["from 2.50 (vllm-ngram) to 2.86 tokens per pass (vllm-draft_model)"]


def test_a_reason_that_several_share_is_said_once(six: Comparison) -> None:
    said = [text for text in after(six, six.levels[0]) if "the engine's own" in text]
    assert ["The mean over requests" in text for text in said] == [True] + [False] * 5


def test_a_terminal_shows_a_version_up_to_how_it_was_built(six: Comparison) -> None:
    cells = list(contender_table(six, six.levels[0], "").columns[1].cells)
    assert cells[:2] == ["vllm b1", "vllm b1"]
