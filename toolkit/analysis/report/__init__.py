"""`toolkit report`: one HTML file that says the answer, shows it, and says where it comes from.

It opens from disk and asks no network for anything: no script, no font, no image of another place. Two sizes of every
figure are in it, for a page and for a phone. The same Run directories give the same bytes.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from toolkit import __version__
from toolkit.analysis.crossover import Crossover, crossover
from toolkit.analysis.forecast.cost import FILE, MeasuredCost, read_cost
from toolkit.analysis.forecast.own_cost import own_cost
from toolkit.analysis.report import provenance
from toolkit.analysis.report.acceptance import acceptance
from toolkit.analysis.report.answer import answer, folders
from toolkit.analysis.report.comparison import comparison
from toolkit.analysis.report.latency import latency
from toolkit.analysis.report.page import Page, Part, Section, render
from toolkit.analysis.report.speedup import plan, speedups, why
from toolkit.analysis.run import SYNTHETIC, Run
from toolkit.errors import InputError

LARGEST = 2_000_000  # bytes


def report(runs: Sequence[Run], path: Path, cost: MeasuredCost | None = None, allow: Collection[str] = ()) -> None:
    """Write the report of `runs` to `path`. `cost` serves the plan of every Run that has no cost.json of its own.

    Without either, the iterations of its baseline do. Several Runs that are alike are compared as well; what may differ
    between them is in `allow`, as in `compare`.

    Raises InputError: a Run without a finished cell of an arm or not whole, a page over LARGEST, a disk that refuses.
    """
    html = render(page_of(runs, cost, allow)).encode()
    if len(html) > LARGEST:
        raise InputError(f"{path}: the report would have {len(html):,} bytes, over {LARGEST:,}: name fewer Runs.")
    try:
        path.write_bytes(html)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}.") from None


def page_of(runs: Sequence[Run], cost: MeasuredCost | None = None, allow: Collection[str] = ()) -> Page:
    """The page that `report` writes.

    Raises InputError for a Run that cannot be read, or in which no arm has a finished cell.
    """
    measured = [(run, crossover(run)) for run in runs]
    for run, result in measured:
        if not any(one.levels for one in result.results):
            raise InputError(
                f"{run.folder}: no cell of an arm of this run is finished. Repeat its sweep command to go on with it."
            )
    parts = []
    for number, ((run, result), folder) in enumerate(zip(measured, folders(runs), strict=True), start=1):
        own = answer([(run, result)]) if len(runs) > 1 else f"Speedup over {result.baseline or 'no baseline'}"
        found = _sections(run, result, f"run-{number}", own, cost)
        parts.append(Part(_name(run, folder), _summary(run), [f"{text}." for text in result.caveats], found))
    if len(runs) > 1 and (compared := comparison(runs, allow)):
        parts.append(compared)
    return Page(answer(measured), f"Made by toolkit {__version__} report from the Run directories alone.", parts)


def _sections(run: Run, result: Crossover, name: str, heading: str, cost: MeasuredCost | None) -> list[Section]:
    remark = "; ".join(f"{one.arm}: {SYNTHETIC}" for one in result.results if one.synthetic)
    found = [speedups(run, result, name, heading)]
    for number, one in enumerate(result.results, start=1):
        if one.levels:
            where = f"{name}-arm-{number}"
            found.append(why(one, where, remark))
            found.append(acceptance(run, one, where, remark))
            found.append(latency(run, one.arm, where, remark))
    kept = read_cost(run.folder) if (run.folder / FILE).exists() else cost
    found.append(plan(run, kept or own_cost(run)))
    return [*found, *provenance.measured(run), provenance.again(run)]


def _name(run: Run, folder: str) -> str:
    what = f"{run.info.workload.name} on {run.info.target or run.info.arms[0].model}"
    return f"{folder}: {what}" if folder else what


def _summary(run: Run) -> str:
    """What was measured, in one line."""
    info = run.info
    engines = dict.fromkeys(f"{arm.engine} {arm.engine_version or ''}".strip() for arm in info.arms)
    parts = [", ".join(engines)]
    if "max_tokens" in info.sampling:
        parts.append(f"answers of up to {info.sampling['max_tokens']} tokens")
    if "temperature" in info.sampling:
        temperature = info.sampling["temperature"]
        parts.append("greedy" if temperature == 0 else f"temperature {temperature}")
    if any(arm.argv is not None for arm in info.arms):
        cpu = f"{info.hardware.get('cores', '?')} cores of {info.hardware.get('cpu', '?')}"
        gpus = [str(gpu["name"]) for gpu in info.hardware.get("gpus") or () if "name" in gpu]
        parts.append(", ".join(gpus) or cpu)
    return "; ".join([*parts, info.created[:10]]) + "."
