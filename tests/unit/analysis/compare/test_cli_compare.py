"""`toolkit compare` as a person meets it: tables, JSON, a plot, refusals; and what a report makes of it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from toolkit.analysis.report import report
from toolkit.analysis.run import Run
from toolkit.cli import app
from toolkit.errors import InputError
from toolkit.terminal import NONE

MakeContender = Callable[..., Run]
RUNS = Path(__file__).parents[4] / "tests" / "data" / "runs"
TWO_METHODS = RUNS / "lab-two-methods"  # lab-ngram and lab-draft share a baseline, so their prompts differ
ONE_ARM = RUNS / "lab-copy-code"
HEADING = "Acceptance, compared"
ESTIMATE = ["value", "low", "high", "prompts"]


def toolkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolkit", "compare", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plots")


@pytest.fixture(scope="module")
def real(plots: Path) -> subprocess.CompletedProcess[str]:
    """Two methods of one recorded sweep, as JSON."""
    options = ("--allow", "prompts", "--concurrency", "4", "--json", "--plot", str(plots / "real.svg"))
    return toolkit(str(TWO_METHODS), *options)


@pytest.fixture(scope="module")
def shown(plots: Path) -> str:
    options = ("--allow", "prompts", "--concurrency", "4", "--plot", str(plots / "shown.png"))
    return run(str(TWO_METHODS), *options).stdout


@pytest.fixture(scope="module")
def twice(plots: Path) -> dict[str, Any]:
    """One recorded sweep against its copy."""
    copy = Path(shutil.copytree(ONE_ARM, plots / "copy"))
    done = run(str(ONE_ARM), str(copy), "--concurrency", "4", "--json", "--plot", str(plots / "twice.svg"))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class TestJson:
    def test_it_is_all_that_stands_on_stdout(self, real: subprocess.CompletedProcess[str]) -> None:
        assert list(json.loads(real.stdout)) == [
            *("schema", "definitions", "contenders", "left_out", "allowed", "idle", "labels", "caveats"),
            *("disagreements", "levels"),
        ]

    def test_where_the_plot_is_stands_on_stderr(self, real: subprocess.CompletedProcess[str], plots: Path) -> None:
        assert (real.returncode, "".join(real.stderr.split())) == (0, f"plot:{plots / 'real.svg'}")

    def test_the_plot_is_there(self, real: subprocess.CompletedProcess[str], plots: Path) -> None:
        assert "<svg" in (plots / "real.svg").read_text()

    def test_its_schema_is_1(self, real: subprocess.CompletedProcess[str]) -> None:
        assert json.loads(real.stdout)["schema"] == 1

    def test_a_contender_says_where_it_comes_from(self, twice: dict[str, Any]) -> None:
        assert list(twice["contenders"][0]) == [
            *("name", "run", "arm", "engine", "engine_version", "method", "k", "verified_per_step", "draft", "model"),
            *("model_identity", "precision"),
        ]

    def test_a_level_has_its_keys(self, twice: dict[str, Any]) -> None:
        (level,) = twice["levels"]
        assert list(level) == ["concurrency", "prompts", "paired", "contenders", "differences", "answers"]

    def test_a_row_has_its_keys(self, twice: dict[str, Any]) -> None:
        assert list(twice["levels"][0]["contenders"][0]) == [
            *("name", "requests", "dropped", "steps", "drafted", "accepted", "completion_tokens", "passes"),
            *("acceptance_length", "tokens_per_pass", "draft_acceptance_rate"),
            *("by_position", "by_position_reason", "own", "aggregate"),
        ]

    @pytest.mark.parametrize("name", ["acceptance_length", "tokens_per_pass", "draft_acceptance_rate"])
    def test_a_ratio_has_its_interval_its_prompts_and_a_reason(self, twice: dict[str, Any], name: str) -> None:
        assert list(twice["levels"][0]["contenders"][0][name]) == [*ESTIMATE, "reason"]

    def test_a_position_has_both_definitions(self, twice: dict[str, Any]) -> None:
        first = twice["levels"][0]["contenders"][0]["by_position"][0]
        assert {name: list(value) for name, value in first.items() if name != "position"} == {
            "unconditional": ESTIMATE,
            "given": ESTIMATE,
        }

    def test_a_difference_has_its_keys(self, twice: dict[str, Any]) -> None:
        assert list(twice["levels"][0]["differences"][0]) == [
            *("one", "other", "quantity", "position", "difference", "low", "high", "prompts", "word", "reason"),
        ]

    def test_a_recorded_sweep_against_its_copy_differs_by_nothing(self, twice: dict[str, Any]) -> None:
        (level,) = twice["levels"]
        assert level["paired"] is True
        assert {(one["difference"], one["low"], one["high"]) for one in level["differences"]} == {(0, 0, 0)}

    def test_what_was_allowed_is_labelled(self, real: subprocess.CompletedProcess[str]) -> None:
        found = json.loads(real.stdout)
        assert found["allowed"] == ["prompts"]
        assert found["labels"][0].startswith("too few prompts were answered by all")


class TestTables:
    @pytest.mark.parametrize("arm", ["lab-ngram", "lab-draft"])
    def test_both_arms_have_a_row(self, shown: str, arm: str) -> None:
        assert re.search(rf"^ {arm} +vllm 0\.32\.0 +4 +\d\.\d\d ± \d\.\d\d", shown, re.MULTILINE)

    def test_their_difference_names_both_with_a_word(self, shown: str) -> None:
        assert re.search(r"^ lab-ngram - lab-draft +length +-\d\.\d\d ± \d\.\d\d +less", shown, re.MULTILINE)

    def test_what_was_allowed_is_said_first(self, shown: str) -> None:
        assert shown.startswith("allowed: too few prompts were answered by all")

    def test_what_was_allowed_stands_over_each_table(self, shown: str) -> None:
        assert shown.count("(prompts allowed to differ)") == 2

    @pytest.mark.parametrize("formula", ["accepted / drafted", "1 + accepted / steps that carried a draft"])
    def test_the_definitions_are_printed(self, shown: str, formula: str) -> None:
        assert f"= {formula}." in shown

    def test_acceptance_by_position_is_shown(self, shown: str) -> None:
        assert re.search(r"^ lab-ngram( +\d+% \(\d+%\)){4}", shown, re.MULTILINE)

    def test_the_plot_goes_into_the_first_run_unless_told(self, contender: MakeContender) -> None:
        runs = [contender("a").folder, contender("b").folder]
        run(*map(str, runs))
        assert [(folder / "compare.png").exists() for folder in runs] == [True, False]

    def test_a_draft_that_does_nothing_is_said_before_any_number(self, contender: MakeContender) -> None:
        runs = [contender("a", lambda _: {"accepted": 0}), contender("b")]
        assert run(*(str(one.folder) for one in runs)).stdout.startswith("a: this draft does nothing here")

    def test_what_no_answer_tells_is_shown_as_unavailable(self, contender: MakeContender) -> None:
        silent = {"steps": None, "drafted": None, "accepted": None, "passes": None}
        runs = [contender("a", lambda _: silent), contender("b")]
        assert re.search(
            rf"^ a +vllm 0\.32\.0 +4 +{NONE} +{NONE} +{NONE}",
            run(*(str(one.folder) for one in runs)).stdout,
            re.MULTILINE,
        )

    def test_a_name_is_no_markup(self, contender: MakeContender) -> None:
        runs = [contender("[red]a[/red]", folder="one"), contender("b")]
        assert "[red]a[/red]" in run(*(str(one.folder) for one in runs)).stdout


class TestRefusals:
    def test_exit_code_2_and_one_message(self) -> None:
        done = toolkit(str(TWO_METHODS))
        assert (done.returncode, done.stdout, done.stderr.count("toolkit: ")) == (2, "", 1)
        assert done.stderr.startswith("toolkit: these contenders are not alike:\n  prompts: too few prompts")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("nowhere",), "nowhere: not a Run directory, it holds no run.json."),
            ((str(TWO_METHODS), "--allow", "nonsense"), "--allow nonsense: one or more of depth (draft lengths that"),
            ((str(TWO_METHODS), "--arm", "nobody"), "--arm nobody: these Runs have lab-ngram, lab-draft."),
            ((str(ONE_ARM),), f"{ONE_ARM}: arms that speculate: 1; a comparison takes two."),
        ],
        ids=["no Run", "nonsense", "no arm", "one arm"],
    )
    def test_it_says_what_is_wrong_and_where(self, arguments: tuple[str, ...], said: str) -> None:
        done = run(*arguments)
        assert isinstance(done.exception, InputError)
        assert (done.stdout, done.exception.exit_code) == ("", 2)
        assert str(done.exception).startswith(said)

    def test_a_plot_of_another_kind_is_refused(self, contender: MakeContender, tmp_path: Path) -> None:
        runs = [contender("a").folder, contender("b").folder]
        assert isinstance(run(*map(str, runs), "--plot", str(tmp_path / "plot.doc")).exception, InputError)

    def test_the_refused_leave_no_plot(self, contender: MakeContender) -> None:
        runs = [contender("a").folder, contender("b", arm={"num_speculative_tokens": 2}).folder]
        assert isinstance(run(*map(str, runs)).exception, InputError)
        assert not (runs[0] / "compare.png").exists()


class TestReport:
    @staticmethod
    def page(path: Path, *runs: Run, **options: Any) -> str:
        report(runs, path, **options)
        return path.read_text()

    def test_of_runs_that_are_alike_it_compares_them(self, contender: MakeContender, tmp_path: Path) -> None:
        assert HEADING in self.page(tmp_path / "page.html", contender("a"), contender("b"))

    def test_of_runs_that_are_not_it_does_not(self, contender: MakeContender, tmp_path: Path) -> None:
        other = contender("b", arm={"num_speculative_tokens": 2})
        assert HEADING not in self.page(tmp_path / "page.html", contender("a"), other)

    def test_of_one_run_it_does_not(self, contender: MakeContender, tmp_path: Path) -> None:
        assert HEADING not in self.page(tmp_path / "page.html", contender("a"))

    def test_allowed_it_says_what_differs(self, contender: MakeContender, tmp_path: Path) -> None:
        other = contender("b", arm={"num_speculative_tokens": 2})
        page = self.page(tmp_path / "page.html", contender("a"), other, allow=["depth"])
        assert "allowed: the draft lengths differ: a K = 4, b K = 2." in page

    def test_it_refuses_what_else_differs_where_something_was_allowed(
        self, contender: MakeContender, tmp_path: Path
    ) -> None:
        runs = [contender("a"), contender("b", arm={"model": "x"})]
        with pytest.raises(InputError, match="the target models differ"):
            report(runs, tmp_path / "page.html", allow=["depth"])

    def test_its_heading_says_the_difference_in_words(self, contender: MakeContender, tmp_path: Path) -> None:
        better = contender("a", lambda i: {"passes": (5, 5) if i % 2 else (4, 4)})
        page = self.page(tmp_path / "page.html", better, contender("b"))
        assert "At concurrency 4: a: 1.94 tokens per pass more than b" in page
