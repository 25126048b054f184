"""The measurements that README and tests rest on: measured on the lab's engine, packed into tests/data/runs.

usage: evidence.py [NAME ...]     measure (or go on measuring) in runs/, pack, redraw; every measurement without a NAME
       evidence.py --pack NAME    pack what lies in runs/ already
"""

import gzip
import subprocess
import sys
from functools import partial
from pathlib import Path

from toolkit.analysis.compare.comparison import compare
from toolkit.analysis.compare.interval import Estimate
from toolkit.analysis.crossover import crossover
from toolkit.analysis.forecast.cost import read_cost
from toolkit.analysis.forecast.predict import predictions
from toolkit.analysis.levels import level_stats
from toolkit.analysis.plots import plot_crossover
from toolkit.analysis.run import Run
from toolkit.analysis.tuning.result import in_words
from toolkit.analysis.tuning.runs import tuning_of
from toolkit.terminal import speedup_text

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "data" / "runs"
MEASURED = ROOT / "runs"
FASTER = {"pays": "faster", "costs": "slower", "inconclusive": "no difference seen"}
CLOSE = 0.15  # of the measured speedup
TARGET = ("--target", "SmolLM2-135M, lab")
NGRAM, BOTH = ("--profile", "lab-ngram"), ("--profile", "lab-ngram", "--profile", "lab-draft")
BASELINE = ("--baseline", "lab-baseline")
# Twenty-four prompts, the same for every engine, and no speeds: beside other load too.
ALIKE = (
    *("--workload", "copy-list", "--concurrency", "1,4", "--rounds", "1", "--requests", "24", "--max-tokens", "48"),
    *("--seed", "0", "--temperature", "0"),
)
ENGINES = ("vllm", "sglang", "llamacpp")
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
        *("tune", *NGRAM, "--set", "limits.kv_cache_gib=1", "--set", "limits.max_num_seqs=32"),
        *("--k", "0,2,8", "--concurrency", "1,8,32", "--max-tokens", "24", "--rounds", "5", "--workload", "copy-list"),
    ),
    # The same where the prompts are cached, so that a pass is decoding alone: sixteen lists, asked for again and again.
    # Blocks of 32, since vLLM caches whole ones. 40 minutes.
    "lab-tune-cached": (
        *("tune", *NGRAM, "--set", 'engine_args=["--block-size","32"]', "--k", "0,4", "--concurrency", "1,64"),
        *("--max-tokens", "24", "--rounds", "5", "--workload", "benchmarks/lists.jsonl"),
    ),
    # The same profile on both sides, ten levels: how often is a verdict wrong? 10 minutes.
    "lab-same-twice": (
        *("sweep", *NGRAM, "--baseline", "lab-ngram", "--workload", "copy-list", "--max-tokens", "8", *TARGET),
        *("--concurrency", "1,2,3,4,5,6,7,8,9,10", "--rounds", "5"),
    ),
    # Three engines, lookup and the model drafting for itself: 25 minutes. Needs `make lab-sglang lab-llamacpp`.
    "lab-engines/vllm": ("sweep", *BOTH, "--set", "target.dtype=float32", *ALIKE),
    "lab-engines/sglang": ("sweep", "--profile", "lab-sglang-ngram", "--profile", "lab-sglang-draft", *ALIKE),
    "lab-engines/llamacpp": ("sweep", "--profile", "lab-llamacpp-ngram", "--profile", "lab-llamacpp-draft", *ALIKE),
    # Layer skip: 20 minutes.
    "lab-layer-skip": (
        *("sweep", "--profile", "lab-layer-skip", *BASELINE, "--workload", "chat", "--max-tokens", "32", *TARGET),
        *("--concurrency", "1,4,16", "--rounds", "5"),
    ),
}


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a block of the README that is written here."""
    return f"<!-- {name}: kept equal to the committed run by a test -->\n", f"<!-- /{name} -->"


def table() -> str:
    """The README's table, as Markdown."""
    run = Run(KEPT / "lab-copy-code")
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


def tuned(name: str) -> str:
    """What a tuning came to: the schedule, and its throughput over both of its parents."""
    tuning = tuning_of(KEPT / name)
    parent = {level.concurrency: level for level in tuning.parent or ()}
    rows = [f"Here, for `{tuning.info.profile}`: {in_words(tuning.schedule or ())}. {tuning.reason}", ""]
    rows += [
        f"| concurrency | over no speculation | | over {tuning.info.profile} as shipped | |",
        "|--:|---|---|---|---|",
    ]
    for level in tuning.validations[-1].levels:
        other = parent.get(level.concurrency)
        versus = f"{speedup_text(other)} | {FASTER[other.verdict]}" if other else "|"
        rows.append(f"| {level.concurrency} | {speedup_text(level)} | {level.verdict} | {versus} |")
    return "\n".join(rows) + "\n"


def planned() -> str:
    """Predicted beside measured, for two methods at five levels."""
    found = predictions(Run(KEPT / "lab-two-methods"), read_cost(KEPT / "lab-cost"))
    close = sum(abs(one.error or 0) <= CLOSE for one in found)
    rows = [
        f"On the lab's engine, from one verify-cost run, {close} of {len(found)} predictions came within {CLOSE:.0%} "
        "of the measured speedup:",
        "",
        "| method | concurrency | predicted | measured | error | bound by |",
        "|---|--:|--:|--:|--:|---|",
    ]
    rows += [
        f"| {one.arm} | {one.concurrency} | {one.speedup:.2f}x | {one.measured:.2f}x | {one.error:+.0%} | {one.limit} |"
        for one in found
    ]
    return "\n".join(rows) + "\n"


def compared() -> str:
    """The README's comparison of the engines, one request at a time."""
    found = compare([Run(KEPT / "lab-engines" / name) for name in ENGINES], concurrency=1, allow=["target"])
    rows = [
        "| profile | engine | tokens per pass | acceptance length | accepted | kept at position 1, 2, 3, 4 |",
        "|---|---|--:|--:|--:|---|",
    ]
    for who, row in zip(found.contenders, found.levels[0].rows, strict=True):
        numbers = [with_half(row.estimates.get(name)) for name in ("tokens_per_pass", "acceptance_length")]
        rate = row.estimates.get("draft_acceptance_rate")
        kept = ", ".join(f"{one.unconditional.value:.0%}" for one in row.positions if one.unconditional)
        engine = f"{who.info.engine} {(who.info.engine_version or '').partition('-')[0]}"
        share = f"{rate.value:.0%}" if rate else "unavailable"
        rows.append(f"| `{row.name}` | {engine} | {numbers[0]} | {numbers[1]} | {share} | {kept} |")
    return "\n".join(rows) + "\n"


def with_half(found: Estimate | None) -> str:
    """A value and half of its interval."""
    if found is None:
        return "unavailable"
    return f"{found.value:.2f}" + ("" if found.high is None else f" ± {found.high - found.value:.2f}")


def skipped() -> str:
    """The README's verdict on layer skip."""
    run = Run(KEPT / "lab-layer-skip")
    stats = {s.concurrency: s for s in level_stats(run) if s.side == "arm"}
    rows = ["| concurrency | speedup, 95 % interval | verdict | tokens per pass | accepted |", "|--:|---|---|--:|--:|"]
    for level in crossover(run).results[0].levels:
        arm = stats[level.concurrency]
        rows.append(
            f"| {level.concurrency} | {speedup_text(level)} | {level.verdict} | {arm.tokens_per_pass:.2f} "
            f"| {arm.draft_acceptance_rate:.0%} |"
        )
    return "\n".join(rows) + "\n"


BLOCKS = {
    "engines": compared,
    "layer-skip": skipped,
    "table": table,
    "tune": partial(tuned, "lab-tune"),
    "tune-cached": partial(tuned, "lab-tune-cached"),
    "plan": planned,
}


def pack(source: Path, kept: Path) -> None:
    """Copy what was measured, folders within included, without the paths of the machine; the long files gzipped."""
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".json", ".jsonl", ".yaml"):
            continue
        place = kept / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        for local, shown in ((str(source), f"runs/{kept.name}"), (str(ROOT), "."), (str(Path.home()), "~")):
            text = text.replace(local, shown)
        if path.name == "requests.jsonl":
            place.with_name("requests.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        else:
            place.write_text(text)


def redraw() -> None:
    """The README's picture and its tables, from the packed runs."""
    (ROOT / "docs").mkdir(exist_ok=True)
    plot_crossover(crossover(Run(KEPT / "lab-copy-code")), ROOT / "docs" / "crossover.png")
    readme = ROOT / "README.md"
    text = readme.read_text()
    for name, block in BLOCKS.items():
        start, end = marks(name)
        before, _, rest = text.partition(start)
        text = before + start + block() + end + rest.partition(end)[2]
    readme.write_text(text)


def main(arguments: list[str]) -> None:
    only_pack = arguments[:1] == ["--pack"]
    for name in arguments[only_pack:] or COMMANDS:
        place = MEASURED / name
        if not only_pack:
            place.mkdir(parents=True, exist_ok=True)
            out = ("--out", str(place / "lab-ngram-tuned.yaml")) if COMMANDS[name][0] == "tune" else ()
            subprocess.run([sys.executable, "-m", "toolkit", *COMMANDS[name], "--run", str(place), *out], check=True)
        pack(place, KEPT / name)
    redraw()


if __name__ == "__main__":
    main(sys.argv[1:])
