"""The command that compares proposers on recorded traffic, and its tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from toolkit.cli.options import AsJson, print_json
from toolkit.cli.tables import plain_table
from toolkit.terminal import NONE, SweepProgress, show

if TYPE_CHECKING:
    from toolkit.analysis.replay.comparison import ReplayAsk, Row

app = typer.Typer()


@app.command()
def replay(
    trace: Annotated[Path, typer.Option(help="Recorded prompts and answers as token ids, JSONL: docs/traces.md.")],
    proposer: Annotated[
        list[str] | None, typer.Option(help="Only this one, like prompt-lookup or vllm-ngram; repeatable.")
    ] = None,
    max_draft: Annotated[int, typer.Option(help="The most tokens drafted in a step, K.")] = 16,
    floor: Annotated[float | None, typer.Option(help="Draft what survives with this probability.")] = None,
    cost: Annotated[
        Path | None, typer.Option(help="What verify-cost measured: draft what earns more than it costs, and say tok/s.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once, where a step has a cost.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Which proposer suits my traffic? Tokens per pass, acceptance, time and memory of each. Needs no model."""
    from toolkit.analysis.replay.comparison import FLOOR, ReplayAsk
    from toolkit.analysis.replay.comparison import replay as compare

    ask = ReplayAsk(
        trace=trace,
        max_draft=max_draft,
        floor=FLOOR if floor is None else floor,
        cost=cost,
        concurrency=concurrency,
        proposers=proposer or (),
    )
    with SweepProgress() as progress:
        rows = compare(ask, progress.stage)
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        show(replay_lines(ask, rows))


def replay_lines(ask: "ReplayAsk", rows: Sequence["Row"]) -> Iterator[Table | str]:
    """All that `toolkit replay` prints: a table per class, how far ours drafts, where the limit is, who is missing."""
    from toolkit.analysis.replay.comparison import ORACLE, OURS
    from toolkit.analysis.replay.timing import BATCH

    kinds = list(dict.fromkeys(row.kind for row in rows))
    for kind in kinds:
        yield _table(kind, [row for row in rows if row.kind == kind], cost=ask.cost is not None)
    yield (
        f"drafted: tokens a step. us: to draft, per request and step, {BATCH} at once. ns, B: to index, per prompt "
        "token. n/a: not measured, or nothing was drafted."
    )
    if ask.cost:
        yield (
            f"Ours drafts what earns more than it costs by {ask.cost}, at most {ask.max_draft} tokens. "
            f"That predicts tok/s, {ask.concurrency} at a time, of the passes after the prefill."
        )
    else:
        yield (
            f"As if verifying cost nothing: at most {ask.max_draft} tokens, and ours while a token survives with a "
            f"probability of at least {ask.floor:g}."
        )
    by_name = {(row.kind, row.proposer): row.tokens_per_pass for row in rows}
    shares = [
        f"{ours / limit:.0%} on {kind}"
        for kind in kinds
        if (ours := by_name.get((kind, OURS))) and (limit := by_name.get((kind, ORACLE)))
    ]
    if shares:
        yield (
            "The oracle copies what comes next wherever that stands before. Of its tok/pass ours reaches "
            f"{', '.join(shares)}."
        )
    yield from dict.fromkeys(f"{row.proposer} not compared: {row.unavailable}." for row in rows if row.unavailable)


def _table(kind: str, rows: Sequence["Row"], cost: bool) -> Table:
    known = next((row for row in rows if not row.unavailable), None)
    title = f"{kind}: {known.requests} requests, {known.completion_tokens} tokens" if known else kind
    predicted = ("tok/s",) if cost else ()
    heads = ("tok/pass", "accept", "drafted", "us", "ns", "B", *predicted)
    table = plain_table(title, "", *heads)
    for row in rows:
        accept = row.draft_acceptance_rate
        table.add_row(
            row.proposer,
            _number(row.tokens_per_pass, 2),
            NONE if accept is None else f"{accept:.1%}",
            _number(row.drafted_per_step, 1),
            _number(row.us_per_step, 1),
            _number(row.build_ns_per_token, 0),
            _number(row.bytes_per_token, 0),
            *([_number(row.tokens_per_second, 0)] if cost else []),
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
