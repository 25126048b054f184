"""verify-cost: curves out of planted readings, and the protocol against a server that counts its cached tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from stub_server import StubServer

from toolkit.analysis.forecast.cost import read_cost
from toolkit.analysis.forecast.readings import Kind, Reading, cost_of
from toolkit.analysis.forecast.verify_cost import TOKENS, CostAsk, verify_cost
from toolkit.errors import EngineError, InputError

OVERHEAD, FIXED, PER_TOKEN, PER_HELD = 0.020, 0.050, 0.0006, 0.00002


class Quiet:
    """Progress that nobody watches."""

    def stage(self, text: str) -> None: ...

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


def readings(engine: str, extra: float = 0.0, repeats: int = 9) -> list[Reading]:
    """What an engine of known cost would answer; one reading in nine is an outlier."""

    def one(kind: Kind, tokens: int, context: int, seconds: float) -> Reading:
        return Reading(engine=engine, kind=kind, tokens=tokens, context=context, seconds=seconds)

    found = []
    for number in range(repeats):
        odd = 3.0 if number == 4 else 1.0
        for tokens in TOKENS:
            found.append(one("pass", tokens, 256, odd * (OVERHEAD + FIXED + extra + PER_TOKEN * tokens)))
        found.append(one("pass", 1, 1280, odd * (OVERHEAD + FIXED + extra + PER_TOKEN + PER_HELD * 1024)))
        found.append(one("decode", 1, 256, odd * (FIXED + PER_TOKEN)))
    return found


class TestCurves:
    cost = cost_of(readings("plain") + readings("drafting", 0.04), "plain", [("drafting", "draft_model", "small", 4)])

    def test_what_a_request_costs_beside_its_pass_is_found(self) -> None:
        assert self.cost.overhead == pytest.approx(OVERHEAD)

    @pytest.mark.parametrize("tokens", [1, 16, 512])
    def test_a_pass_costs_what_it_does_without_the_rest(self, tokens: int) -> None:
        assert self.cost.plain.seconds(tokens, 256) == pytest.approx(FIXED + PER_TOKEN * tokens)

    def test_a_held_token_costs_what_the_longer_context_shows(self) -> None:
        assert self.cost.plain.per_held_token == pytest.approx(PER_HELD)

    def test_c_is_what_drafting_adds_over_k_steps(self) -> None:
        [(_, c)] = self.cost.shares()
        assert c == pytest.approx(0.04 / 4 / (FIXED + PER_TOKEN))

    def test_a_reading_that_somebody_elses_request_spoiled_is_left_out(self) -> None:
        stray = Reading(engine="plain", kind="pass", tokens=400, context=0, seconds=9.0)
        assert cost_of([*readings("plain"), stray], "plain", []).plain == self.cost.plain

    def test_the_room_beside_a_draft_is_the_drafting_engines(self) -> None:
        both = readings("plain") + readings("drafting", 0.04)
        cost = cost_of(both, "plain", [("drafting", "draft_model", "small", 4)], {"plain": 1000, "drafting": 600})
        step = cost.step_cost("draft_model", "small")
        assert step is not None
        assert [step.fits(10, drafting) for drafting in (False, True)] == [100, 60]

    def test_readings_without_a_pass_over_one_token_are_refused(self) -> None:
        with pytest.raises(EngineError, match="prefix cache"):
            cost_of([one for one in readings("plain") if one.tokens != 1], "plain", [])


def measure(stub: StubServer, folder: Path, **options: object) -> Path:
    return verify_cost(CostAsk(base_url=stub.url, repeats=3, run=folder, **options), Quiet())  # type: ignore[arg-type]


class TestServer:
    def test_every_point_is_measured_on_new_tokens_alone(self, stub: StubServer, tmp_path: Path) -> None:
        cost = read_cost(measure(stub, tmp_path / "run"))
        assert [(p.tokens, p.repeats) for p in cost.plain.points] == [(tokens, 3) for tokens in TOKENS]

    def test_no_prompt_but_the_cached_ones_is_served_twice(self, stub: StubServer, tmp_path: Path) -> None:
        measure(stub, tmp_path / "run")
        asked = {new for new, most in stub.completions if most == 1}
        assert set(TOKENS) <= asked

    def test_tokens_that_the_cache_kept_back_count_as_new(self, stub: StubServer, tmp_path: Path) -> None:
        """An engine that takes its last block from no cache (vLLM with EAGLE) passes over a block more."""
        stub.block = 100  # 384 tokens: 300 are found
        cost = read_cost(measure(stub, tmp_path / "run"))
        assert (cost.plain.context, cost.plain.points[0].tokens) == (300, 1)

    def test_readings_stay_on_disk_as_they_came(self, stub: StubServer, tmp_path: Path) -> None:
        folder = measure(stub, tmp_path / "run")
        lines = [json.loads(line) for line in (folder / "readings.jsonl").read_text().splitlines()]
        assert sum(line["kind"] == "pass" for line in lines) == 3 * (len(TOKENS) + 1)

    def test_a_server_beside_it_that_drafts_has_a_curve_of_its_own(self, stub: StubServer, tmp_path: Path) -> None:
        with StubServer(accepts=[1]) as drafting:
            ask = CostAsk(base_url=drafting.url, baseline_url=stub.url, repeats=3, run=tmp_path / "run")
            cost = read_cost(verify_cost(ask, Quiet()))
        assert [one.name for one in cost.drafting] == [drafting.url.removeprefix("http://").removesuffix("/v1")]

    def test_a_lone_server_that_drafts_is_refused(self, tmp_path: Path) -> None:
        with StubServer(accepts=[1]) as drafting, pytest.raises(InputError, match="--baseline-url"):
            measure(drafting, tmp_path / "run")

    def test_a_server_in_the_place_of_the_drafting_one_that_does_not_is_refused(
        self, stub: StubServer, tmp_path: Path
    ) -> None:
        with StubServer() as other, pytest.raises(InputError, match="does not speculate"):
            measure(stub, tmp_path / "run", baseline_url=other.url)

    def test_a_server_that_cannot_be_reached_leaves_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match="cannot be reached"):
            verify_cost(CostAsk(base_url="http://127.0.0.1:9/v1", run=tmp_path / "run"), Quiet())
        assert not (tmp_path / "run").exists()

    def test_a_server_without_a_cache_counter_is_refused(self, stub: StubServer, tmp_path: Path) -> None:
        stub.block = None
        with pytest.raises(EngineError, match="vllm:prefix_cache_hits_total"):
            measure(stub, tmp_path / "run")

    def test_a_server_that_caches_nothing_is_refused(self, stub: StubServer, tmp_path: Path) -> None:
        stub.block = 100_000
        with pytest.raises(EngineError, match="prefix caching"):
            measure(stub, tmp_path / "run")

    def test_a_folder_that_holds_a_cost_is_not_overwritten(self, stub: StubServer, tmp_path: Path) -> None:
        measure(stub, tmp_path / "run")
        with pytest.raises(InputError, match="there already"):
            measure(stub, tmp_path / "run")


class TestAsk:
    @pytest.mark.parametrize(
        ("profiles", "said"),
        [
            (["lab-ngram", "draft-1b"], "differ in more than their speculation"),
            ([], "nothing to measure"),
            (["no-such"], "no-such"),
        ],
    )
    def test_what_cannot_be_measured_together_is_said(self, profiles: Sequence[str], said: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=said):
            verify_cost(CostAsk(profiles=profiles, run=tmp_path / "run"), Quiet())

    def test_two_repeats_are_too_few(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="--repeats 2"):
            verify_cost(CostAsk(profiles=["lab-ngram"], repeats=2, run=tmp_path / "run"), Quiet())
