"""What a person reads: plain lines whatever the outside says, and the answer in words."""

import io

import pytest
from rich.console import Console

from toolkit.analysis.crossover import ArmResult, Crossover, Level, Verdict
from toolkit.analysis.levels import LevelStats
from toolkit.analysis.run import Run
from toolkit.terminal import crossover_table, say, sentences, speedup_text


def shown(text: str) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    say(text, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def level(concurrency: int, verdict: Verdict, **fields: object) -> Level:
    values = {"speedup": 1.5, "low": 1.4, "high": 1.6, "reason": "the 95 % interval lies above 1", "pairs": 6}
    values |= {"tokens_per_pass": 1.7, "draft_acceptance_rate": 0.6, **fields}
    return Level(concurrency=concurrency, verdict=verdict, **values)  # type: ignore[arg-type]


def words(*levels: Level, baseline: str | None = "base") -> list[str]:
    run = Run.__new__(Run)
    return sentences(run, Crossover(baseline, [ArmResult("arm", "chat", list(levels))]), [])


class TestSay:
    @pytest.mark.parametrize("attack", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x08"])
    def test_a_control_sequence_does_not_reach_the_terminal(self, attack: str) -> None:
        assert shown(f"model{attack}name").strip() in ("modelname", "model name")

    def test_markup_is_shown_as_it_is(self) -> None:
        assert shown("[bold]x[/bold]") == "[bold]x[/bold]\n"

    def test_lines_and_their_indent_stay(self) -> None:
        assert shown("one\n  two") == "one\n  two\n"


class TestSentences:
    def test_the_bracket_is_said(self) -> None:
        assert words(level(1, "pays"), level(64, "costs"))[0] == (
            "arm pays up to concurrency 1 and costs from 64; the crossover lies between."
        )

    def test_what_is_not_monotone_is_said_to_be(self) -> None:
        assert "not monotone" in words(level(1, "costs"), level(64, "pays"))[0]

    def test_a_draft_that_does_nothing_is_said_first(self) -> None:
        # SpecForge#310: acceptance length 1.04.
        first = words(level(1, "costs", acceptance_length=1.04), level(4, "costs", acceptance_length=1.02))[0]
        assert first == "arm: this draft does nothing here, its acceptance length is 1.04 at best."

    def test_a_draft_that_does_something_is_not(self) -> None:
        said = words(level(1, "pays", acceptance_length=2.5), level(4, "costs", acceptance_length=1.05))
        assert not any("does nothing" in line for line in said)

    def test_why_there_is_no_verdict_is_said(self) -> None:
        said = words(level(4, "inconclusive", reason="2 pairs measured, 5 are needed", withheld=True))
        assert "  at 4: 2 pairs measured, 5 are needed." in said

    def test_where_the_interval_lies_is_left_to_the_table(self) -> None:
        assert len(words(level(4, "pays"))) == 1

    def test_notes_are_said(self) -> None:
        assert "  at 4: prompts were reused." in words(level(4, "pays", notes=("prompts were reused",)))

    def test_a_lone_server_has_no_speedup(self) -> None:
        assert "speedup is unavailable" in words(level(4, "inconclusive"), baseline=None)[0]


class TestTable:
    def stats(self, side: str) -> LevelStats:
        return LevelStats(
            **{"arm": "arm", "side": side, "workload": "chat", "concurrency": 4, "cells": 6, "requests": 96},  # type: ignore[arg-type]
            **{"failed": 0, "tokens_per_second": 100.0, "ttft_ms": None, "tpot_ms": None, "tokens_per_pass": 1.7},  # type: ignore[arg-type]
            **{"drafted": 10, "accepted": 6, "steps": 4, "mean_tokens_held": 50.0, "per_request": True},  # type: ignore[arg-type]
        )

    def test_it_fits_into_80_columns(self) -> None:
        found = Crossover("base", [ArmResult("arm", "chat", [level(64, "inconclusive", low=0.95, high=1.06)])])
        console = Console(file=io.StringIO(), width=80)
        console.print(crossover_table(found, [self.stats("arm"), self.stats("baseline")])[0])
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert "1.50x [0.95, 1.06]" in text
        assert "inconclusive" in text
        assert "…" not in text

    def test_what_is_unavailable_is_said_to_be(self) -> None:
        assert speedup_text(level(4, "inconclusive", speedup=None, low=None, high=None)) == "n/a"
