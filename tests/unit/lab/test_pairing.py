"""From names on the command line to models, and what does not belong together."""

from typing import Any

import pytest

from toolkit.errors import InputError
from toolkit.lab.faults import FAULTS
from toolkit.lab.pairing import default_layers, find_fault, load_pair, planted
from toolkit.lab.reference import EXACT, LookupDrafter, ModelDrafter
from toolkit.lab.toy import toy_draft


class TestToy:
    @pytest.mark.parametrize(
        ("drafter", "kind"),
        [("none", None), ("lookup", LookupDrafter), ("unigram", ModelDrafter), (None, ModelDrafter)],
    )
    def test_a_drafter_is_what_its_name_says(self, drafter: str | None, kind: type | None) -> None:
        found = load_pair("toy", drafter).drafter
        assert (None if found is None else type(found)) == kind

    def test_each_pair_has_caches_of_its_own(self) -> None:
        one, other = load_pair("toy"), load_pair("toy")
        one.target.extend([1, 2])
        assert (one.target.length, other.target.length) == (2, 0)

    def test_lookup_lengths_are_as_asked(self) -> None:
        found = load_pair("toy", "lookup", lookup=(3, 7)).drafter
        assert isinstance(found, LookupDrafter)
        assert (found.shortest, found.longest) == (3, 7)

    def test_prompts_are_a_workloads(self) -> None:
        pair = load_pair("toy")
        first, second = pair.prompts("chat", 2)
        assert first != second

    @pytest.mark.parametrize(("workload", "count", "said"), [("chatt", 1, "Did you mean"), ("chat", 0, "at least")])
    def test_prompts_that_are_none_are_refused(self, workload: str, count: int, said: str) -> None:
        with pytest.raises(InputError, match=said):
            load_pair("toy").prompts(workload, count)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": "toy", "drafter": "layers"}, "of target toy it is one of none, lookup, unigram, bigram"),
        ({"target": "lab", "drafter": "bigram"}, "of target lab it is one of none, lookup, layers, model"),
        ({"drafter": "lookup", "layers": [1]}, "--layers belongs to --drafter layers"),
        ({"drafter": "none", "draft": "x"}, "--draft belongs to --drafter model"),
        ({"drafter": "model"}, "--draft is missing: --drafter model needs it"),
        ({"drafter": "lookup", "lookup": (3, 2)}, "--lookup 3,2: "),
        ({"drafter": "lookup", "lookup": (0, 2)}, "--lookup 0,2: "),
        ({"target": "/no/such/folder"}, "the folder does not exist"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_pair(**changes)


class TestFaults:
    def test_without_a_fault_the_rule_is_exact(self) -> None:
        drafter = ModelDrafter(toy_draft())
        assert planted(None, drafter) == (EXACT, drafter)

    @pytest.mark.parametrize("name", FAULTS)
    def test_each_can_lie_in_a_model_that_drafts(self, name: str) -> None:
        rule, drafter = planted(FAULTS[name], ModelDrafter(toy_draft()))
        assert (rule, drafter) != (EXACT, ModelDrafter(toy_draft()))

    @pytest.mark.parametrize("name", FAULTS)
    def test_prompt_lookup_has_only_those_of_the_rule(self, name: str) -> None:
        fault, drafter = FAULTS[name], LookupDrafter(97)
        if fault.needs_draft_model:
            with pytest.raises(InputError, match="lies in the draft model"):
                planted(fault, drafter)
        else:
            assert planted(fault, drafter) == (fault.rule, drafter)

    def test_none_lies_where_nothing_drafts(self) -> None:
        with pytest.raises(InputError, match="choose a drafter"):
            planted(FAULTS["no-rollback"], None)

    def test_an_unknown_one_is_refused_naming_all(self) -> None:
        with pytest.raises(InputError, match="no fault 'x': choose one of resample-from-p, no-rollback"):
            find_fault("x")


class TestDefaultLayers:
    @pytest.mark.parametrize("count", [12, 30, 61])
    def test_all_but_three_are_kept_in_order(self, count: int) -> None:
        found = default_layers(count)
        assert (len(found), found) == (count - 3, sorted(set(found) & set(range(count))))

    def test_the_labs_are_those_that_were_found(self) -> None:
        assert set(range(30)) - set(default_layers(30)) == {4, 5, 25}

    def test_a_shallow_model_needs_to_be_told(self) -> None:
        with pytest.raises(InputError, match="--layers is missing: of 11 layers"):
            default_layers(11)
