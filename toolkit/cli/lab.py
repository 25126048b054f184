"""`toolkit lab`: the lesson's experiments on the reference loop, and the loop as a server."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from toolkit.cli.options import AsJson, print_json, whole_numbers
from toolkit.cli.tables import plain_table
from toolkit.errors import InputError
from toolkit.terminal import NONE, err, out, say

if TYPE_CHECKING:
    from toolkit.lab.distribution import Emitted
    from toolkit.lab.experiments import KSweep, VerifyCost
    from toolkit.lab.pairing import Pair

app = typer.Typer()
lab = typer.Typer(no_args_is_help=True, help="The lesson's experiments on the lab model, and the loop as a server.")
app.add_typer(lab, name="lab")

Target = Annotated[str, typer.Option(help="`lab`, `toy`, a model's folder or hub name.")]
DrafterName = Annotated[
    str | None, typer.Option("--drafter", help="none, lookup, layers, model; of the toy none, lookup, unigram, bigram.")
]
Layers = Annotated[str | None, typer.Option(help="Of drafter layers: those it keeps, like 0,1,2,27,28,29.")]
Draft = Annotated[str | None, typer.Option(help="Of drafter model: a folder or hub name.")]
Lookup = Annotated[str, typer.Option(help="Of drafter lookup: shortest and longest suffix, tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Of the draws.")]


@lab.command("serve")
def lab_serve(
    target: Target = "lab",
    drafter: DrafterName = "none",
    k: Annotated[int, typer.Option("--k", help="Draft tokens per step.")] = 4,
    layers: Layers = None,
    draft: Draft = None,
    lookup: Lookup = "2,5",
    fault: Annotated[str | None, typer.Option(help="Plant one: `toolkit lab break` lists them.")] = None,
    served_name: Annotated[str | None, typer.Option(help="Name in the API; the target's when absent.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Prompt and answer, tokens; 2048.")] = None,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = 8100,
) -> None:
    """The reference loop behind an OpenAI-compatible endpoint, one request at a time, in vLLM's dialect."""
    from toolkit.lab.serve import serve

    serve(
        lambda: _pair(target, drafter, layers, draft, lookup),
        k,
        fault_name=fault,
        name=served_name,
        max_model_len=max_model_len,
        host=host,
        port=port,
        ready=lambda base_url: say(f"ready at {base_url}", err),
    )


@lab.command("verify-cost")
def lab_verify_cost(
    target: Target = "lab",
    drafter: DrafterName = None,
    layers: Layers = None,
    draft: Draft = None,
    lookup: Lookup = "2,5",
    context: Annotated[int, typer.Option(help="Cached tokens before the new ones.")] = 256,
    repeats: Annotated[int, typer.Option(help="Readings per point.")] = 5,
    as_json: AsJson = False,
) -> None:
    """What does checking cost? A target pass over 1, 2, 4 ... 64 new tokens on a cached prompt, and a draft step."""
    from toolkit.lab.experiments import verify_cost

    with err.status("timing passes"):
        pair = _pair(target, drafter, layers, draft, lookup)
        found = verify_cost(pair, pair.prompts("copy-list", 1)[0], context, repeats)
    if as_json:
        print_json({"target": pair.name, **asdict(found), "c": found.c})
    else:
        _show_cost(pair.name, found)


@lab.command("sweep-k")
def lab_sweep_k(
    target: Target = "lab",
    drafter: DrafterName = "lookup",
    layers: Layers = None,
    draft: Draft = None,
    lookup: Lookup = "2,5",
    k: Annotated[str, typer.Option("--k", help="Draft lengths.")] = "1,2,4,8",
    workload: Annotated[str, typer.Option(help="copy-code, copy-list, extract, chat, creative, or FILE.jsonl.")] = (
        "copy-list"
    ),
    prompts: Annotated[int, typer.Option("--requests", "--n", help="Prompts.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, tokens.")] = 32,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Which K pays? Tokens per pass, seconds and speedup of each K against plain decoding, and what theory predicts."""
    from toolkit.lab.experiments import sweep_k
    from toolkit.lab.reference import Sampling

    with err.status("decoding with each K"):
        pair = _pair(target, drafter, layers, draft, lookup)
        asked = pair.prompts(workload, prompts)
        found = sweep_k(pair, asked, whole_numbers("--k", k), max_tokens, Sampling(temperature), seed)
    if as_json:
        lengths = [{**asdict(one), "tokens_per_pass": one.tokens_per_pass} for one in found.lengths]
        print_json({"target": pair.name, **asdict(found), "lengths": lengths})
    else:
        _show_sweep(pair.name, found, temperature)


@lab.command("distribution")
def lab_distribution(
    target: Target = "lab",
    drafter: DrafterName = None,
    layers: Layers = None,
    draft: Draft = None,
    lookup: Lookup = "2,5",
    prefix: Annotated[str, typer.Option(help="The text whose next token is drawn.")] = "The capital of France is",
    draws: Annotated[int, typer.Option(help="Draws of the rule, each time.")] = 20_000,
    temperature: Temperature = 1.0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Is what speculation emits the target's own? Many draws of the rule, by chi-square and total variation."""
    from toolkit.lab.distribution import distribution
    from toolkit.lab.reference import Sampling

    with err.status("drawing"):
        pair = _pair(target, drafter, layers, draft, lookup)
        found = distribution(pair, prefix, draws, Sampling(temperature), seed)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        _show_emitted(found)


@lab.command("break")
def lab_break(
    fault: Annotated[str | None, typer.Argument(help="One of them; all when none is named.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """What do engines get wrong, and which check sees it? Plants each fault in the toy pair, and counts tokens."""
    from toolkit.lab.break_report import break_report
    from toolkit.lab.faults import FAULTS

    found = {}
    for name in [fault] if fault else FAULTS:
        with err.status(f"planting {escape(name)}"):
            found[name] = break_report(name, seed)
    if as_json:
        told: list[dict[str, Any]] = [
            {
                "fault": name,
                "lossy": FAULTS[name].lossy,
                "what": FAULTS[name].what,
                "caught_after": {one.check: one.tokens for one in checks},
            }
            for name, checks in found.items()
        ]
        print_json(told)
        return
    checks = [one.check for one in next(iter(found.values()))]
    table = plain_table("emitted tokens until a check sees the fault", "fault", "answers", *checks)
    for name, caught in found.items():
        lossy = "changed" if FAULTS[name].lossy else "the target's"
        table.add_row(name, lossy, *("never" if one.tokens is None else str(one.tokens) for one in caught))
    out.print(table)
    for name in found:
        say(f"{name}: {FAULTS[name].what}")


def _pair(target: str, drafter: str | None, layers: str | None, draft: str | None, lookup: str) -> "Pair":
    from toolkit.lab.pairing import load_pair

    suffixes = whole_numbers("--lookup", lookup)
    if len(suffixes) != 2:
        raise InputError(f"--lookup {lookup}: two numbers, the shortest suffix and the longest, like 2,5.")
    kept = None if layers is None else whole_numbers("--layers", layers)
    return load_pair(target, drafter, kept, draft, (suffixes[0], suffixes[1]))


def _show_cost(name: str, found: "VerifyCost") -> None:
    table = plain_table(f"{name}: a pass on {found.context} cached tokens", "new tokens", "ms", "times one token's")
    one = found.passes[0][1]
    for size, seconds in found.passes:
        table.add_row(str(size), f"{1e3 * seconds:.3g}", f"{seconds / one:.2f}")
    out.print(table)
    if found.draft_step is not None:
        say(f"A draft step takes {1e3 * found.draft_step:.3g} ms: c = {found.c:.2g}.")


def _show_sweep(name: str, found: "KSweep", temperature: float) -> None:
    rate = found.tokens / found.seconds
    table = plain_table(
        f"{name}: {found.prompts} prompts, plain decoding {rate:.1f} tok/s, c = {found.c:.2g}",
        "K",
        "tok/pass",
        "seconds",
        "speedup",
        "predicted",
        "same answers",
    )
    for one in found.lengths:
        same = f"{one.same} of {found.prompts}" if temperature == 0 else NONE
        numbers = (f"{one.tokens_per_pass:.2f}", f"{one.seconds:.2f}", f"{one.speedup:.2f}x", f"{one.predicted:.2f}x")
        table.add_row(str(one.k), *numbers, same)
    out.print(table)
    longest = max(one.k for one in found.lengths)
    kept = plain_table("drafts kept at a position, given those before", "K", *map(str, range(1, longest + 1)))
    for one in found.lengths:
        kept.add_row(str(one.k), *(NONE if share is None else f"{share:.0%}" for share in one.given))
    out.print(kept)
    say("Predicted: by these shares and c, if a pass over K + 1 tokens took as long as over one.")


def _show_emitted(found: "Sequence[Emitted]") -> None:
    table = plain_table(
        "the emitted token against the target's own distribution",
        "pair",
        "draws",
        "alpha",
        "kept",
        "chi-square",
        "bins",
        "p",
        "TV",
        "by chance",
    )
    for one in found:
        table.add_row(
            one.name,
            str(one.draws),
            f"{one.alpha:.4f}",
            f"{one.kept:.4f}",
            f"{one.chi_square:.1f}",
            str(one.bins),
            f"{one.p_value:.3f}",
            f"{one.total_variation:.4f}",
            f"{one.noise:.4f}",
        )
    out.print(table)
    say("alpha: sum of min(p, q). TV: total variation; by chance is what as many draws of the target itself show.")
    for one in found:
        if one.tokens_per_pass is not None and one.expected_tokens_per_pass is not None:
            say(f"{one.name}: {one.tokens_per_pass:.4f} tokens per pass, {one.expected_tokens_per_pass:.4f} by theory.")
