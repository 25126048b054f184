"""The command that proves: is it still the same model?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from toolkit.analysis.audit.judgement import LEVELS, Judgement
from toolkit.analysis.escape import one_line
from toolkit.cli.options import ApiKeyEnv, ApiKeyFile, AsJson, Changes, print_json
from toolkit.terminal import SweepProgress, err, out, say

app = typer.Typer()


@app.command()
def audit(
    profile: Annotated[str | None, typer.Option("--profile", "-p", help="The profile to audit; launched.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The profile to compare with; the same without speculation when absent.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="A running server that speculates.")] = None,
    reference_url: Annotated[str | None, typer.Option(help="The same model without speculation, running.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on the running servers.")] = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
    tokens: Annotated[int, typer.Option(help="Tokens to sample from each side.")] = 3000,
    temperature: Annotated[float, typer.Option(help="Of the sampled tokens; temperature 0 is audited anyway.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest, 16 at most; else from all.")] = None,
    require_conclusive: Annotated[
        bool, typer.Option("--require-conclusive", help="Exit 1 also when it is inconclusive.")
    ] = False,
    changes: Changes = None,
    run: Annotated[Path | None, typer.Option(help="The Run directory; runs/<time>-audit-<name> when absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Is it still the same model? Greedy tokens, sampled tokens, acceptance and strict JSON against the baseline's."""
    from toolkit.analysis.audit.audit import AuditAsk, judge_folder
    from toolkit.analysis.audit.audit import audit as measure
    from toolkit.analysis.audit.questions import Sampled

    ask = AuditAsk(
        profile=profile,
        baseline=baseline,
        base_url=base_url,
        reference_url=reference_url,
        model=model,
        api_key_env=api_key_env,
        api_key_file=api_key_file,
        changes=changes or (),
        how=Sampled(tokens=tokens, temperature=temperature, top_k=top_k),
        run=run,
    )
    with SweepProgress() as progress:
        folder = measure(ask, progress)
    judgement = judge_folder(folder)
    if as_json:
        print_json(judgement.as_json())
    else:
        print_judgement(judgement)
    say(f"Run directory: {folder}", err if as_json else out)
    bad = judgement.verdict == "lossy" or (require_conclusive and judgement.verdict == "inconclusive")
    raise typer.Exit(1 if bad else 0)


def print_judgement(judgement: Judgement) -> None:
    """The verdict, each level's reason, its checks, and what was too small to see."""
    say(f"verdict: {judgement.verdict}")
    for name in LEVELS:
        level = judgement.levels[name]
        say(f"  {name}: {level.verdict}. {level.reason}")
    table = Table("level", "check", "statistic", "p", "n", box=None)
    for name in LEVELS:
        for check in judgement.levels[name].tests:
            p = "n/a" if check.p is None else f"{check.p:.2g}" if check.counted else f"{check.p:.2g}, not judged"
            table.add_row(name, escape(one_line(check.name)), f"{check.statistic:.4g}", p, str(check.n))
    out.print(table)
    if judgement.power is not None:
        say(
            f"A total variation of {judgement.power:.3f} or more between the tokens' transform and uniform would have "
            "been seen in 9 of 10 audits; smaller faults may hide, and faults that cancel over contexts."
        )
    for name in LEVELS:
        for example in judgement.levels[name].examples:
            say(f"  {example}")
