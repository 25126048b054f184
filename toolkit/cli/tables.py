"""Tables and sentences of predictions and costs, as the terminal shows them."""

from rich import box
from rich.markup import escape
from rich.table import Table

from toolkit.analysis.escape import one_line
from toolkit.analysis.forecast.cost import MeasuredCost
from toolkit.analysis.forecast.plan import Plan


def plain_table(title: str, *headings: str) -> Table:
    """A table of numbers: the first column on the left, the others on the right."""
    table = Table(
        title=escape(one_line(title)),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    for number, heading in enumerate(headings):
        table.add_column(escape(one_line(heading)), justify="right" if number else "left")
    return table


def cost_table(cost: MeasuredCost) -> Table:
    """Milliseconds of a pass against its new tokens, one column per engine."""
    table = plain_table(
        f"milliseconds a pass, on {cost.plain.context} cached tokens",
        "new tokens",
        cost.name,
        *(one.name for one in cost.drafting),
    )
    curves = [cost.plain, *(one.curve for one in cost.drafting)]
    for tokens in sorted({point.tokens for curve in curves for point in curve.points}):
        found = [next((point for point in curve.points if point.tokens == tokens), None) for curve in curves]
        shown = [f"{1e3 * p.seconds:.1f} [{1e3 * p.low:.1f}, {1e3 * p.high:.1f}]" if p else "" for p in found]
        table.add_row(str(tokens), *shown)
    return table


def plan_tables(plan: Plan) -> list[Table]:
    """Step time against tokens in flight; and per concurrency and K the predicted speedup with what binds."""
    steps = plain_table("a target pass, no context held", "tokens in flight", "ms", "bound by")
    for tokens, seconds, limit in plan.curve:
        steps.add_row(str(tokens), f"{1e3 * seconds:.1f}", escape(limit))
    title = f"predicted, acceptance: {plan.acceptance}"
    grid = plain_table(title, "n", "tok/s without", "K", "speedup", "even at alpha", "bound by")
    for concurrency, rate in plan.plain:
        here = [point for point in plan.points if point.concurrency == concurrency]
        for number, point in enumerate(here):
            shown = (str(concurrency), f"{rate:.0f}") if number == 0 else ("", "")
            numbers = (str(point.k), f"{point.speedup:.2f}x", _alpha(point.break_even_alpha))
            grid.add_row(*shown, *numbers, escape(point.limit), end_section=number == len(here) - 1)
    return [steps, grid]


def plan_sentences(plan: Plan) -> list[str]:
    """What was predicted from what, and the best K of each concurrency."""
    draft = f" and {plan.draft}" if plan.draft else ""
    best = [(concurrency, plan.best(concurrency)) for concurrency, _ in plan.plain]
    tried = ", ".join(str(k) for k in sorted({point.k for point in plan.points}))
    named = "; ".join(f"{point.k if point else '0 (off)'} at {n}" for n, point in best)
    return [
        f"A prediction for {plan.target}{draft}, {plan.method}, c = {plan.c:.2f}: {plan.source}.",
        f"Requests of {plan.prompt_tokens} prompt and {plan.answer_tokens} answer tokens.",
        *([f"Best K of {tried}: {named}."] if plan.names_best else []),
        *(f"{note[0].upper()}{note[1:]}." for note in plan.notes),
    ]


def _alpha(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
