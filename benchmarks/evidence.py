"""Keep a measured run as evidence: pack it into tests/data/runs, draw docs/crossover.png, write the README's table.

usage: evidence.py RUN        (after `toolkit sweep ... --run RUN`; `make evidence` does both)
"""

import gzip
import sys
from pathlib import Path

from toolkit.analysis.crossover import crossover
from toolkit.analysis.levels import level_stats
from toolkit.analysis.plots import plot_crossover
from toolkit.analysis.run import Run
from toolkit.terminal import speedup_text

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "data" / "runs" / "lab-copy-code"
MARKS = ("<!-- table: kept equal to the committed run by a test -->\n", "<!-- /table -->")


def table(run: Run) -> str:
    """The README's table of a run with one arm, as Markdown."""
    stats = {(s.side, s.concurrency): s for s in level_stats(run)}
    rows = ["| concurrency | tok/s | without | speedup, 95 % interval | verdict | tokens per pass | accepted |"]
    rows += ["|--:|--:|--:|---|---|--:|--:|"]
    for level in crossover(run).results[0].levels:
        arm, base = stats["arm", level.concurrency], stats["baseline", level.concurrency]
        rows.append(
            f"| {level.concurrency} | {arm.tokens_per_second:.1f} | {base.tokens_per_second:.1f} | "
            f"{speedup_text(level)} | {level.verdict} | {level.tokens_per_pass:.2f} | "
            f"{level.draft_acceptance_rate:.1%} |"
        )
    return "\n".join(rows) + "\n"


def pack(source: Path, kept: Path) -> None:
    """Copy a Run directory, requests gzipped, without the paths of the machine that measured it."""
    kept.mkdir(parents=True, exist_ok=True)
    text = (source / "run.json").read_text()
    for path, shown in ((str(ROOT), "."), (str(Path.home()), "~")):
        text = text.replace(path, shown)
    (kept / "run.json").write_text(text)
    for name in ("cells.jsonl", "attempts.jsonl"):
        (kept / name).write_bytes((source / name).read_bytes())
    packed = gzip.compress((source / "requests.jsonl").read_bytes(), 9, mtime=0)
    (kept / "requests.jsonl.gz").write_bytes(packed)


def main() -> None:
    pack(Path(sys.argv[1]), KEPT)
    run = Run(KEPT)
    (ROOT / "docs").mkdir(exist_ok=True)
    plot_crossover(crossover(run), ROOT / "docs" / "crossover.png")
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(MARKS[0])
    readme.write_text(before + MARKS[0] + table(run) + MARKS[1] + rest.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
