"""A report opens from disk and needs nothing else, says the answer first, and lets no text from outside be markup."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from toolkit.analysis import report as report_package
from toolkit.analysis.crossover import crossover
from toolkit.analysis.forecast.cost import Curve, MeasuredCost, Point
from toolkit.analysis.forecast.own_cost import own_cost
from toolkit.analysis.forecast.predict import Prediction
from toolkit.analysis.levels import level_stats
from toolkit.analysis.report import report
from toolkit.analysis.report.acceptance import acceptance
from toolkit.analysis.report.speedup import plan, speedups, why
from toolkit.analysis.run import Run
from toolkit.errors import InputError
from toolkit.terminal import sentences

MakeRun = Callable[..., Run]
LAB = Path(__file__).parents[4] / "tests" / "data" / "runs" / "lab-copy-code"
VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}&\u202e\x1b[31m"
PAYS = [(100 * speedup, 100.0) for speedup in (1.5, 1.52, 1.48, 1.51, 1.49, 1.5)]
COST = MeasuredCost(
    created="2026-11-30T00:00:00+00:00",
    name="lab-baseline",
    model="lab/SmolLM2-135M-Instruct",
    hardware={},
    overhead=0.0,
    plain=Curve(
        points=[Point(tokens=n, seconds=0.05 + 0.0006 * n, low=0, high=1, repeats=5) for n in (1, 64, 512)], context=0
    ),
)


class Elements(HTMLParser):
    """The elements of a page with their attributes, its text, and whatever was not closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def parse(html: str) -> Elements:
    parser = Elements()
    parser.feed(html)
    parser.close()
    return parser


def texts(html: str, tag: str) -> list[str]:
    return [text.strip() for text in parse(html).text.get(tag, []) if text.strip()]


def hide_counts(folder: Path) -> None:
    """Let no response tell its acceptance."""
    path = folder / "requests.jsonl"
    path.write_text(re.sub(r',"(steps|drafted|accepted)":\d+|,"passes":\[\d+,\d+\]', "", path.read_text()))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes the report of Runs and reads it."""

    def written(*runs: Run) -> str:
        report(runs, tmp_path / "report.html")
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return written


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lab") / "report.html"
    report([Run(LAB)], path)
    return path.read_text(encoding="utf-8")


class TestOneFile:
    def test_it_is_small(self, lab: str) -> None:
        assert len(lab.encode()) < 500_000

    def test_over_two_megabytes_is_refused(
        self, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report_package, "LARGEST", 1000)
        with pytest.raises(InputError, match="name fewer Runs"):
            report([make_run(tmp_path / "run", {("a", 1): PAYS})], tmp_path / "report.html")
        assert not (tmp_path / "report.html").exists()

    def test_it_loads_nothing(self, lab: str) -> None:
        loads = [
            (tag, name, value)
            for tag, attributes in parse(lab).found
            for name, value in attributes.items()
            if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href", "background")
            and not (value or "").startswith(("#", "data:"))
        ]
        assert loads == []
        assert not re.search(r"@import|url\((?!#)", lab)

    def test_it_holds_no_script(self, lab: str) -> None:
        elements = parse(lab).found
        assert "script" not in {tag for tag, _ in elements}
        assert [name for _, attributes in elements for name in attributes if name.startswith("on")] == []

    def test_its_policy_allows_its_own_styles_alone(self, lab: str) -> None:
        (policy,) = [a["content"] for tag, a in parse(lab).found if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

    def test_every_element_is_closed(self, lab: str) -> None:
        parser = parse(lab)
        assert (parser.wrong, parser.open) == ([], [])

    def test_every_id_is_there_once(self, lab: str) -> None:
        ids = [attributes["id"] for _, attributes in parse(lab).found if "id" in attributes]
        assert len(set(ids)) == len(ids)

    def test_every_figure_is_an_image_with_a_text_alternative(self, lab: str) -> None:
        images = [attributes for tag, attributes in parse(lab).found if tag == "svg"]
        assert len(images) == 2 * 4
        assert all(image.get("role") == "img" and image.get("aria-label") for image in images)

    def test_the_same_runs_give_the_same_bytes(self, lab: str, write: Callable[..., str]) -> None:
        assert write(Run(LAB)) == lab

    def test_a_disk_that_refuses_is_said(self, make_run: MakeRun, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be written"):
            report([make_run(tmp_path / "run", {("a", 1): PAYS})], tmp_path / "nowhere" / "report.html")


class TestPage:
    def test_the_answer_comes_first(self, lab: str) -> None:
        assert texts(lab, "h1") == ["lab-ngram pays up to concurrency 16 and was not seen to cost."]
        assert lab.index("<h1>") < lab.index("<h2>") < lab.index("<svg")

    def test_several_runs_say_on_what(self, make_run: MakeRun, tmp_path: Path, write: Callable[..., str]) -> None:
        runs = [make_run(tmp_path / name, {("a", 1): PAYS}, workload=name) for name in ("chat", "extract")]
        html = write(*runs)
        (answer,) = texts(html, "h1")
        assert "; on extract, a pays" in answer
        assert [attributes["id"] for tag, attributes in parse(html).found if tag == "article"] == ["run-1", "run-2"]

    def test_synthetic_acceptance_is_for_sizing_only_above_all_and_in_every_figure(
        self, make_run: MakeRun, tmp_path: Path, write: Callable[..., str]
    ) -> None:
        config = '{"rejection_sample_method": "synthetic"}'
        html = write(
            make_run(tmp_path / "run", {("a", 1): PAYS}, arm={"argv": ["vllm", "--speculative-config", config]})
        )
        (answer,) = texts(html, "h1")
        assert answer.startswith("a (synthetic acceptance: for sizing only) pays")
        assert any("synthetic acceptance" in text for text in texts(html, "p"))
        svgs = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
        assert svgs
        assert all("synthetic" in svg for svg in svgs)


class TestUntrusted:
    page = ""  # made once for all tests of this class

    @pytest.fixture
    def html(self, make_run: MakeRun, tmp_path: Path, write: Callable[..., str]) -> str:
        TestUntrusted.page = TestUntrusted.page or write(self.hostile_run(make_run, tmp_path))
        return TestUntrusted.page

    def hostile_run(self, make_run: MakeRun, tmp_path: Path) -> Run:
        facts = {"model": HOSTILE, "engine_version": HOSTILE, "facts": {HOSTILE: HOSTILE}, "env": {HOSTILE: HOSTILE}}
        run = make_run(
            tmp_path / "run",
            {(HOSTILE, 1): PAYS},
            workload=HOSTILE,
            baseline=f"base {HOSTILE}",
            arm={**facts, "argv": ["vllm", HOSTILE]},
            failed={(HOSTILE, 1): 1},
            target=HOSTILE,
            change=HOSTILE,
            hardware={HOSTILE: HOSTILE},
            defaults=[HOSTILE],
        )
        path = run.folder / "requests.jsonl"
        path.write_text(path.read_text().replace('"no answer"', '"<script>error</script>"'))
        return Run(run.folder)

    def test_no_text_becomes_an_element(self, html: str) -> None:
        assert {tag for tag, _ in parse(html).found} & {"script", "img", "iframe", "object"} == set()

    def test_no_text_becomes_an_attribute(self, html: str) -> None:
        names = {name for _, attributes in parse(html).found for name in attributes}
        assert not [name for name in names if name.startswith("on")]

    def test_every_element_is_closed(self, html: str) -> None:
        parser = parse(html)
        assert (parser.wrong, parser.open) == ([], [])

    def test_no_text_is_a_template(self, html: str) -> None:
        assert "{{ 7*7 }}" in html
        assert "49&amp;" not in html

    def test_no_text_turns_its_direction_or_moves_a_cursor(self, html: str) -> None:
        assert not {"\u202e", "\x1b"} & set(html)

    def test_the_error_of_a_request_is_shown_as_text(self, html: str) -> None:
        assert "&lt;script&gt;error&lt;/script&gt;" in html


class TestUnavailable:
    def test_acceptance_says_why_and_which_flag(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", {("a", 1): PAYS})
        hide_counts(run.folder)
        run = Run(run.folder)
        section = acceptance(run, crossover(run).results[0], "name", "")
        assert section.heading == "What a accepts is unavailable"
        assert "--per-request-spec-decode-metrics detailed" in section.texts[0]

    def test_factors_say_why(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", {("a", 1): PAYS}, baseline=None)
        section = why(crossover(run).results[0], "name", "")
        assert section.heading == "Why a gains or loses is unavailable"
        assert section.texts

    def test_a_level_without_a_verdict_says_why(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", {("a", 1): PAYS[:2]})
        assert "a at 1: 2 pairs measured, 5 are needed." in speedups(run, crossover(run), "name", "").remarks

    def test_factors_that_are_unknown_do_not_silence_what_is_known(self, make_run: MakeRun, tmp_path: Path) -> None:
        peaks = {"counters": [], "running_peak": 2.0}
        run = make_run(tmp_path / "run", {("a", 4): PAYS}, cell=peaks)
        hide_counts(run.folder)
        cells = (run.folder / "cells.jsonl").read_text().splitlines(keepends=True)
        seen = [
            line.replace('"running_peak":2.0', '"running_peak":4.0') if '"side":"baseline"' in line else line
            for line in cells
        ]
        (run.folder / "cells.jsonl").write_text("".join(seen))
        section = why(crossover(Run(run.folder)).results[0], "name", "")
        assert section.texts[0] == "At 4 only 2 of 4 requests run, the baseline runs 4."
        assert "tokens per pass are unavailable" in section.texts[1]

    def test_an_inconclusive_level_says_what_it_would_take_as_the_terminal_does(
        self, make_run: MakeRun, tmp_path: Path
    ) -> None:
        run = make_run(tmp_path / "run", {("a", 1): [(100.1, 100.0), (99.9, 100.0)] * 3})
        result = crossover(run)
        told = "a at 1: an effect of 10 % would have shown in 9 of 10 sweeps of 6 pairs."
        assert told in speedups(run, result, "name", "").remarks
        assert told.removeprefix("a ") in [line.strip() for line in sentences(run, result, level_stats(run))]

    def test_without_a_cost_the_plan_says_what_measures_it(self) -> None:
        section = plan(Run(LAB), None)
        assert section.heading == "The plan is unavailable"
        assert "toolkit verify-cost" in section.texts[0]


class TestRefused:
    def test_a_run_without_finished_cells(self, make_run: MakeRun, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no cell of an arm of this run is finished"):
            report([make_run(tmp_path / "run", {})], tmp_path / "report.html")

    def test_a_run_that_was_killed_after_its_first_baseline_cell(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", {("a", 1): PAYS[:1]})
        for file in ("cells.jsonl", "requests.jsonl"):
            lines = (run.folder / file).read_text().splitlines(keepends=True)
            (run.folder / file).write_text("".join(line for line in lines if '"side":"baseline"' in line))
        with pytest.raises(InputError, match="no cell of an arm of this run is finished"):
            report([Run(run.folder)], tmp_path / "report.html")

    def test_a_run_that_is_not_whole(self, make_run: MakeRun, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="not whole"):
            report([make_run(tmp_path / "run", {("a", 1): PAYS}, on_disk=1)], tmp_path / "report.html")


class TestPlan:
    def test_predicted_stands_beside_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [
            Prediction("a", 1, 4, 1.65, "weights", "cost of here", measured=1.5),
            Prediction("a", 4, 4, 2.0, "compute", "cost of here", measured=1.5),
            Prediction("a", 8, 4, 2.0, "compute", "cost of here", measured=None),
        ]
        monkeypatch.setattr("toolkit.analysis.report.speedup.predictions", lambda run, cost: found)
        section = plan(Run(LAB), COST)
        assert section.heading == "The plan came within 15% of the measurement at 1 of 2 points"
        assert section.tables[0].rows[0] == ("1", "4", "1.65x", "1.50x", "+10%", "weights")
        assert section.tables[0].rows[2][3:5] == ("n/a", "n/a")

    def test_without_a_measured_speedup_there_is_no_score(self, make_run: MakeRun, tmp_path: Path) -> None:
        section = plan(make_run(tmp_path / "run", {("a", 1): PAYS}, baseline=None), COST)
        assert section.heading == "What the cost of a pass and the acceptance imply"
        assert section.tables

    def test_a_cost_of_the_run_itself_is_no_test(self) -> None:
        run = Run(LAB)
        section = plan(run, own_cost(run))
        assert section.heading == "What the baseline's iterations and the acceptance imply"
        assert "the arm's own time was not used" in section.texts[0]
        assert section.tables[0].rows[0][3] == "1.41x"

    def test_an_arm_that_does_not_speculate_is_not_planned(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", {("a", 1): PAYS}, arm={"method": "none", "speculates": False})
        assert not plan(run, COST).tables

    def test_a_measured_cost_predicts_every_level(self) -> None:
        section = plan(Run(LAB), COST)
        assert [row[0] for row in section.tables[0].rows] == ["1", "4", "16", "64"]

    @pytest.mark.parametrize(
        ("of", "said"),
        [
            ({"model": "other"}, "The cost is of another model, other."),
            ({"hardware": {"cpu": "other"}}, "The cost was measured on another machine than this Run."),
        ],
        ids=["model", "machine"],
    )
    def test_a_cost_of_something_else_is_said(self, of: dict[str, Any], said: str) -> None:
        assert said in plan(Run(LAB), COST.model_copy(update=of)).remarks
        assert said not in plan(Run(LAB), COST).remarks

    def test_a_run_with_a_cost_of_its_own_is_predicted_from_that(
        self, make_run: MakeRun, tmp_path: Path, write: Callable[..., str]
    ) -> None:
        run = make_run(tmp_path / "run", {("a", 1): PAYS})
        (run.folder / "cost.json").write_text(COST.model_dump_json(by_alias=True))
        assert any(text.startswith("The plan came within 15%") for text in texts(write(run), "h3"))


class TestLabRun:
    """The committed real run."""

    def test_the_speedup_at_one(self, lab: str) -> None:
        cells = texts(lab, "td")
        assert cells[:4] == ["1", "1.41x", "1.28–1.56", "▲ pays"]

    def test_acceptance_by_category(self, lab: str) -> None:
        assert {"explain", "rename", "repeat"} <= set(texts(lab, "td"))

    def test_where_it_comes_from(self, lab: str) -> None:
        said = texts(lab, "dd")
        for fact in ("vllm 0.32.0", "93,184 tokens", "synchronous", "0608c0b251fe6cb7", "copy-code: generated, seed 0"):
            assert fact in said
