"""What a person reads: plain lines whatever the outside says, and the answer in words."""

import io
from pathlib import Path
from typing import Any

import pytest
from made_run import write_run
from rich.console import Console
from rich.table import Table

from toolkit.analysis.acceptance import AcceptanceGroup, Position
from toolkit.analysis.crossover import Acceptance, ArmResult, Crossover, Level, Verdict, crossover
from toolkit.analysis.factors import LevelFactors, Terms
from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.run import Run
from toolkit.terminal import acceptance_tables, answer, crossover_table, say, sentences, show, speedup_text, why

MEASURED = Path(__file__).parents[1] / "data" / "runs" / "lab-copy-code"


def shown(text: str) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    say(text, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def level(concurrency: int, verdict: Verdict, **fields: object) -> Level:
    values = {"speedup": 1.5, "low": 1.4, "high": 1.6, "reason": "the 95 % interval lies above 1", "pairs": 6}
    values |= {"tokens_per_pass": 1.7, "draft_acceptance_rate": 0.6, **fields}
    return Level(concurrency=concurrency, verdict=verdict, **values)  # type: ignore[arg-type]


def words(*levels: Level, baseline: str | None = "base", caveats: tuple[str, ...] = (), **arm: Any) -> list[str]:
    run = Run.__new__(Run)
    result = Crossover(baseline, [ArmResult("arm", "chat", list(levels), **arm)], list(caveats))
    return sentences(run, result, [])


def printed(*parts: Table | str, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def terms(per_iteration: bool = True) -> Terms:
    return Terms(800.0, 2.0, 60.0 if per_iteration else None, 0.15 if per_iteration else None, 400.0)


def factors(concurrency: int = 64, per_iteration: bool = True, **fields: Any) -> LevelFactors:
    values = {"speedup": 1.25, "tokens_per_pass": 2.0, "passes_per_second": 0.62, "reason": "", "sentence": ""}
    ratios = {"passes_per_iteration": 0.94, "seconds_per_iteration": 1.5} if per_iteration else {}
    plain = {"passes_per_iteration": None, "seconds_per_iteration": None}
    sides = {"arm": terms(per_iteration), "baseline": terms(per_iteration)}
    return LevelFactors(concurrency=concurrency, **{**values, **plain, **ratios, **sides, **fields})


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

    def test_why_there_is_no_verdict_is_said(self) -> None:
        said = words(level(4, "inconclusive", reason="2 pairs measured, 5 are needed", withheld=True))
        assert "  at 4: 2 pairs measured, 5 are needed." in said

    def test_where_the_interval_lies_is_left_to_the_table(self) -> None:
        assert len(words(level(4, "pays"))) == 1

    def test_notes_are_said(self) -> None:
        assert "  at 4: prompts were reused." in words(level(4, "pays", notes=("prompts were reused",)))

    def test_a_remark_that_levels_share_is_said_once(self) -> None:
        said = words(level(4, "pays", notes=("a",)), level(16, "pays", notes=("a", "b")))
        assert said[1:] == ["  at 4, 16: a.", "  at 16: b."]

    def test_what_the_caveats_said_is_not_repeated(self) -> None:
        assert len(words(level(4, "pays", notes=("prompts were reused",)), caveats=("prompts were reused",))) == 1

    def test_a_lone_server_has_no_speedup(self) -> None:
        (said,) = words(level(4, "inconclusive"), baseline=None)
        assert said == ("arm: speedup is unavailable, no baseline was measured (--baseline or --baseline-url).")

    def test_an_arm_that_was_not_measured_yet_is_said_to_be(self) -> None:
        assert words(baseline=None) == ["arm: no cell is finished."]

    def test_a_draft_that_does_nothing_is_said_before_the_verdict(self) -> None:
        assert words(level(4, "costs"), idle=True)[0].startswith("arm, whose draft does nothing here, costs from")

    def test_synthetic_acceptance_is_in_the_answer(self) -> None:
        assert words(level(4, "pays"), synthetic=True)[0].startswith(
            "arm (synthetic acceptance: for sizing only) pays up to concurrency 4"
        )

    @pytest.mark.parametrize(
        ("needed", "said"),
        [
            (14, "an effect of 10 % here needs about 14 pairs (--rounds 14)"),
            (1000, "an effect of 10 % here needs at least 1000 pairs (--rounds 1000)"),
            (6, "an effect of 10 % would have shown in 9 of 10 sweeps of 6 pairs"),
        ],
    )
    def test_an_inconclusive_level_says_what_it_would_take(self, needed: int, said: str) -> None:
        assert f"  at 4: {said}." in words(level(4, "inconclusive", pairs_needed=needed))


class TestWhy:
    def arm(self, *found: LevelFactors | None, **fields: Any) -> ArmResult:
        levels = [level(one.concurrency if one else 1, "pays", factors=one) for one in found]
        return ArmResult("arm", "chat", levels, **fields)

    def test_the_factors_stand_beside_the_speedup(self) -> None:
        text = printed(*why(self.arm(factors()), "base"))
        assert "1.25x" in text
        assert "speedup = tok/pass x passes/iter / s/iter" in text
        assert ["64", "1.25x", "2.00x", "0.94x", "1.50x", "150.0", "150.0"] in [
            row.split() for row in text.splitlines()
        ]

    def test_without_iterations_there_are_two(self) -> None:
        text = printed(*why(self.arm(factors(per_iteration=False)), "base"))
        assert "speedup = tok/pass x passes/s" in text
        assert ["64", "1.25x", "2.00x", "0.62x"] in [row.split() for row in text.splitlines()]

    def test_what_is_unavailable_is_na(self) -> None:
        text = printed(*why(self.arm(factors(tokens_per_pass=None, passes_per_iteration=None)), "base"))
        assert ["64", "1.25x", "n/a", "n/a", "1.50x", "150.0", "150.0"] in [row.split() for row in text.splitlines()]

    def test_what_they_imply_is_said_after_them(self) -> None:
        parts = list(why(self.arm(factors(1), factors(64, sentence="at 64 compute is saturated")), "base"))
        assert parts[-1] == "  at 64 compute is saturated."

    def test_a_reason_that_levels_share_is_said_once(self) -> None:
        parts = list(why(self.arm(factors(1, reason="no counter"), factors(64, reason="no counter")), "base"))
        assert parts[-1] == "  at 1, 64: no counter."

    def test_without_a_pair_there_is_nothing(self) -> None:
        assert list(why(self.arm(None), "base")) == []

    def test_synthetic_acceptance_is_in_its_title(self) -> None:
        assert "synthetic acceptance" in printed(*why(self.arm(factors(), synthetic=True), "base"))


class TestAcceptanceTables:
    def arm(self, **found: Any) -> ArmResult:
        nothing: dict[str, Any] = {"by_position": [], "by_category": [], "by_context": []}
        return ArmResult("arm", "chat", [], acceptance=Acceptance(**{**nothing, **found}))

    def test_by_position(self) -> None:
        text = printed(*acceptance_tables(self.arm(by_position=[Position(1, 10, 20, 5), Position(2, None, 20, 2)])))
        rows = [row.split() for row in text.splitlines()]
        assert ["1", "50.0%", "25.0%", "20"] in rows
        assert ["2", "n/a", "10.0%", "20"] in rows

    def test_by_group(self) -> None:
        group = AcceptanceGroup("rename", 7, steps=10, drafted=40, accepted=20, tokens_per_pass=None)
        text = printed(*acceptance_tables(self.arm(by_category=[group])))
        assert ["rename", "7", "50.0%", "3.00", "n/a"] in [row.split() for row in text.splitlines()]

    def test_a_category_from_outside_is_no_markup(self) -> None:
        group = AcceptanceGroup("[red]x\x1b[2J", 7, 1, 4, 2, None)
        assert "[red]x " in printed(*acceptance_tables(self.arm(by_context=[group])))

    def test_what_is_unavailable_has_no_table(self) -> None:
        assert acceptance_tables(self.arm()) == []


def test_the_error_that_came_most_often_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {("a", 1): [(150.0, 100.0)]}, failed={("a", 1): 1})
    said = sentences(run, crossover(run), level_stats(run))
    assert "a (arm) at 1: 1 of 4 requests failed, 1 of them with: no answer." in said


class TestOrder:
    def test_doubts_come_before_any_number(self) -> None:
        result = Crossover(
            "base", [ArmResult("arm", "chat", [level(1, "costs")])], ["arm: this draft does nothing here"]
        )
        first, second, *_ = answer(Run(MEASURED), result, [])
        assert first == "arm: this draft does nothing here."
        assert isinstance(second, Table)

    def test_a_real_run_reads_from_answer_to_cause_to_acceptance(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = Run(MEASURED)
        show(answer(run, crossover(run), level_stats(run)))
        text = capsys.readouterr().out
        marks = [
            "verdict",
            "lab-ngram pays up to",
            "why, lab-ngram over lab-baseline",
            "at 64 ",
            "acceptance by position",
        ]
        places = [text.index(mark) for mark in marks]
        assert places == sorted(places)


class TestTable:
    def stats(self, side: str) -> LevelStats:
        return LevelStats(
            **{"arm": "arm", "side": side, "workload": "chat", "concurrency": 4, "cells": 6, "requests": 96},  # type: ignore[arg-type]
            **{"failed": 0, "tokens_per_second": 100.0, "ttft_ms": None, "tpot_ms": None, "tokens_per_pass": 1.7},  # type: ignore[arg-type]
            **{"drafted": 10, "accepted": 6, "steps": 4, "mean_tokens_held": 50.0, "per_request": True},  # type: ignore[arg-type]
        )

    def shown(self, *levels: Level, **arm: Any) -> str:
        found = Crossover("base", [ArmResult("arm", "chat", list(levels), **arm)])
        return printed(*crossover_table(found, [self.stats("arm"), self.stats("baseline")]))

    def test_it_fits_into_80_columns(self) -> None:
        text = self.shown(level(1024, "inconclusive", low=0.95, high=1.06, running=500.0))
        assert "1.50x [0.95, 1.06]" in text
        assert "inconclusive" in text
        assert "…" not in text

    def test_a_level_that_never_ran_is_marked(self) -> None:
        text = self.shown(level(4, "pays", running=4.0), level(64, "inconclusive", running=22.0))
        assert [row.split()[0] for row in text.splitlines() if "1.50x" in row] == ["4", "64*"]
        assert "* the server was never seen to run that many requests at once" in text

    def test_the_mark_is_explained_only_where_it_stands(self) -> None:
        assert "*" not in self.shown(level(4, "pays", running=4.0))

    def test_synthetic_acceptance_is_in_its_title(self) -> None:
        assert "arm (synthetic acceptance: for sizing only)" in " ".join(
            self.shown(level(4, "pays"), synthetic=True).split()
        )

    def test_what_is_unavailable_is_said_to_be(self) -> None:
        assert speedup_text(level(4, "inconclusive", speedup=None, low=None, high=None)) == "n/a"
