"""The CPU repair: the kernel's contract against a plain loop, when it is wanted, that it is put in place once."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit import proposers
from toolkit.engines import vllm_plugin
from toolkit.engines.vllm_layer_skip import MODEL
from toolkit.engines.vllm_plugin import SWITCH, OfAnyRows, expand, register, wants_repair
from toolkit.proposers.layer_set import ARCHITECTURE

DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64]


def looped(values: list[float], counts: list[int], replace_from: float, replace_to: float) -> list[float]:
    """vLLM's `expand_kernel`, a request at a time."""
    found = []
    for value, count in zip(values, counts, strict=True):
        for _ in range(count):
            found.append(replace_to if value == replace_from else value)
    return found


def expanded(
    values: list[float],
    counts: list[int],
    replace_from: float = 0,
    replace_to: float = 0,
    dtype: torch.dtype = torch.float32,
    output: torch.dtype | None = None,
) -> list[float]:
    cumulative = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    out = torch.full((sum(counts),), 77, dtype=output or dtype)
    expand(out, torch.tensor(values, dtype=dtype), cumulative, replace_from, replace_to, MAX_NUM_TOKENS=32)
    return list(out.tolist())


class TestExpand:
    def test_the_example_of_vllms_own_docstring(self) -> None:
        assert expanded([10, 20, 30], [2, 3, 1]) == [10, 10, 20, 20, 20, 30]

    def test_a_batch_that_mixes_temperature_0_with_others(self) -> None:
        """Greedy requests are divided by 1, not by 0; the others by their own."""
        assert expanded([0.0, 0.5, 1.0, 0.0], [2, 1, 3, 1], 0, 1) == [1, 1, 0.5, 1, 1, 1, 1]

    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), min_size=1, max_size=12),
        st.sampled_from(DTYPES),
        st.sampled_from([(0, 1), (0, 0), (3, 7)]),
    )
    def test_it_is_the_plain_loop(
        self, requests: list[tuple[int, int]], dtype: torch.dtype, replaced: tuple[int, int]
    ) -> None:
        values, counts = [float(value) for value, _ in requests], [count for _, count in requests]
        assert expanded(values, counts, *replaced, dtype=dtype) == looped(values, counts, *replaced)

    @pytest.mark.parametrize("output", DTYPES)
    def test_every_type_of_output_is_written(self, output: torch.dtype) -> None:
        """The kernel it takes the place of wrote to a copy wherever the output was no int64."""
        assert expanded([4, 2], [1, 2], output=output) == [4, 2, 2]

    def test_the_input_stays(self) -> None:
        values = torch.tensor([0.0, 0.5])
        expand(torch.empty(2), values, torch.tensor([1, 2]), 0, 1)
        assert values.tolist() == [0.0, 0.5]

    def test_requests_without_drafts_have_no_tokens(self) -> None:
        assert expanded([5, 6, 7], [0, 2, 0]) == [6, 6]

    def test_a_batch_without_any_draft(self) -> None:
        assert expanded([5.0, 0.0], [0, 0], 0, 1) == []


class TestOfAnyRows:
    def test_no_rows_stay_no_rows(self) -> None:
        """The function that it wraps takes the maximum over rows, and dies of none."""
        logits, k = torch.empty(0, 5), torch.empty(0, dtype=torch.int32)
        assert OfAnyRows(dying)(logits, k).shape == (0, 5)

    def test_rows_go_to_the_function_as_they_are(self) -> None:
        logits, k = torch.ones(2, 5), torch.tensor([1, 2])
        assert OfAnyRows(lambda rows, of: rows * of.max())(logits, k).tolist() == [[2.0] * 5] * 2


def dying(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """vLLM's, as far as it matters here."""
    return logits[:, : int(k.max())]


class TestWanted:
    @pytest.mark.parametrize(("value", "wanted"), [(None, True), ("1", True), ("", True), ("0", False)])
    def test_unless_it_is_switched_off(self, value: str | None, wanted: bool) -> None:
        assert wants_repair({} if value is None else {SWITCH: value}) is wanted


def broken(*_: object) -> None:
    """Stands for vLLM's kernel."""


class Vllm:
    """The modules of a vLLM that the plugin touches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str = "0.32.0", cpu: bool = True) -> None:
        self.kernels = SimpleNamespace(_expand_kernel_impl=broken)
        self.sampler = SimpleNamespace(apply_top_k_only=dying)
        self.architectures: dict[str, str] = {}
        self.registry = SimpleNamespace(models=self.architectures, register_model=self.architectures.__setitem__)
        modules: dict[str, dict[str, object]] = {
            "vllm": {},
            "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: cpu)},
            "vllm.version": {"__version__": version},
            "vllm.logger": {"init_logger": logging.getLogger},
            "vllm.model_executor": {},
            "vllm.model_executor.models": {"ModelRegistry": self.registry},
            "vllm.utils": {"cpu_triton_utils": self.kernels},
            "vllm.v1": {},
            "vllm.v1.sample": {},
            "vllm.v1.sample.ops": {"topk_topp_sampler": self.sampler},
        }
        for name, values in modules.items():
            module = ModuleType(name)
            vars(module).update(values)
            monkeypatch.setitem(sys.modules, name, module)

    @property
    def done(self) -> tuple[bool, bool]:
        """Whether the garbage is repaired, and whether top-k is mended."""
        return self.kernels._expand_kernel_impl is expand, isinstance(self.sampler.apply_top_k_only, OfAnyRows)


@pytest.fixture(autouse=True)
def _no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(proposers, "registered", False)


class TestRegister:
    @pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32.0rc1"])
    def test_a_broken_cpu_build_is_repaired_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
    ) -> None:
        vllm = Vllm(monkeypatch, version)
        with caplog.at_level(logging.INFO, "vllm.toolkit"):
            register()
        assert vllm.done == (True, True)
        assert "repairs sampling at temperature > 0" in caplog.text
        assert "TOOLKIT_CPU_REPAIR=0 leaves it" in caplog.text

    def test_once_is_enough(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """vLLM loads plugins in every process, and in some twice."""
        vllm = Vllm(monkeypatch)
        with caplog.at_level(logging.INFO, "vllm.toolkit"):
            register()
            register()
        assert (vllm.done, len(caplog.records)) == ((True, True), 1)
        assert vllm.sampler.apply_top_k_only.top_k_only is dying

    @pytest.mark.parametrize("cpu", [True, False])
    def test_layer_skip_is_made_known(self, monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
        vllm = Vllm(monkeypatch, cpu=cpu)
        register()
        assert vllm.architectures == {ARCHITECTURE: MODEL}

    @pytest.mark.parametrize("cpu", [True, False])
    def test_our_proposer_can_tell_that_it_ran(self, monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
        Vllm(monkeypatch, cpu=cpu)
        register()
        assert proposers.registered

    def test_a_gpu_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vllm = Vllm(monkeypatch, cpu=False)
        register()
        assert vllm.done == (False, False)

    @pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "0.320.0", "1.0.32.0", "dev", ""])
    def test_another_version_is_left_alone(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        vllm = Vllm(monkeypatch, version)
        register()
        assert vllm.done == (False, False)

    def test_switched_off_it_leaves_the_garbage_and_mends_what_would_die(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SWITCH, "0")
        vllm = Vllm(monkeypatch)
        register()
        assert vllm.done == (False, True)


def test_the_entry_point_is_registered() -> None:
    from importlib.metadata import entry_points

    (found,) = [point for point in entry_points(group="vllm.general_plugins") if point.value.startswith("toolkit.")]
    assert found.value == f"{vllm_plugin.__name__}:{register.__name__}"
