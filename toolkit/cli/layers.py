"""`toolkit layer-skip`: drafts of a target's own layers. Makes their directory, and finds which layers to keep."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.options import AsJson, print_json
from toolkit.terminal import say

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
