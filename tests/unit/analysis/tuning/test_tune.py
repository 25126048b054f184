"""Tuning with planted truths: what is refused, what is dropped and chosen, what a second measurement keeps."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer

from toolkit.analysis.arms import Arm
from toolkit.analysis.ask import Ask
from toolkit.analysis.prepare import sweep
from toolkit.analysis.records import CounterReading
from toolkit.analysis.run import ArmInfo, Run
from toolkit.analysis.tuning import tune as tune_module
from toolkit.analysis.tuning.result import Tuning
from toolkit.analysis.tuning.runs import tuning_of
from toolkit.analysis.tuning.schedule import k_at
from toolkit.analysis.tuning.tune import TuneAsk, tune
from toolkit.errors import EngineError, InputError
from toolkit.launch.profile import load_profile

MakeRun = Callable[..., Run]


class Quiet:
    """Progress that only remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


@dataclass
class Planted:
    """A sweep that measures planted speedups: `truth(k, level)`, under a schedule of the K that it sets.

    `noise` is the standard deviation of a log ratio. `after` replaces the truth of a Run directory by its name.
    `dies_after` cells the engine dies, once.
    """

    make_run: MakeRun
    truth: Callable[[int, int], float]
    noise: float = 0.02
    after: dict[str, Callable[[int, int], float]] = field(default_factory=dict)
    cell: Mapping[str, Any] = field(default_factory=dict)
    dies_after: int | None = None
    opposed: bool = True  # the truth holds for the baseline too; else it stands still
    asked: list[Ask] = field(default_factory=list)
    pairs: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)

    def __call__(self, ask: Ask, progress: Any, drop: Any = None) -> Path:
        self.asked.append(ask)
        assert ask.run is not None
        assert ask.opponent is not None
        name = ask.run.name
        rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
        levels = [int(part) for part in (ask.concurrency or "").split(",")]
        infos = [info_of(arm) for arm in ask.arms]
        pairs = self.pairs.setdefault(name, [])
        for number in range(1, (ask.rounds or 0) + 1):
            gone = frozenset() if drop is None or number == 1 else drop(Run(ask.run), number - 1)
            for arm in ask.arms:
                for level in levels:
                    if (arm.name, level) in gone:
                        continue
                    if self.dies_after is not None and len(pairs) >= self.dies_after:
                        self.dies_after = None
                        raise EngineError("the engine died")
                    place = (arm.name, level, number)
                    if place not in pairs:
                        pairs.append(place)
                    rates.setdefault((arm.name, level), []).append(self.pair(name, ask, arm, level, number))
            self.make_run(
                ask.run,
                rates,
                baseline=ask.opponent.name,
                arms=infos,
                levels=levels,
                cell=self.cell,
                rounds=ask.rounds,
                on_disk=None if number == ask.rounds else 0,  # only the last one is read whole
                hardware={"cpu": "a CPU", "cores": 2},
            )
        return ask.run

    def pair(self, name: str, ask: Ask, arm: Arm, level: int, number: int) -> tuple[float, float]:
        rng = random.Random(f"{name}/{arm.name}/{level}/{number}")
        truth = self.after.get(name, self.truth)
        ours, theirs = truth(k_of(arm, level), level), 1.0
        if self.opposed and ask.opponent is not None:
            theirs = truth(k_of(ask.opponent, level), level)
        base = 100.0 * level
        return base * ours / theirs * math.exp(rng.gauss(0, self.noise)), base

    def rounds_of(self, arm: str) -> dict[int, int]:
        """Rounds explored by level."""
        return dict(Counter(level for name, level, _ in self.pairs["explore"] if name == arm))

    def levels_of(self, name: str) -> list[int]:
        return sorted({level for _, level, _ in self.pairs[name]})


def k_of(arm: Arm, level: int) -> int:
    speculation = arm.profile.speculation if arm.profile else None
    if speculation is None:
        return 0
    return k_at(speculation.schedule, level) if speculation.schedule else speculation.num_speculative_tokens


def info_of(arm: Arm) -> ArmInfo:
    assert arm.profile is not None
    assert arm.profile.speculation is not None
    speculation = arm.profile.speculation
    return ArmInfo(
        name=arm.name,
        engine="vllm",
        engine_version="0.32.0",
        model="m",
        method=speculation.method,
        num_speculative_tokens=speculation.num_speculative_tokens,
        speculates=True,
        facts={"schedule": str([list(one) for one in speculation.schedule])} if speculation.schedule else {},
    )


def falling(k: int, level: int) -> float:
    """Pays at 1 and 4, most with K = 4; costs from 16 on; K = 8 is hopeless."""
    if k == 0:
        return 1.0
    by_k = {1: 1.20, 2: 1.40, 4: 1.60, 8: 0.60}[k]
    return by_k if level <= 4 else by_k * 0.55


@pytest.fixture
def planted(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Planted:
    monkeypatch.chdir(tmp_path)
    stub = Planted(make_run, falling)
    monkeypatch.setattr(tune_module, "sweep", stub)
    return stub


def ask_of(**fields: Any) -> TuneAsk:
    defaults = {"profile": "lab-ngram", "concurrency": "1,4,8", "run": Path("run"), "rounds": 5}
    return TuneAsk(**{**defaults, **fields})


@dataclass
class Kept:
    """One tuning that is kept, for all that only look at it."""

    tuning: Tuning
    planted: Planted
    progress: Quiet
    folder: Path

    @property
    def path(self) -> Path:
        assert self.tuning.path is not None
        return self.tuning.path


@pytest.fixture(scope="module")
def kept(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder, stub, progress = tmp_path_factory.mktemp("kept"), Planted(make_run, falling), Quiet()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune_module, "sweep", stub)
        tuning = tune(ask_of(run=folder / "run", out=folder / "lab-ngram-tuned.yaml"), progress)
    return Kept(tuning, stub, progress, folder / "run")


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"profile": "lab-baseline"}, "lab-baseline does not speculate, so there is no schedule to tune"),
            (
                {"changes": ["engine_args=[-dp, '2']"]},
                "lab-ngram cannot follow a schedule: under data parallelism vLLM",
            ),
            ({"concurrency": "4"}, "--concurrency 4: a schedule needs two levels or more"),
            ({"concurrency": "1,128"}, "--concurrency 128: lab-ngram runs at most 64 requests at once"),
            ({"ks": "0"}, "--k 0: name a draft length above 0"),
            ({"ks": "1,65"}, "--k 1,65: each draft length once, from 0 to 64"),
            ({"ks": "1,1"}, "--k 1,1: each draft length once"),
            ({"ks": "-1,2"}, "--k -1,2: each draft length once, from 0"),
            ({"ks": "many"}, "--k many: whole numbers with commas"),
            ({"rounds": 4}, "--rounds 4: a verdict needs 5 pairs"),
            ({"requests": 35}, "--requests 35: a verdict at 9 needs 36 in a cell"),
            (
                {"requests": 31, "changes": ["limits.max_num_seqs=8"]},
                "--requests 31: a verdict at 8 needs 32 in a cell",
            ),
            ({"out": Path("lab-ngram.yaml")}, "--out lab-ngram.yaml: that is the profile's own name"),
            ({"out": Path("tuned.txt")}, "--out tuned.txt: a profile is a file named"),
            ({"out": Path("no/tuned.yaml")}, "--out no/tuned.yaml: there is no folder no"),
        ],
    )
    def test_it_is_refused_before_anything_starts(self, planted: Planted, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            tune(ask_of(**fields), Quiet())
        assert (planted.asked, Path("run").exists()) == ([], False)

    def test_a_file_of_somebody_else_is_not_overwritten(self, planted: Planted) -> None:
        Path("mine.yaml").write_text("extends: lab-ngram\n")
        with pytest.raises(InputError, match=r"mine\.yaml: was written, or changed, by somebody else"):
            tune(ask_of(out=Path("mine.yaml")), Quiet())

    def test_the_folder_of_another_tuning_is_refused(self, planted: Planted) -> None:
        tune(ask_of(), Quiet())
        with pytest.raises(InputError, match="run holds another tuning"):
            tune(ask_of(ks="1,2"), Quiet())

    def test_a_run_directory_is_no_tuning(self, planted: Planted) -> None:
        Path("run").mkdir()
        Path("run/run.json").write_text("{}")
        with pytest.raises(InputError, match="is not the folder of a tuning"):
            tune(ask_of(), Quiet())


class TestExplore:
    def test_every_k_is_an_arm_against_no_speculation(self, kept: Kept) -> None:
        explore = kept.planted.asked[0]
        assert explore.opponent is not None
        assert [(arm.name, k_of(arm, 1)) for arm in explore.arms] == [(f"lab-ngram-k{k}", k) for k in (1, 2, 4, 8)]
        assert (explore.opponent.name, k_of(explore.opponent, 1)) == ("lab-ngram-k0", 0)

    def test_what_is_dominated_is_measured_twice_and_no_more(self, kept: Kept) -> None:
        assert kept.planted.rounds_of("lab-ngram-k8") == {1: 2, 4: 2, 8: 2}

    def test_what_is_chosen_was_measured_in_every_round(self, kept: Kept) -> None:
        assert kept.planted.rounds_of("lab-ngram-k4") == {1: 5, 4: 5, 8: 2}

    def test_a_close_k_is_not_dropped(self, planted: Planted) -> None:
        planted.truth, planted.noise = (lambda k, level: {0: 1.0, 2: 1.42, 4: 1.4}[k]), 0.1
        tune(ask_of(ks="2,4"), Quiet())
        assert set(planted.rounds_of("lab-ngram-k2").values()) == {5}

    def test_what_is_dropped_is_told(self, kept: Kept) -> None:
        assert "lab-ngram-k8 at 1 is clearly dominated: not measured further" in kept.progress.stages

    @pytest.mark.parametrize("cells", [3, 13, 25])
    def test_a_tuning_that_goes_on_after_a_kill_drops_the_same(self, planted: Planted, cells: int) -> None:
        tune(ask_of(run=Path("whole")), Quiet())
        whole = planted.pairs.pop("explore")
        planted.dies_after = cells
        with pytest.raises(EngineError):
            tune(ask_of(), Quiet())
        tune(ask_of(), Quiet())
        assert planted.pairs["explore"] == whole

    def test_without_a_run_the_same_ask_goes_on(self, planted: Planted) -> None:
        planted.dies_after = 13
        with pytest.raises(EngineError):
            tune(ask_of(run=None), Quiet())
        tune(ask_of(run=None), Quiet())
        assert len(list(Path("runs").iterdir())) == 1

    def test_without_a_run_a_kept_schedule_that_has_not_met_its_parent_goes_on(
        self, planted: Planted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dying(ask: Ask, progress: Any, drop: Any = None) -> Path:
            if ask.run is not None and ask.run.name == "parent":
                raise EngineError("the engine died")
            return planted(ask, progress, drop)

        monkeypatch.setattr(tune_module, "sweep", dying)
        with pytest.raises(EngineError):
            tune(ask_of(run=None), Quiet())
        monkeypatch.setattr(tune_module, "sweep", planted)
        next(Path("runs").iterdir()).rename("runs/20200101-000000-lab-ngram-tune")
        assert tune(ask_of(run=None), Quiet()).parent is not None
        assert len(list(Path("runs").iterdir())) == 1

    def test_without_a_run_a_tuning_that_came_to_its_end_is_left(self, planted: Planted) -> None:
        tune(ask_of(run=None), Quiet())
        next(Path("runs").iterdir()).rename("runs/20200101-000000-lab-ngram-tune")
        tune(ask_of(run=None), Quiet())
        assert len(list(Path("runs").iterdir())) == 2

    def test_without_a_limit_it_is_off_from_one_above_the_highest_level(self, planted: Planted) -> None:
        planted.truth = lambda k, level: 1.0 if k == 0 else 1.4
        tuning = tune(ask_of(ks="1", changes=["limits.max_num_seqs=null"]), Quiet())
        assert (tuning.schedule, planted.levels_of("validate")) == ([(1, 8, 1), (9, 9, 0)], [1, 4, 7, 8, 9])

    def test_where_nothing_pays_nothing_is_written(self, planted: Planted) -> None:
        planted.truth = lambda k, level: 1.0 if k == 0 else 0.8
        tuning = tune(ask_of(), Quiet())
        assert (tuning.outcome, tuning.exit_code, tuning.path, len(planted.asked)) == ("does not pay", 0, None, 1)
        assert not list(Path().glob("*.yaml"))


class TestValidate:
    def test_it_is_measured_at_the_levels_and_around_the_threshold(self, kept: Kept) -> None:
        assert kept.planted.levels_of("validate") == [1, 3, 4, 5, 8]

    def test_it_has_other_prompts_than_the_choice(self, kept: Kept) -> None:
        assert len({ask.seed for ask in kept.planted.asked}) == len(kept.planted.asked) == 3

    def test_the_last_word_is_against_the_parent_at_the_levels(self, kept: Kept) -> None:
        opponent = kept.planted.asked[-1].opponent
        assert (opponent and opponent.name, kept.planted.levels_of("parent")) == ("lab-ngram", [1, 4, 8])
        assert [level.verdict for level in kept.tuning.parent or []][2:] == ["pays"]

    def test_a_schedule_that_is_the_parents_is_not_compared_with_it(self, planted: Planted) -> None:
        tune(ask_of(), Quiet())
        tune(ask_of(profile="./lab-ngram-tuned.yaml", run=Path("again"), out=Path("other.yaml")), Quiet())
        assert planted.asked[-1].run == Path("again/validate")

    def test_a_level_that_costs_is_lowered_and_measured_again(self, planted: Planted) -> None:
        planted.after["validate"] = lambda k, level: 0.8 if k and level >= 3 else falling(k, level)
        tuning = tune(ask_of(), Quiet())
        assert [one.schedule for one in tuning.validations] == [[(1, 4, 4), (5, 64, 0)], [(1, 1, 4), (2, 64, 0)]]
        assert tuning.outcome == "kept"

    def test_a_schedule_that_costs_twice_is_not_written(self, planted: Planted) -> None:
        for name in ("validate", "validate-2"):
            planted.after[name] = lambda k, level: 0.8 if level == 8 else falling(k, level)
        planted.opposed = False
        tuning = tune(ask_of(), Quiet())
        assert (tuning.outcome, tuning.exit_code, tuning.path) == ("not kept", 1, None)
        assert tuning.reason.startswith("The schedule does not hold: measured again, at 8 it costs: 0.8")

    def test_nothing_is_left_to_measure_when_all_of_it_costs(self, planted: Planted) -> None:
        planted.after["validate"] = lambda k, level: 0.8 if k else 1.0
        tuning = tune(ask_of(), Quiet())
        assert (tuning.outcome, len(tuning.validations)) == ("not kept", 1)

    def test_a_gain_that_does_not_come_back_is_no_gain(self, planted: Planted) -> None:
        planted.after["validate"], planted.noise = (lambda k, level: 1.0), 0.0
        tuning = tune(ask_of(), Quiet())
        assert (tuning.outcome, tuning.reason[:26]) == ("not kept", "The gain did not come back")

    def test_a_collapse_behind_a_threshold_is_named(self, planted: Planted) -> None:
        for name in ("validate", "validate-2"):
            planted.after[name] = lambda k, level: 0.1 if level == 5 else falling(k, level)
        planted.opposed = False
        tuning = tune(ask_of(), Quiet())
        assert "at 5, beside the threshold at 4, throughput collapses" in tuning.reason

    def test_an_arm_that_drafts_more_than_its_k_is_a_fault(self, planted: Planted) -> None:
        planted.cell = {"counters": [reading(at, drafts=10.0 * at, drafted=30.0 * at) for at in range(4)]}
        tuning = tune(ask_of(), Quiet())
        assert (tuning.outcome, tuning.exit_code, len(planted.asked)) == ("contradicted", 1, 1)
        assert "a drafted step carried 3.00 tokens on average, where K is at most 1" in tuning.reason


class TestReading:
    def test_the_folder_alone_says_the_same(self, kept: Kept) -> None:
        assert tuning_of(kept.folder).as_json() == {**kept.tuning.as_json(), "path": None}

    @pytest.mark.parametrize(
        "part", ["K = 8", "dropped after 2", "*", "Schedule: K = 4 for 1-4 requests, none for 5-64.", "Written:"]
    )
    def test_the_lines_show_it(self, kept: Kept, part: str) -> None:
        assert part in "\n".join(kept.tuning.lines())

    def test_json_is_plain(self, kept: Kept) -> None:
        found = json.loads(json.dumps(kept.tuning.as_json(), allow_nan=False))
        assert (found["schedule"], found["k_by_level"]) == ([[1, 4, 4], [5, 64, 0]], {"1": 4, "4": 4, "8": 0})

    def test_a_folder_without_a_tuning(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no tuning"):
            tuning_of(tmp_path)


class TestProfile:
    def tuned(self, **fields: Any) -> Any:
        tuning = tune(ask_of(**fields), Quiet())
        assert tuning.path is not None
        return load_profile(str(tuning.path))

    def test_it_loads_with_its_schedule(self, kept: Kept) -> None:
        speculation = load_profile(str(kept.path)).speculation
        assert speculation is not None
        assert (speculation.num_speculative_tokens, speculation.schedule) == (4, [(1, 4, 4), (5, 64, 0)])

    def test_what_set_changed_stands_in_it(self, planted: Planted) -> None:
        changes = ["limits.kv_cache_gib=1", "speculation.lookup_max=3", "environment.A=b"]
        tuned, asked = self.tuned(changes=changes), load_profile("lab-ngram", changes)
        assert (tuned.limits, tuned.environment, tuned.speculation.lookup_max) == (asked.limits, asked.environment, 3)

    def test_it_finds_a_parent_that_is_a_file(self, planted: Planted) -> None:
        Path("mine").mkdir()
        Path("out").mkdir()
        Path("mine/own.yaml").write_text("extends: lab-ngram\nlimits: {max_num_seqs: 32}\n")
        assert self.tuned(profile="mine/own.yaml", out=Path("out/own-tuned.yaml")).limits.max_num_seqs == 32

    def test_it_says_where_its_schedule_comes_from(self, kept: Kept) -> None:
        first, after, proof, beyond, versus = load_profile(str(kept.path)).sources
        assert "on 2026-01-02: a CPU, 2 cores; vllm 0.32.0; workload copy-code; 5 pairs a level; run run." in first
        assert (" at 5 (K = 0, inconclusive)" in after, "over lab-ngram as written" in versus) == (True, True)
        assert proof == "Not proven by the drafted counts: K = 4 of lab-ngram-tuned at 1, 3, 4."
        assert beyond == "Above 8 no K was measured: off."

    def test_it_names_a_try_that_did_not_hold(self, planted: Planted) -> None:
        planted.after["validate"], planted.opposed = (lambda k, level: 0.8 if level == 8 else falling(k, level)), False
        assert "did not hold: at 8 it costs: 0.8" in self.tuned().sources[2]

    def test_it_is_written_again_where_we_left_it(self, planted: Planted) -> None:
        first = tune(ask_of(), Quiet()).path
        assert first is not None
        before = first.read_text()
        tune(ask_of(), Quiet())
        assert first.read_text() == before

    def test_where_somebody_changed_it_it_stays(self, planted: Planted) -> None:
        path = tune(ask_of(), Quiet()).path
        assert path is not None
        path.write_text(path.read_text() + "device: gpu\n")
        with pytest.raises(InputError, match="was written, or changed, by somebody else"):
            tune(ask_of(), Quiet())

    def test_a_namesake_of_the_parent_beside_it_is_refused(self, planted: Planted) -> None:
        Path("lab-ngram.yaml").write_text("extends: lab-draft\n")
        with pytest.raises(InputError, match="there it extends another lab-ngram"):
            tune(ask_of(), Quiet())
        assert list(Path().glob("*.yaml")) == [Path("lab-ngram.yaml")]


def test_two_servers_are_measured_no_further_where_they_are_dropped(tmp_path: Path) -> None:
    """The real sweep: a level is dropped after two rounds; prompts of the others stay where they were."""
    with StubServer(accepts=[3, 1]) as arm, StubServer() as base:
        ask = Ask(
            base_url=arm.url,
            baseline_url=base.url,
            workload="chat",
            concurrency="1,2",
            rounds=4,
            requests=8,
            max_tokens=4,
            seed=1,
            run=tmp_path / "dropping",
        )
        asked: list[int] = []

        def drop(run: Run, rounds: int) -> frozenset[tuple[str, int]]:
            asked.append(rounds)
            return frozenset({(run.info.arms[0].name, 2)}) if rounds >= 2 else frozenset()

        dropping = Run(sweep(ask, Quiet(), drop))
        cells = Counter((cell.cell.concurrency, cell.cell.round) for cell in dropping.cells())
    with StubServer(accepts=[3, 1], port=arm.port) as arm, StubServer(port=base.port) as base:
        whole = Run(sweep(replace(ask, run=tmp_path / "whole"), Quiet()))
    assert (asked, cells) == ([0, 1, 2, 3], {(1, n): 2 for n in range(1, 5)} | {(2, 1): 2, (2, 2): 2})
    assert prompts_at_1(dropping) == prompts_at_1(whole)


def prompts_at_1(run: Run) -> list[tuple[int, int]]:
    return sorted((r.cell.round, r.prompt) for r in run.requests() if r.cell.concurrency == 1)


def reading(at: float, drafts: float, drafted: float) -> CounterReading:
    return CounterReading(at=at, drafts=drafts, drafted=drafted, accepted=0.0, generation_tokens=100.0 * at)
