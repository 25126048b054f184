"""Our classes take the place of vLLM's for a draft directory of ours, and for nothing else."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from toolkit.engines import after_import, vllm_layer_skip
from toolkit.engines.vllm_layer_skip import MODEL, V1, register_layer_skip, take_place
from toolkit.proposers.layer_set import ARCHITECTURE


class Stock:
    """vLLM's, as far as it matters here."""

    def __init__(self, vllm_config: Any, device: str, runner: Any = None) -> None:
        self.built_with = (vllm_config, device, runner)


class Sibling(Stock):
    """A subclass of vLLM's own."""


def config(*architectures: str) -> Any:
    draft = SimpleNamespace(hf_config=SimpleNamespace(architectures=list(architectures)))
    return SimpleNamespace(speculative_config=SimpleNamespace(draft_model_config=draft))


@pytest.fixture
def stock() -> type[Stock]:
    class Fresh(Stock):
        pass

    class Ours(Fresh):
        pass

    take_place(Fresh, lambda _: Ours)
    return Fresh


class TestTakePlace:
    def test_a_directory_of_ours_is_drafted_for_by_our_class(self, stock: type[Stock]) -> None:
        built = stock(vllm_config=config(ARCHITECTURE), device="cpu", runner=7)
        assert (type(built).__name__, built.built_with[1:]) == ("Ours", ("cpu", 7))

    def test_it_is_still_one_of_vllms(self, stock: type[Stock]) -> None:
        """The runner asks `isinstance` wherever it drafts."""
        assert isinstance(stock(config(ARCHITECTURE), "cpu"), stock)

    @pytest.mark.parametrize("other", [config("LlamaForCausalLM"), config(), SimpleNamespace(), SimpleNamespace(a=1)])
    def test_any_other_draft_is_drafted_for_as_before(self, stock: type[Stock], other: Any) -> None:
        assert type(stock(vllm_config=other, device="cpu")) is stock

    def test_a_subclass_is_built_as_it_was(self) -> None:
        take_place(Stock, lambda _: Sibling)
        try:
            assert type(Sibling(config(ARCHITECTURE), "cpu")) is Sibling
        finally:
            del Stock.__new__

    def test_twice_is_once(self, stock: type[Stock]) -> None:
        before = vars(stock)["__new__"]
        take_place(stock, lambda _: Sibling)
        assert vars(stock)["__new__"] is before


class TestRegister:
    @pytest.fixture(autouse=True)
    def registry(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        known: dict[str, str] = {}
        module = ModuleType("vllm.model_executor.models")
        module.ModelRegistry = SimpleNamespace(  # type: ignore[attr-defined]
            models=known, register_model=known.__setitem__
        )
        for name in ("vllm", "vllm.model_executor"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        return known

    def waits_for(self) -> list[str]:
        return [name for one in sys.meta_path if isinstance(one, after_import._Watch) for name in one.waiting]

    def test_the_architecture_is_known_and_the_classes_are_waited_for(self, registry: dict[str, str]) -> None:
        register_layer_skip("0.32.0")
        assert registry == {ARCHITECTURE: MODEL}
        assert V1[0] in self.waits_for()

    def test_another_version_is_left_alone_but_can_read_the_directory(
        self, registry: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        monkeypatch.setattr(vllm_layer_skip, "when_imported", lambda name, _: asked.append(name))
        register_layer_skip("0.33.0")
        assert (list(registry), asked) == ([ARCHITECTURE], [])

    def test_the_architectures_class_is_where_it_is_said_to_be(self) -> None:
        module, _, name = MODEL.partition(":")
        assert isinstance(getattr(__import__(module, fromlist=[name]), name), type)
