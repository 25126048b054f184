"""What the proposers guess right, over several traces and draft lengths: the table that the README shows.

usage: replay.py TRACE.jsonl [TRACE.jsonl ...] [--max-draft 16,8] [--floor 0.3]

One row per proposer and setting, one column per class: tokens per pass, and the draft acceptance rate; ratios of counts
summed over the traces. Several floors (--floor 0.1,0.2,0.3) show how ours trades one for the other. Of times it says
nothing: `toolkit replay` and lookup_cost.py do.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from toolkit.analysis.replay.candidates import above
from toolkit.analysis.replay.comparison import FLOOR, NAMES, NONE, OURS, make
from toolkit.analysis.replay.engine import Tally, serve
from toolkit.analysis.replay.peers import UnavailableError
from toolkit.analysis.replay.traces import Request, read_traces

Classes = dict[str, list[Request]]


def main() -> None:
    """Read the traces, replay them, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--max-draft", default="16,8")
    parser.add_argument("--floor", default=f"{FLOOR:g}")
    arguments = parser.parse_args()
    traces = [read_traces(path) for path in arguments.traces]
    kinds = list(dict.fromkeys(kind for trace in traces for kind in trace))
    print("| K | proposer |", " | ".join(kinds), "|")
    print("|---:|---|" + "---:|" * len(kinds))
    for most in map(int, arguments.max_draft.split(",")):
        for name, floor in settings([float(text) for text in arguments.floor.split(",")]):
            label = f"{name}, floor {floor:g}" if name == OURS else name
            cells = [cell(traces, kind, name, most, floor) for kind in kinds]
            print("|", " | ".join([str(most), label, *cells]), "|", flush=True)


def settings(floors: list[float]) -> Iterator[tuple[str, float]]:
    """Proposers, ours once per floor."""
    for name in NAMES:
        if name != NONE:
            yield from ((name, floor) for floor in (floors if name == OURS else floors[:1]))


def cell(traces: list[Classes], kind: str, name: str, most: int, floor: float) -> str:
    """Tokens per pass and acceptance of one proposer on one class."""
    try:
        found = [count(trace[kind], name, most, floor) for trace in traces if kind in trace]
    except UnavailableError:
        return "not installed"
    drafted = sum(tally.drafted for tally in found)
    per_pass = sum(tally.tokens for tally in found) / sum(tally.passes for tally in found)
    accepted = sum(tally.accepted for tally in found)
    return f"{per_pass:.2f}" + (f" ({accepted / drafted:.3f})" if drafted else "")


def count(requests: list[Request], name: str, most: int, floor: float) -> Tally:
    """One class of one trace."""
    return serve(make(name, requests, most, above(floor), in_flight=1), requests)


if __name__ == "__main__":
    main()
