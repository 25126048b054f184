"""From names on the command line to what the reference loop runs: a target, its tokenizer, and what drafts for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import InputError
from toolkit.lab.faults import FAULTS, Fault
from toolkit.lab.model import LAB_MODEL
from toolkit.lab.reference import EXACT, Drafter, LookupDrafter, Model, ModelDrafter, Rule
from toolkit.lab.tokenizer import FolderTokenizer, Tokenizer
from toolkit.lab.toy import DRAFTS, ToyTokenizer, toy_draft, toy_target
from toolkit.launch.models import resolve_model

TOY = "toy"
TARGETS = {"lab": LAB_MODEL}  # short names
MODEL_DRAFTERS = ("none", "lookup", "layers", "model")
TOY_DRAFTERS = ("none", "lookup", *DRAFTS)
LOOKUP = (2, 5)  # shortest and longest suffix looked up, tokens


@dataclass(frozen=True, slots=True)
class Pair:
    """Models with caches of their own: load one per server. `longest` is the longest sequence they were made for."""

    name: str
    target: Model
    tokenizer: Tokenizer
    drafter: Drafter | None
    longest: int | None = None

    def prompts(self, workload: str, count: int) -> list[list[int]]:
        """The first `count` prompts of a shipped workload or a .jsonl file, as token ids. Raises InputError."""
        from toolkit.analysis.workload import in_language, load_workload

        if count < 1:
            raise InputError(f"{count} prompts are not enough: take at least 1.")
        made = in_language(load_workload(workload), "acceptance")
        try:
            return [self.tokenizer.chat(made.prompt(index).messages) for index in range(count)]
        except ValueError as error:
            raise InputError(f"{workload}: {error}.") from None


def load_pair(
    target: str = "lab",
    drafter: str | None = None,
    layers: Sequence[int] | None = None,
    draft: str | None = None,
    lookup: tuple[int, int] = LOOKUP,
) -> Pair:
    """`target` is `lab`, `toy`, a folder or a hub name; `drafter` one of MODEL_DRAFTERS, of a toy one of TOY_DRAFTERS.

    None is the draft that comes with the target: `layers`, of a toy `bigram`.
    `layers` are those that drafter `layers` keeps, `draft` is the model of drafter `model`. Models run in fp32 on the
    CPU. Raises InputError for what does not belong together, EngineError when the lab's model cannot be fetched.
    """
    known = TOY_DRAFTERS if target == TOY else MODEL_DRAFTERS
    drafter = drafter or ("bigram" if target == TOY else "layers")
    if drafter not in known:
        raise InputError(f"--drafter {drafter}: of target {target} it is one of {', '.join(known)}.")
    if layers is not None and drafter != "layers":
        raise InputError("--layers belongs to --drafter layers.")
    if draft is not None and drafter != "model":
        raise InputError("--draft belongs to --drafter model.")
    if draft is None and drafter == "model":
        raise InputError("--draft is missing: --drafter model needs it.")
    if not 1 <= lookup[0] <= lookup[1]:
        raise InputError(f"--lookup {lookup[0]},{lookup[1]}: the shortest suffix, 1 or more, then the longest.")
    return _toy(drafter, lookup) if target == TOY else _folder(target, drafter, layers, draft, lookup)


def find_fault(name: str) -> Fault:
    """The fault of that name. Raises InputError naming all of them."""
    if name not in FAULTS:
        raise InputError(f"there is no fault {name!r}: choose one of {', '.join(FAULTS)}.")
    return FAULTS[name]


def planted(fault: Fault | None, drafter: Drafter | None) -> tuple[Rule, Drafter | None]:
    """The rule and the drafter with `fault` in them. Raises InputError where it cannot lie there."""
    if fault is None:
        return EXACT, drafter
    if drafter is None:
        raise InputError(f"fault {fault.name} lies in speculation, and nothing drafts here: choose a drafter.")
    if isinstance(drafter, ModelDrafter):
        return fault.rule, fault.drafter(drafter.model)
    if fault.needs_draft_model:
        raise InputError(f"fault {fault.name} lies in the draft model, and this drafter has none.")
    return fault.rule, drafter


def _toy(drafter: str, lookup: tuple[int, int]) -> Pair:
    target = toy_target()
    if drafter in DRAFTS:
        return Pair(TOY, target, ToyTokenizer(), ModelDrafter(toy_draft(drafter)))
    return Pair(TOY, target, ToyTokenizer(), LookupDrafter(target.size, *lookup) if drafter == "lookup" else None)


def _folder(name: str, drafter: str, layers: Sequence[int] | None, draft: str | None, lookup: tuple[int, int]) -> Pair:
    from toolkit.lab.causal_lm import keep_layers, load_model

    name = TARGETS.get(name, name)
    folder = Path(resolve_model(name))
    target = load_model(folder)
    tokenizer = FolderTokenizer(folder)
    made: Drafter | None = None
    longest = target.longest
    if drafter == "lookup":
        made = LookupDrafter(target.size, *lookup)
    elif drafter == "layers":
        made = ModelDrafter(keep_layers(target, default_layers(target.layers) if layers is None else layers))
    elif draft is not None:
        model = load_model(Path(resolve_model(TARGETS.get(draft, draft))))
        if model.size != target.size:
            raise InputError(
                f"--draft {draft}: its vocabulary has {model.size} tokens and the target's {target.size}; drafts are "
                "checked by token id, so take a draft of the target's family."
            )
        made, longest = ModelDrafter(model), min(longest, model.longest)
    return Pair(name, target, tokenizer, made, longest)


def default_layers(count: int) -> list[int]:
    """Of `count` layers, those that the draft keeps unless told otherwise: all but two at a sixth, one at five sixths.

    Of the lab model's single layers these are the least missed. Without them sum min(p, q) is .74 at temperature 1 (105
    tokens of three prompts), without a third of all layers .15: no bargain, a model that was not trained for it.
    Raises InputError for fewer than 12 layers.
    """
    if count < 12:
        raise InputError(f"--layers is missing: of {count} layers none can be spared unasked.")
    left_out = {count // 6 - 1, count // 6, 5 * count // 6}
    return [layer for layer in range(count) if layer not in left_out]
