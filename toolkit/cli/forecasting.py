"""The command that predicts acceptance, and its tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from toolkit.cli.options import AsJson, print_json
from toolkit.cli.tables import plain_table
from toolkit.terminal import NONE, SweepProgress, show

if TYPE_CHECKING:
    from toolkit.analysis.forecast.beta import Beta
    from toolkit.analysis.forecast.estimate import Estimate
    from toolkit.analysis.forecast.expectation import Expectation

app = typer.Typer()


@app.command()
def beta(
    target: Annotated[
        str, typer.Option(help="`lab`, `toy`, a model's folder or hub name, or a file of logged distributions.")
    ],
    draft: Annotated[str, typer.Option(help="The same of the draft; `layers` of the target; `bigram` of the toy.")],
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", "--workload", help="What two models answer: FILE.jsonl, copy-code, chat, ..."),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Drafts of a round, the longest.")] = 8,
    c: Annotated[float | None, typer.Option("--c", help="A draft step's time over a target step's.")] = None,
    target_step: Annotated[float | None, typer.Option(help="Instead of --c: a target step, milliseconds.")] = None,
    draft_step: Annotated[float | None, typer.Option(help="Instead of --c: a draft step, milliseconds.")] = None,
    temperature: Annotated[float | None, typer.Option(help="1 for models; as logged for files.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest of this mass.")] = None,
    draft_sample_method: Annotated[
        str, typer.Option(help="probabilistic, or greedy: what vLLM does unless told otherwise.")
    ] = "probabilistic",
    requests: Annotated[int | None, typer.Option("--requests", "--n", help="Prompts to answer; 16.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="Longest answer, tokens; 128.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draws, and of a generated workload.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Will drafts be accepted? Sum of min(p, q), the rule at work, simulated rounds: before a GPU-hour is spent.

    Two models answer prompts in the reference loop, in fp32 on this CPU; or two files hold what models said: one row
    per place of a text, JSONL {"probs": [...], "token": 7, "sequence": "a", "position": 0} or NumPy (.npy, .npz) of the
    same names. Exit code 1: stop, or it costs.
    """
    from toolkit.analysis.forecast.beta import BetaAsk
    from toolkit.analysis.forecast.beta import beta as predict

    ask = BetaAsk(
        target=target,
        draft=draft,
        prompts=prompts,
        k=k,
        c=c,
        target_step=target_step,
        draft_step=draft_step,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        draft_sample_method=draft_sample_method,
        requests=requests,
        tokens=tokens,
        seed=seed,
    )
    with SweepProgress() as progress:
        found = predict(ask, progress.stage)
    if as_json:
        print_json(found.as_json())
    else:
        show(beta_lines(found))
    raise typer.Exit(found.exit_code)


def beta_lines(found: "Beta") -> Iterator[Table | str]:
    """All that `toolkit beta` prints: acceptance, on average and by position, speedups by K, the verdict, notes."""
    expected = found.expected
    texts = f"{expected.texts} text{'s' if expected.texts > 1 else ''}"
    yield f"A prediction for {found.ask.target} and {found.ask.draft}, {found.ask.sampling_words}, from {texts}."
    averages = plain_table("acceptance, 95 % interval", "", "kept", "n")
    rows = {
        "sum of min(p, q), all places": expected.predicted,
        "the rule run there": expected.observed,
        "first drafts of rounds: trust this": expected.acceptance,
        **({"first drafts of the loop's own rounds": expected.loop[0]} if expected.loop else {}),
    }
    for name, one in rows.items():
        averages.add_row(name, one.percent, f"{one.n:.0f}")
    yield averages
    yield _positions(expected)
    yield _lengths(expected)
    if expected.everywhere_best is not None and expected.best is not None:
        k, speedup = expected.everywhere_best
        yield f"Averaged over all places the best K would be {k}, at {speedup:.2f}x; drafts do not start at all places."
    yield f"{found.sentence[0].upper()}{found.sentence[1:]}."
    yield from (f"{note[0].upper()}{note[1:]}." for note in found.notes)


def _positions(expected: "Expectation") -> Table:
    """Acceptance by position in the draft, drafts everywhere beside drafts of rounds."""
    heads = ("from every place", "n", f"in rounds of {expected.k}", "n")
    table = plain_table("acceptance by position in the draft, given those before", "position", *heads)
    for position in range(len(expected.everywhere)):
        cells = [cell for column in (expected.everywhere, expected.stepping) for cell in _cells(column, position)]
        table.add_row(str(position + 1), *cells)
    return table


def _cells(column: "list[Estimate]", position: int) -> tuple[str, str]:
    if position >= len(column):
        return NONE, "0"
    return column[position].percent, f"{column[position].n:.0f}"


def _lengths(expected: "Expectation") -> Table:
    """Tokens per target step and speedup of rounds of each length."""
    heads = ["first draft kept", "tok/step", *(["speedup"] if expected.c is not None else []), "rounds"]
    table = plain_table("rounds of K drafts", "K", *heads)
    for one in expected.lengths:
        speedup = [f"{one.speedup.value:.2f}x{_interval(one.speedup)}"] if one.speedup else []
        tokens = f"{one.tokens_per_step.value:.2f}{_interval(one.tokens_per_step)}"
        table.add_row(str(one.k), one.acceptance.percent, tokens, *speedup, f"{one.tokens_per_step.n:.0f}")
    return table


def _interval(one: "Estimate") -> str:
    return f" [{one.low:.2f}, {one.high:.2f}]" if one.low is not None and one.high is not None else ""
