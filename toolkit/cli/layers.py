"""`toolkit layer-skip`: drafts of a target's own layers. Makes their directory, and finds which layers to keep."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from toolkit.cli.options import AsJson, print_json
from toolkit.cli.tables import plain_table
from toolkit.terminal import NONE, SweepProgress, err, say, show

if TYPE_CHECKING:
    from toolkit.analysis.layers.curve import LayerSearch

app = typer.Typer()
layer_skip = typer.Typer(no_args_is_help=True, help="Let a model draft for itself, with some of its own layers.")
app.add_typer(layer_skip, name="layer-skip")

Target = Annotated[str, typer.Option(help="`lab`, a model's folder or hub name.")]


@layer_skip.command("make")
def layer_skip_make(
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="The draft directory: new, or empty.")],
    keep: Annotated[str | None, typer.Option(help="Layers that draft, like 0-3,28,29.")] = None,
    exit_after: Annotated[int | None, typer.Option("--exit", help="Only the first so many.")] = None,
    skip: Annotated[str | None, typer.Option(help="All but these, like 9-18.")] = None,
    as_json: AsJson = False,
) -> None:
    """A draft directory of a few kB: a config.json that names the layers to keep. No weights are read or written."""
    from toolkit.launch.layer_draft import layer_target, make_draft
    from toolkit.proposers.layer_set import format_layers

    made = make_draft(target, output, keep, exit_after, skip)
    share = layer_target(target).step_share(len(made.layers))
    if as_json:
        told = {"draft": str(output), "target": made.target, "layers": list(made.layers)}
        print_json({**told, "num_hidden_layers": made.num_hidden_layers, "c": share})
        return
    say(f"{output}: drafts with {len(made.layers)} of {made.num_hidden_layers} layers of {made.target}.")
    say(
        f"Kept: {format_layers(made.layers)}. A draft step reads {share:.0%} of what a target step reads, its head too."
    )


@layer_skip.command("search")
def layer_skip_search(
    target: Target,
    prompts: Annotated[
        str, typer.Option("--prompts", "--workload", help="What it answers: FILE.jsonl, copy-code, chat, ...")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the best set's draft directory there.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", "--n", help="Prompts; half are held out.")] = 32,
    tokens: Annotated[int, typer.Option(help="Places of each answer at which drafts start.")] = 32,
    k: Annotated[int, typer.Option("--k", help="Drafts of a round, the longest.")] = 8,
    cost: Annotated[
        Path | None, typer.Option(help="What verify-cost measured, for the pass over K + 1 tokens.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts' order, and of a generated workload.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes; layer-skip.png when absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which layers should draft? Leaves out those missed least, by agreement under shared KV, and says if a set pays.

    The target runs on this CPU. Exit code 1: no set pays.
    """
    from toolkit.analysis.layers.layer_search import LayerAsk, layer_search
    from toolkit.analysis.plots.layers import layers_figure
    from toolkit.analysis.plots.style import form_of, save

    path = plot or Path("layer-skip.png")
    form_of(path)
    ask = LayerAsk(target, prompts, output, requests, tokens, k, cost, seed)
    with SweepProgress() as progress:
        found = layer_search(ask, progress.stage)
    if as_json:
        print_json(found.as_json())
    else:
        show(search_lines(found))
    save(layers_figure(found), path)
    say(f"plot: {path}", err)
    if output is not None:
        say(f"draft: {output}", err)
    raise typer.Exit(0 if found.verdict == "pays" else 1)


def search_lines(found: "LayerSearch") -> Iterator[Table | str]:
    """All that `toolkit layer-skip search` prints: the curve, the sets, the verdict, what it rests on."""
    from toolkit.analysis.layers.curve import interval
    from toolkit.proposers.layer_set import format_layers

    yield (
        f"A prediction for {found.target} drafting with its own layers on {found.prompts}, greedy: searched with "
        f"{found.texts[0]} texts ({found.places[0]} places), said of {found.texts[1]} others ({found.places[1]})."
    )
    heads = ("c", "searched", "held out, 95 %", "K", "tok/step", "speedup, 95 %")
    table = plain_table("cost c, agreement, and speedup of the best K, by layers kept", "kept", *heads)
    for one in found.points:
        table.add_row(
            str(len(one.layers)),
            f"{one.c:.2f}",
            f"{one.searched.agreement.value:.1%}",
            one.held_out.agreement.percent,
            str(one.k),
            f"{one.rounds.tokens.value:.2f}",
            interval(one.speedup),
        )
    yield table
    best = found.best
    yield f"{found.sentence[0].upper()}{found.sentence[1:]}."
    yield f"It keeps layers {format_layers(best.layers)}."
    given = ", ".join(NONE if share is None else f"{share:.1%}" for share in best.rounds.given)
    yield f"Its drafts are kept, by position, given those before: {given}."
    yield (
        f"Agreement: first draft tokens that are the target's, from every place. Speedup: rounds along the texts, "
        f"K the best on the texts searched with; {found.cost_source}."
    )
    yield (f"{found.evaluations} sets tried in {found.seconds:.0f} s, {found.cpu_seconds:.0f} s of CPU time.")
