"""Every planted fault that is lossy is caught by `toolkit audit` as it comes, over HTTP; the merely slow are not named.

The servers are the reference loop with the toy pair (bigram draft, K = 4), the size of an audit is the default. All
audits share one reference server, whose tokens do not depend on what it was asked before.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.analysis.audit.audit import AuditAsk, audit, judge_folder
from toolkit.analysis.audit.judgement import Judgement
from toolkit.lab.faults import FAULTS
from toolkit.lab.reference import ModelDrafter
from toolkit.lab.serve import LabServer
from toolkit.lab.toy import ToyTokenizer, toy_pair, toy_target

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SOUND = "none"
LOSSY = [name for name, fault in FAULTS.items() if fault.lossy]
SLOW = [name for name, fault in FAULTS.items() if not fault.lossy]


class Silent:
    def stage(self, text: str) -> None: ...

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


@pytest.fixture(scope="module")
def reference() -> Iterator[LabServer]:
    with LabServer(toy_target(), ToyTokenizer()) as server:
        yield server


@pytest.fixture(scope="module")
def judgements() -> dict[str, Judgement]:
    return {}


@pytest.fixture
def judged(
    request: pytest.FixtureRequest,
    reference: LabServer,
    judgements: dict[str, Judgement],
    tmp_path_factory: pytest.TempPathFactory,
) -> Judgement:
    """The judgement of an audit of the loop with the fault that the test is parametrised by; asked once."""
    name: str = request.param
    if name not in judgements:
        judgements[name] = audited(name, reference, tmp_path_factory.mktemp(name))
    return judgements[name]


def audited(name: str, reference: LabServer, run: Path) -> Judgement:
    target, draft = toy_pair("bigram")
    fault = FAULTS.get(name)
    drafter = fault.drafter(draft) if fault else ModelDrafter(draft)
    with LabServer(target, ToyTokenizer(), drafter, k=4, fault=fault) as arm:
        ask = AuditAsk(base_url=arm.base_url, reference_url=reference.base_url, run=run)
        return judge_folder(audit(ask, Silent()))


def told(judgement: Judgement) -> dict[str, str]:
    return {name: f"{level.verdict}: {level.reason}" for name, level in judgement.levels.items()}


def test_there_are_faults_of_both_kinds() -> None:
    assert (len(LOSSY), len(SLOW)) == (5, 2)


@pytest.mark.parametrize("judged", LOSSY, indirect=True)
def test_a_lossy_fault_is_caught_at_the_default_size(judged: Judgement) -> None:
    assert judged.verdict == "lossy", told(judged)


@pytest.mark.parametrize("judged", LOSSY, indirect=True)
def test_a_person_is_shown_three_examples_of_it(judged: Judgement) -> None:
    examples = [example for level in judged.levels.values() for example in level.examples]
    assert len(examples) >= 3, told(judged)


@pytest.mark.parametrize("judged", [SOUND, *SLOW], indirect=True)
def test_a_draft_that_is_merely_bad_is_not_called_lossy(judged: Judgement) -> None:
    assert judged.verdict == "lossless", told(judged)


@pytest.mark.parametrize("judged", [SOUND, *SLOW], indirect=True)
def test_its_power_is_stated(judged: Judgement) -> None:
    """What it would have caught in nine of ten audits, with 3,000 tokens."""
    assert judged.power is not None
    assert judged.power < 0.075
