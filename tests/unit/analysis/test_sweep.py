"""The order of cells, which prompts they send, what a budget buys, and real sweeps of two stub servers."""

import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from toolkit.analysis.arms import Arm
from toolkit.analysis.ask import Ask
from toolkit.analysis.client import Sampling
from toolkit.analysis.prepare import sweep
from toolkit.analysis.records import CellKey, CellRecord
from toolkit.analysis.run import Run
from toolkit.analysis.sweep import RETRY_STRIDE, Plan, _Costs, _jobs, all_cells, is_finished, pending_pairs, sides
from toolkit.analysis.workload import Prompt, Workload
from toolkit.errors import EngineError, InputError


def plan(**fields: Any) -> Plan:
    levels = fields.get("levels", [1, 4, 16, 64])
    defaults: dict[str, Any] = {
        "arms": [Arm("a")],
        "baseline": Arm("base"),
        "workload": Workload("numbers", "d", None, numbered),
        "levels": levels,
        "requests": {level: 4 * level for level in levels},
        "sampling": Sampling(max_tokens=16),
        "rounds": 6,
    }
    return Plan(**{**defaults, **fields})


def numbered(index: int) -> Prompt:
    return Prompt(({"role": "user", "content": str(index)},), "number")


def record(key: CellKey, seconds: float) -> CellRecord:
    return CellRecord(
        cell=key,
        attempt=1,
        served_by="x",
        order=0,
        finished_at="t",
        seconds=seconds,
        requests=4,
        failed=0,
        client_cpu=0.1,
        prompts_digest="p",
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    levels = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True))
    return plan(
        levels=levels,
        requests={level: draw(st.integers(1, 20)) for level in levels},
        arms=[Arm(f"arm-{number}") for number in range(draw(st.integers(1, 3)))],
        baseline=draw(st.sampled_from([None, Arm("base")])),
        rounds=draw(st.integers(1, 3)),
        resident=draw(st.booleans()),
    )


class TestOrder:
    def test_a_pairs_sides_take_turns_as_abba(self) -> None:
        order = [side for number in range(1, 5) for side in sides(plan(), number)]
        assert order == ["baseline", "arm", "arm", "baseline"] * 2

    def test_without_a_baseline_there_is_one_side(self) -> None:
        assert sides(plan(baseline=None), 1) == ("arm",)

    @given(plans())
    def test_every_cell_is_there_once(self, one: Plan) -> None:
        cells = all_cells(one)
        sides_of_each = 2 if one.baseline else 1
        assert (len(cells), len(set(cells))) == (
            (sides_of_each * len(one.arms) * len(one.levels) * one.rounds,) * 2  # all different
        )

    @given(plans().filter(lambda one: one.resident and one.baseline is not None))
    def test_the_cells_of_a_pair_are_adjacent(self, one: Plan) -> None:
        cells = all_cells(one)
        assert all(a.model_copy(update={"side": b.side}) == b for a, b in zip(cells[::2], cells[1::2], strict=True))

    def test_an_engine_that_has_the_memory_measures_all_levels_of_a_round(self) -> None:
        cells = all_cells(plan(resident=False, rounds=4, levels=[1, 4]))
        runs = [(side, len(list(group))) for side, group in groupby(cells, lambda key: key.side)]
        # ABBA: the engine stays up into the next round, 5 starts and not 8.
        assert runs == [("baseline", 2), ("arm", 4), ("baseline", 4), ("arm", 4), ("baseline", 2)]

    def test_without_memory_for_both_a_cell_is_measured_at_a_time(self) -> None:
        one = plan(resident=False, rounds=2)
        assert list(pending_pairs(one, set(), _Costs(one))) == [[key] for key in all_cells(one)]

    def test_finished_cells_are_left_out(self) -> None:
        one = plan(levels=[1], rounds=2)
        first, second, *rest = all_cells(one)
        assert list(pending_pairs(one, {first}, _Costs(one))) == [[second], rest]

    @given(plans().filter(lambda one: len(one.levels) > 1))
    def test_what_is_skipped_moves_no_prompt_of_another(self, one: Plan) -> None:
        skip = frozenset({(one.arms[0].name, one.levels[0])})
        less = replace(one, skip=skip)
        left = [key for key in all_cells(one) if (key.arm, key.concurrency) not in skip]
        assert all_cells(less) == left
        assert [less.first_prompt(key) for key in left] == [one.first_prompt(key) for key in left]

    @given(plans(), st.integers(1, 3))
    def test_more_rounds_extend_a_run(self, one: Plan, more: int) -> None:
        longer = plan(
            levels=one.levels, requests=one.requests, arms=one.arms, baseline=one.baseline, rounds=one.rounds + more
        )
        shared = set(all_cells(one))
        assert shared <= set(all_cells(longer))
        assert {key: one.first_prompt(key) for key in shared} == {key: longer.first_prompt(key) for key in shared}


class TestPrompts:
    @given(plans(), st.booleans())
    def test_no_prompt_is_served_twice_by_an_engine(self, one: Plan, first_time: bool) -> None:
        used = Counter(
            (key.side if key.side == "baseline" else key.arm, job.index)
            for key in all_cells(one)
            for job in _jobs(one, key, 1, first_time)
        )
        assert max(used.values()) == 1

    @given(plans().filter(lambda one: one.baseline is not None), st.booleans())
    def test_no_prompt_is_used_by_two_pairs(self, one: Plan, first_time: bool) -> None:
        pairs = {(key.arm, key.concurrency, key.round): key for key in all_cells(one)}
        used = Counter(job.index for key in pairs.values() for job in _jobs(one, key, 1, first_time))
        assert max(used.values()) == 1

    def test_arms_without_a_baseline_measure_the_same_prompts(self) -> None:
        one = plan(baseline=None, arms=[Arm("a"), Arm("b")], rounds=2)
        jobs = {(key.arm, key.concurrency, key.round): _jobs(one, key, 1, True) for key in all_cells(one)}
        assert all(mine == jobs["b", *key] for (name, *key), mine in jobs.items() if name == "a")

    def test_arms_without_a_baseline_take_turns_at_being_first(self) -> None:
        one = plan(baseline=None, arms=[Arm("a"), Arm("b")], levels=[4], rounds=2)
        assert [key.arm for key in all_cells(one)] == ["a", "b", "b", "a"]

    @given(plans().filter(lambda one: one.baseline is not None))
    def test_both_sides_of_a_pair_measure_the_same_prompts_in_order(self, one: Plan) -> None:
        for key in all_cells(one):
            other = key.model_copy(update={"side": "arm" if key.side == "baseline" else "baseline"})
            # The warm-up is longer on the side that meets the level first.
            mine = [job for job in _jobs(one, key, 1, True) if not job.warmup]
            assert mine == [job for job in _jobs(one, other, 1, False) if not job.warmup]

    @given(plans(), st.integers(2, 4))
    def test_another_attempt_uses_prompts_that_no_cell_uses(self, one: Plan, attempt: int) -> None:
        indices = [job.index for key in all_cells(one) for job in _jobs(one, key, attempt, True)]
        assert one.prompts_needed() <= RETRY_STRIDE <= min(indices)

    @given(plans())
    def test_the_prompts_needed_are_those_used(self, one: Plan) -> None:
        used = {job.index for key in all_cells(one) for job in _jobs(one, key, 1, True)}
        assert used == set(range(one.prompts_needed()))

    @given(plans())
    def test_the_warm_up_comes_first(self, one: Plan) -> None:
        jobs = _jobs(one, all_cells(one)[0], 1, True)
        assert [job.warmup for job in jobs] == sorted((job.warmup for job in jobs), reverse=True)


class TestBudget:
    def order(self, one: Plan, costs: _Costs | None = None) -> list[tuple[int, int]]:
        groups = pending_pairs(one, set(), costs or _Costs(one))
        return [(group[0].round, group[0].concurrency) for group in groups]

    def test_two_pairs_everywhere_then_the_ends_to_five_then_the_middle(self) -> None:
        rounds = [[(number, level) for number in numbers for level in levels] for numbers, levels in self.phases()]
        assert self.order(plan(budget=1e9)) == [pair for phase in rounds for pair in phase]

    def phases(self) -> list[tuple[range, list[int]]]:
        everywhere = [1, 4, 16, 64]
        return [(range(1, 3), everywhere), (range(3, 6), [1, 64]), (range(3, 6), [4, 16]), (range(6, 7), everywhere)]

    def test_without_a_budget_rounds_follow_one_another(self) -> None:
        assert self.order(plan()) == [(number, level) for number in range(1, 7) for level in (1, 4, 16, 64)]

    def test_both_cells_of_a_pair_are_bought_together(self) -> None:
        one = plan(budget=1e9)
        assert {len(group) for group in pending_pairs(one, set(), _Costs(one))} == {2}

    def costs(self, one: Plan, seconds: dict[int, float]) -> _Costs:
        costs = _Costs(one)
        for key in all_cells(one):
            if key.round == 1:
                costs.learn(record(key, seconds[key.concurrency]))
        return costs

    def test_a_pair_that_does_not_fit_is_left_out_and_cheaper_ones_follow(self) -> None:
        one = plan(budget=230.0, levels=[1, 64])  # 130 are spent
        assert {level for _, level in self.order(one, self.costs(one, {1: 5.0, 64: 60.0}))} == {1}

    def test_a_pair_that_just_fits_is_measured(self) -> None:
        one = plan(budget=207.0, levels=[1, 64])  # 108 are spent
        assert {level for _, level in self.order(one, self.costs(one, {1: 5.0, 64: 49.0}))} == {1, 64}

    def test_what_was_spent_before_counts(self) -> None:
        one = plan(budget=205.0, levels=[1, 64])
        assert {level for _, level in self.order(one, self.costs(one, {1: 5.0, 64: 49.0}))} == {1}

    def test_a_spent_budget_buys_nothing(self) -> None:
        one = plan(budget=100.0)
        assert self.order(one, self.costs(one, {1: 5.0, 4: 5.0, 16: 10.0, 64: 30.0})) == []

    def test_a_level_not_seen_yet_is_guessed_from_those_seen(self) -> None:
        one = plan(levels=[1, 4])
        costs = _Costs(one)
        costs.learn(record(all_cells(one)[0], 7.0))  # 7 requests in 7 s at 1; 28 at 4, twice as fast
        unseen = CellKey(arm="a", side="arm", workload="numbers", concurrency=4, round=1)
        assert costs.expect(unseen) == pytest.approx(14.0)

    def test_nothing_is_expected_before_a_cell_has_ended(self) -> None:
        one = plan()
        assert _Costs(one).total(all_cells(one)) is None


class TestFinished:
    @pytest.mark.parametrize(("left", "finished"), [(0, True), (1, False)])
    def test_a_run_is_finished_with_its_last_cell(self, left: int, finished: bool) -> None:
        one = plan(levels=[1], rounds=2)
        cells = [record(key, 1.0) for key in all_cells(one)]
        assert is_finished(one)(FakeRun(cells[: len(cells) - left])) is finished  # type: ignore[arg-type]

    @pytest.mark.parametrize(("seconds", "finished"), [(60.0, True), (40.0, False)])
    def test_under_a_budget_it_is_finished_when_nothing_fits_any_more(self, seconds: float, finished: bool) -> None:
        one = plan(levels=[1], budget=100.0)
        assert is_finished(one)(FakeRun([record(all_cells(one)[0], seconds)])) is finished  # type: ignore[arg-type]


class FakeRun:
    def __init__(self, cells: list[CellRecord]) -> None:
        self._cells = cells

    def cells(self) -> list[CellRecord]:
        return self._cells


class Quiet:
    """Progress that only remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.told: list[tuple[int, int | None, float | None]] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None:
        self.told.append((done, total, seconds_left))


@pytest.fixture
def servers() -> Iterator[tuple[StubServer, StubServer]]:
    """A speculating server and one without."""
    with StubServer(accepts=[3, 1]) as arm, StubServer() as base:
        yield arm, base


def ask_of(servers: tuple[StubServer, StubServer], folder: Path, **fields: Any) -> Ask:
    defaults = {"workload": "chat", "concurrency": "1,2", "rounds": 2, "requests": 8, "max_tokens": 8}
    urls = {"base_url": servers[0].url, "baseline_url": servers[1].url}
    return Ask(**{**defaults, **urls, "run": folder, **fields})


@dataclass
class Swept:
    run: Run
    arm: StubServer
    base: StubServer
    progress: Quiet


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    """One sweep for all that only look at what it left."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch, StubServer(accepts=[3, 1]) as arm, StubServer() as base:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        progress = Quiet()
        yield Swept(Run(sweep(ask_of((arm, base), folder / "run"), progress)), arm, base, progress)


class TestRealSweep:
    def test_the_cells_stand_in_the_order_abba(self, swept: Swept) -> None:
        done = [(cell.cell.round, cell.cell.concurrency, cell.cell.side) for cell in swept.run.cells()]
        odd, even = ("baseline", "arm"), ("arm", "baseline")
        assert done == [(r, n, side) for r, order in ((1, odd), (2, even)) for n in (1, 2) for side in order]

    def test_the_cells_are_numbered_in_that_order(self, swept: Swept) -> None:
        assert [cell.order for cell in swept.run.cells()] == list(range(8))

    def test_no_prompt_is_served_twice_by_a_server(self, swept: Swept) -> None:
        assert [max(Counter(server.served).values()) for server in (swept.arm, swept.base)] == [1, 1]

    def test_both_servers_measure_the_same_prompts(self, swept: Swept) -> None:
        served = [{r.prompt_hash for r in swept.run.requests() if r.cell.side == side} for side in ("arm", "baseline")]
        assert served[0] == served[1]

    def test_every_cell_has_all_its_requests(self, swept: Swept) -> None:
        assert set(Counter(str(r.cell) for r in swept.run.requests()).values()) == {8}

    def test_the_first_cell_at_a_level_warms_up_three_times_as_long(self, swept: Swept) -> None:
        warmups = Counter((r.cell.round, r.cell.concurrency) for r in swept.run.requests(warmup=True) if r.warmup)
        assert warmups == {(1, 1): 6, (1, 2): 12, (2, 1): 2, (2, 2): 4}

    def test_what_the_servers_say_of_themselves_is_kept(self, swept: Swept) -> None:
        arm, base = swept.run.info.arms[0], swept.run.info.baseline
        assert base is not None
        assert (arm.speculates, base.speculates, arm.kv_tokens, arm.engine_version) == (True, False, 100_000, "0.32.0")

    def test_progress_counts_to_the_end(self, swept: Swept) -> None:
        assert [(done, total) for done, total, _ in swept.progress.told] == [(number, 8) for number in range(1, 9)]


class TestGoingOn:
    def test_more_rounds_extend_the_run_and_serve_no_prompt_twice(
        self, servers: tuple[StubServer, StubServer], tmp_path: Path
    ) -> None:
        before = Run(sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())).cells()
        after = Run(sweep(ask_of(servers, tmp_path, concurrency="1", rounds=3), Quiet())).cells()
        assert (after[:4], len(after)) == (before, 6)
        assert [max(Counter(server.served).values()) for server in servers] == [1, 1]

    def test_a_finished_sweep_asked_again_sends_nothing(
        self, servers: tuple[StubServer, StubServer], tmp_path: Path
    ) -> None:
        sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())
        before = [len(server.served) for server in servers]
        sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())
        assert [len(server.served) for server in servers] == before


class TestFailures:
    def test_a_server_that_fails_ends_the_sweep(self, servers: tuple[StubServer, StubServer], tmp_path: Path) -> None:
        servers[0].fault = lambda number, body: "500 broken"
        with pytest.raises(EngineError, match="HTTP 500: broken"):
            sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())

    def test_cells_finished_before_a_failure_stand(
        self, servers: tuple[StubServer, StubServer], tmp_path: Path
    ) -> None:
        servers[0].fault = lambda number, body: "500 broken"
        with pytest.raises(EngineError):
            sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())
        assert [cell.cell.side for cell in Run(tmp_path).cells()] == ["baseline"]

    def test_a_failed_cell_is_measured_with_other_prompts(
        self, servers: tuple[StubServer, StubServer], tmp_path: Path
    ) -> None:
        servers[0].fault = lambda number, body: "500 broken" if number > 2 else None
        with pytest.raises(EngineError):
            sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())
        servers[0].fault = lambda number, body: None
        sweep(ask_of(servers, tmp_path, concurrency="1"), Quiet())
        attempts = [cell.attempt for cell in Run(tmp_path).cells()]
        assert (attempts, max(Counter(servers[0].served).values())) == ([1, 2, 1, 1], 1)

    def test_another_model_on_the_server_is_another_measurement(
        self, servers: tuple[StubServer, StubServer], tmp_path: Path
    ) -> None:
        sweep(ask_of(servers, tmp_path, rounds=1), Quiet())
        servers[0].model = servers[1].model = "another/model"
        with pytest.raises(InputError, match="holds another measurement: arms, baseline differ"):
            sweep(ask_of(servers, tmp_path, rounds=1), Quiet())

    def test_a_port_without_a_server_measures_nothing(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
            with pytest.raises(EngineError, match="cannot be reached"):
                sweep(Ask(base_url=url, run=tmp_path / "run"), Quiet())
        assert not (tmp_path / "run").exists()


def test_a_budget_measures_pairs_until_it_ends(servers: tuple[StubServer, StubServer], tmp_path: Path) -> None:
    for server in servers:
        server.first_delay = 0.01
    run = Run(sweep(ask_of(servers, tmp_path, rounds=None, concurrency="1", budget=0.8), Quiet()))
    rounds = Counter((cell.cell.concurrency, cell.cell.round) for cell in run.cells())
    assert (set(rounds.values()), sum(cell.seconds for cell in run.cells()) < 1.2) == ({2}, True)
