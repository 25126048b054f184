"""`profiles check`: the engine's own problems, each with advice where it is known."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.engines import ENGINES
from toolkit.engines.contract import Profile
from toolkit.engines.vllm import VLLM
from toolkit.errors import EngineError, InputError
from toolkit.launch.check import check_profile


class FakeEngine(VLLM):
    """An engine whose validators say what the test wants."""

    def __init__(self, found: list[str] | EngineError) -> None:
        self.found = found

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        configs(profile.target.model)
        if isinstance(self.found, EngineError):
            raise self.found
        return self.found


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str] | EngineError], None]:
    return lambda found: monkeypatch.setitem(ENGINES, "vllm", FakeEngine(found))


Says = Callable[[list[str] | EngineError], None]


def test_a_profile_that_the_engine_accepts_has_no_problem(says: Says) -> None:
    says([])
    assert check_profile("draft-1b") == []


def test_a_problem_with_a_known_cause_comes_with_its_advice(says: Says) -> None:
    says(["Target and draft model should have the same vocabulary size."])
    (problem,) = check_profile("draft-1b")
    assert problem.startswith("Target and draft model should have the same vocabulary size. Target and draft have diff")


def test_a_problem_without_one_stands_alone(says: Says) -> None:
    says(["odd"])
    assert check_profile("draft-1b") == ["odd"]


def test_an_engine_that_is_not_installed_is_no_problem_of_the_profile(says: Says) -> None:
    says(EngineError("vLLM is not installed"))
    with pytest.raises(EngineError, match="not installed"):
        check_profile("draft-1b")


def test_a_model_whose_config_is_nowhere_is_a_problem(says: Says) -> None:
    says([])
    assert check_profile("draft-1b", ["target.model=no/such"]) == [
        "model no/such: no config.json of it is on this machine; download the model's config first."
    ]


def test_changes_are_applied_first(says: Says) -> None:
    says([])
    with pytest.raises(InputError, match=r"--set limits\.eager=maybe"):
        check_profile("draft-1b", ["limits.eager=maybe"])


def test_a_malformed_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("engine: vllm\n")
    with pytest.raises(InputError, match=r"bad\.yaml:1: the key 'target' is missing"):
        check_profile(str(tmp_path / "bad.yaml"))


def test_an_endpoint_has_nothing_to_check() -> None:
    assert check_profile("draft-1b", ["engine=openai"]) == []


def test_another_engine_than_the_profiles_is_asked(says: Says) -> None:
    says(["odd"])
    assert (check_profile("draft-1b"), check_profile("draft-1b", engine_name="openai")) == (["odd"], [])
