"""Cost curves: what lies between the points, what a draft pass costs, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.forecast.cost import Curve, Drafting, MeasuredCost, Point, read_cost
from toolkit.errors import InputError

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)


def curve(*seconds: float, tokens: tuple[int, ...] = TOKENS, context: int = 256, per_held: float = 0.0) -> Curve:
    points = [Point(tokens=t, seconds=s, low=s, high=s, repeats=5) for t, s in zip(tokens, seconds, strict=False)]
    return Curve(points=points, context=context, per_held_token=per_held)


def line(fixed: float, per_token: float, **options: float) -> Curve:
    return curve(*(fixed + per_token * t for t in TOKENS), **options)  # type: ignore[arg-type]


def measured(plain: Curve, *drafting: Drafting) -> MeasuredCost:
    return MeasuredCost(
        created="2026-11-30T00:00:00+00:00", name="p", model="m", hardware={}, plain=plain, drafting=list(drafting),
        overhead=0.01,
    )  # fmt: skip


class TestCurve:
    @given(tokens=st.floats(1, 1000), fixed=st.floats(0.01, 1), per_token=st.floats(0, 0.1))
    def test_a_straight_line_is_followed_between_and_beyond_its_points(
        self, tokens: float, fixed: float, per_token: float
    ) -> None:
        assert line(fixed, per_token).seconds(tokens, 256) == pytest.approx(fixed + per_token * tokens)

    @given(seconds=st.lists(st.floats(0.001, 1), min_size=8, max_size=8), low=st.floats(1, 300), more=st.floats(0, 300))
    def test_more_tokens_never_take_less_time(self, seconds: list[float], low: float, more: float) -> None:
        noisy = curve(*seconds)
        assert noisy.seconds(low + more, 0) >= noisy.seconds(low, 0) - 1e-12

    def test_held_tokens_beyond_the_measured_context_cost_what_was_seen(self) -> None:
        assert line(0.1, 0.0, per_held=0.001).seconds(1, 1256) == pytest.approx(0.1 + 1.0)

    def test_held_tokens_within_the_measured_context_are_in_it_already(self) -> None:
        assert line(0.1, 0.0, per_held=0.001).seconds(1, 100) == pytest.approx(0.1)

    def test_points_that_do_not_ascend_are_refused(self) -> None:
        with pytest.raises(ValueError, match="ascend"):
            curve(1.0, 1.0, tokens=(4, 2))


class TestDraft:
    """With T(m) = 50 + m ms and a draft of D(m) = 10 + 0.2 m ms, K = 4: S(m) = T(m) + D(m) + 3 D(1)."""

    plain = line(0.050, 0.001)
    drafting = Drafting(
        name="d", method="draft_model", draft="small", num_speculative_tokens=4,
        curve=line(0.050 + 0.010 + 3 * 0.0102, 0.0012),
    )  # fmt: skip

    @pytest.mark.parametrize(("tokens", "seconds"), [(1, 0.0102), (16, 0.0132), (100, 0.030)])
    def test_a_draft_pass_comes_out_of_the_two_curves(self, tokens: int, seconds: float) -> None:
        step = measured(self.plain, self.drafting).step_cost("draft_model", "small")
        assert step is not None
        assert step.draft(tokens, 256) == pytest.approx(seconds)

    def test_c_is_a_draft_step_over_a_target_step(self) -> None:
        [(_, c)] = measured(self.plain, self.drafting).shares()
        assert c == pytest.approx(0.0102 / 0.051)

    def test_another_draft_has_no_cost(self) -> None:
        assert measured(self.plain, self.drafting).step_cost("draft_model", "other") is None

    def test_a_lookup_is_free_where_it_was_not_measured(self) -> None:
        step = measured(self.plain).step_cost("ngram")
        assert step is not None
        assert step.draft(64, 1000) == 0

    def test_a_server_that_does_not_tell_its_method_has_no_cost(self) -> None:
        assert measured(self.plain).step_cost(None) is None


class TestLimit:
    step = measured(line(0.050, 0.001, per_held=0.0001)).step_cost("none")

    @pytest.mark.parametrize(
        ("tokens", "held", "limit"),
        [(1, 0, "weights and overhead"), (100, 0, "compute"), (4, 4000, "KV cache reads")],
    )
    def test_what_binds_is_named(self, tokens: int, held: int, limit: str) -> None:
        assert self.step is not None
        assert self.step.target(tokens, held).limit == limit


class TestRead:
    def test_what_is_written_is_read_again(self, tmp_path: Path) -> None:
        cost = measured(line(0.05, 0.001))
        (tmp_path / "cost.json").write_text(cost.model_dump_json(by_alias=True))
        assert read_cost(tmp_path) == cost

    def test_a_folder_without_one_is_told_what_writes_it(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="verify-cost"):
            read_cost(tmp_path)

    @pytest.mark.parametrize("wrong", [('"seconds":0.051', '"seconds":NaN'), ('"schema":1', '"schema":7')])
    def test_a_file_of_another_kind_is_refused(self, tmp_path: Path, wrong: tuple[str, str]) -> None:
        text = measured(line(0.05, 0.001)).model_dump_json(by_alias=True)
        (tmp_path / "cost.json").write_text(text.replace(*wrong))
        with pytest.raises(InputError, match=r"not a cost\.json of this version"):
            read_cost(tmp_path)

    def test_a_malformed_file_is_named_with_the_key_at_fault(self, tmp_path: Path) -> None:
        (tmp_path / "cost.json").write_text('{"schema": 1}')
        with pytest.raises(InputError, match=r"cost\.json.*created"):
            read_cost(tmp_path)
