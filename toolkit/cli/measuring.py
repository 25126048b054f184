"""Commands that measure: they start engines or talk to running ones, and leave Run directories behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.options import ApiKeyEnv, ApiKeyFile, AsJson, Changes, ProfileName, print_json
from toolkit.cli.reading import print_cost, print_crossover
from toolkit.terminal import SweepProgress, err, out, say

if TYPE_CHECKING:
    from toolkit.analysis.ask import Ask

app = typer.Typer()


@app.command()
def demo(
    run: Annotated[Path | None, typer.Option("--run", help="Where the Run directory goes.")] = None,
    minutes: Annotated[float, typer.Option(help="Budget of the measurement.")] = 8.0,
) -> None:
    """Does it work here? A small real model on the real vLLM, with and without speculation, on any CPU."""
    from toolkit.lab.demo import ask_of, show_results

    with SweepProgress() as progress:
        folder = _sweep(ask_of(minutes, run), progress)
    print_crossover(folder, as_json=False)
    for line in show_results(folder):
        say(line)


@app.command()
def sweep(
    profile: Annotated[list[str] | None, typer.Option("--profile", "-p", help="An arm to launch; repeatable.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The profile to compare with.")] = None,
    base_url: Annotated[str | None, typer.Option(help="A running server, like http://localhost:8000/v1.")] = None,
    baseline_url: Annotated[str | None, typer.Option(help="A running server without speculation.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on the running server.")] = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            "--prompts",
            help="copy-code, copy-list, extract, chat, creative, or a file: Spec-Bench, SPEED-Bench, ShareGPT, or a "
            "prompt per line. For load only: random.",
        ),
    ] = None,
    concurrency: Annotated[str | None, typer.Option(help="Levels, like 1,4,16,64 (the default).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Pairs per level; 6, or 1 without a baseline.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", "--n", help="Requests per cell; 4 x level.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, tokens; 128.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy, the default.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Every answer has --max-tokens tokens.")] = False,
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=VALUE", help="A further field of each request, like top_p=0.9."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses the prompts of a generated workload.")] = None,
    target: Annotated[str | None, typer.Option(help="The row's label on the scoreboard.")] = None,
    precision: Annotated[str | None, typer.Option(help="For the scoreboard, like bf16.")] = None,
    change: Annotated[str | None, typer.Option(help="What was changed, for the scoreboard.")] = None,
    changes: Changes = None,
    budget: Annotated[float | None, typer.Option(help="Minutes to allocate pairs in, instead of --rounds.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Longest wait for a byte, seconds; 300.")] = None,
    run: Annotated[Path | None, typer.Option(help="The Run directory; runs/<time>-<profile> when absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure it: constant concurrency, arm and baseline in turn, into a Run directory. Killed, it resumes by cell."""
    from toolkit.analysis.ask import Ask

    ask = Ask(
        profiles=profile or (),
        baseline=baseline,
        base_url=base_url,
        baseline_url=baseline_url,
        model=model,
        api_key_env=api_key_env,
        api_key_file=api_key_file,
        workload=workload,
        concurrency=concurrency,
        rounds=rounds,
        requests=requests,
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos,
        fields=fields or (),
        seed=seed,
        budget=budget * 60 if budget is not None else None,
        timeout=timeout,
        target=target,
        precision=precision,
        change=change,
        changes=changes or (),
        run=run,
    )
    with SweepProgress() as progress:
        folder = _sweep(ask, progress)
    print_crossover(folder, as_json)
    say(f"Run directory: {folder}", err if as_json else out)


@app.command()
def tune(
    profile: ProfileName,
    k: Annotated[str | None, typer.Option("--k", help="Draft lengths to try; 0,1,2,4,8.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Levels, like 1,4,16,64 (the default).")] = None,
    workload: Annotated[
        str | None, typer.Option(help="copy-code, copy-list, extract, chat, creative, or FILE.jsonl.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Pairs per level, 6; 5 at least.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", "--n", help="Requests per cell; 4 x level.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, tokens; 128.")] = None,
    changes: Changes = None,
    run: Annotated[Path | None, typer.Option(help="Where its Run directories go.")] = None,
    output: Annotated[Path | None, typer.Option("--out", help="The tuned profile; PROFILE-tuned.yaml here.")] = None,
    as_json: AsJson = False,
) -> None:
    """What schedule should I set? Tries K x concurrency, writes K by load into a profile, and measures that again."""
    from toolkit.analysis.tuning.tune import TuneAsk
    from toolkit.analysis.tuning.tune import tune as measure

    ask = TuneAsk(
        profile,
        ks=k,
        concurrency=concurrency,
        workload=workload,
        rounds=rounds,
        max_tokens=max_tokens,
        requests=requests,
        changes=changes or [],
        run=run,
        out=output,
    )
    with SweepProgress() as progress, _stopped_in_words():
        tuning = measure(ask, progress)
    if as_json:
        print_json(tuning.as_json())
    else:
        for line in tuning.lines():
            say(line)
    raise typer.Exit(tuning.exit_code)


@app.command("verify-cost")
def verify_cost(
    profile: Annotated[
        list[str] | None, typer.Option("--profile", "-p", help="Launched without and with its speculation; repeatable.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="A running server; with speculation if --baseline-url is.")
    ] = None,
    baseline_url: Annotated[str | None, typer.Option(help="A running server without speculation.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on the running server.")] = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
    changes: Changes = None,
    repeats: Annotated[int, typer.Option(help="Readings per point.")] = 9,
    run: Annotated[
        Path | None, typer.Option(help="Where cost.json goes; runs/<time>-cost-<profile> when absent.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What does a step cost here? Passes over 1, 2, 4 ... new tokens on a cached prompt, and the draft's share c."""
    from toolkit.analysis.forecast.cost import read_cost
    from toolkit.analysis.forecast.verify_cost import CostAsk
    from toolkit.analysis.forecast.verify_cost import verify_cost as measure

    ask = CostAsk(
        profiles=profile or (),
        base_url=base_url,
        baseline_url=baseline_url,
        model=model,
        api_key_env=api_key_env,
        api_key_file=api_key_file,
        changes=changes or (),
        repeats=repeats,
        run=run,
    )
    with SweepProgress() as progress:
        folder = measure(ask, progress)
    print_cost(read_cost(folder), as_json)
    say(f"kept in {folder}; `toolkit plan --calibrate {folder}` uses it", err if as_json else out)


def _sweep(ask: "Ask", progress: SweepProgress) -> Path:
    from toolkit.analysis.prepare import sweep as measure

    with _stopped_in_words():
        return measure(ask, progress)


@contextmanager
def _stopped_in_words() -> Iterator[None]:
    """A Ctrl-C ends with what is left to do."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("stopped; finished cells stand, the same command goes on from there.")
        raise
