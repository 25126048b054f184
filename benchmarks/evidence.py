"""The measurements that README and tests rest on: measured on the lab's engine, packed into tests/data/runs.

usage: evidence.py [NAME ...]     measure (or go on measuring) in runs/, pack, redraw; every measurement without a NAME
       evidence.py --pack NAME    pack what lies in runs/ already
"""

import gzip
import subprocess
import sys
from pathlib import Path

from toolkit.analysis.crossover import crossover
from toolkit.analysis.levels import level_stats
from toolkit.analysis.plots import plot_crossover
from toolkit.analysis.run import Run
from toolkit.terminal import speedup_text

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "data" / "runs"
MEASURED = ROOT / "runs"
MARKS = ("<!-- table: kept equal to the committed run by a test -->\n", "<!-- /table -->")
TARGET = ("--target", "SmolLM2-135M, lab")
NGRAM, BOTH = ("--profile", "lab-ngram"), ("--profile", "lab-ngram", "--profile", "lab-draft")
BASELINE = ("--baseline", "lab-baseline")
# What the tests expect of each stands in tests/unit/analysis/test_evidence.py.
COMMANDS = {
    # The README's picture and table: 20 minutes.
    "lab-copy-code": (
        *("sweep", *NGRAM, *BASELINE, "--workload", "copy-code", "--max-tokens", "48", *TARGET),
        *("--change", "n-gram K=4, lookup 2-5"),
    ),
    # Two methods, five levels, beside what their cost predicts: 20 minutes and 5.
    "lab-two-methods": (
        *("sweep", *BOTH, *BASELINE, "--workload", "copy-list", "--max-tokens", "24", *TARGET),
        *("--concurrency", "1,4,8,16,32", "--rounds", "3"),
    ),
    "lab-cost": ("verify-cost", *BOTH),
    # K by load, explored and measured again: 40 minutes.
    "lab-tune": (
        *("tune", *NGRAM, "--set", "limits.kv_cache_gib=1", "--k", "0,2,8", "--concurrency", "1,8,32"),
        *("--max-tokens", "24", "--rounds", "5", "--workload", "copy-list"),
    ),
    # The same profile on both sides, ten levels: how often is a verdict wrong? 15 minutes.
    "lab-same-twice": (
        *("sweep", *NGRAM, "--baseline", "lab-ngram", "--workload", "copy-list", "--max-tokens", "16", *TARGET),
        *("--concurrency", "1,2,3,4,5,6,7,8,10,12", "--rounds", "5"),
    ),
}


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
    """Copy what was measured, folders within included, without the paths of the machine; the long files gzipped."""
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".json", ".jsonl", ".yaml"):
            continue
        place = kept / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        for local, shown in ((str(ROOT), "."), (str(Path.home()), "~")):
            text = text.replace(local, shown)
        if path.name == "requests.jsonl":
            place.with_name("requests.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        else:
            place.write_text(text)


def redraw() -> None:
    """The README's picture and table, from the packed run."""
    run = Run(KEPT / "lab-copy-code")
    (ROOT / "docs").mkdir(exist_ok=True)
    plot_crossover(crossover(run), ROOT / "docs" / "crossover.png")
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(MARKS[0])
    readme.write_text(before + MARKS[0] + table(run) + MARKS[1] + rest.partition(MARKS[1])[2])


def main(arguments: list[str]) -> None:
    only_pack = arguments[:1] == ["--pack"]
    for name in arguments[only_pack:] or COMMANDS:
        place = MEASURED / name
        if not only_pack:
            out = ("--out", str(place / "lab-ngram-tuned.yaml")) if name == "lab-tune" else ()
            subprocess.run([sys.executable, "-m", "toolkit", *COMMANDS[name], "--run", str(place), *out], check=True)
        pack(place, KEPT / name)
    redraw()


if __name__ == "__main__":
    main(sys.argv[1:])
