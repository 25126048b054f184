"""The section on how long a person waits: TTFT, TPOT and the gap between chunks, arm beside baseline."""

from collections.abc import Sequence

from toolkit.analysis.latency import LevelLatency, Spread, latencies
from toolkit.analysis.plots import latency_figure
from toolkit.analysis.report.page import NONE, Section, Table, picture
from toolkit.analysis.run import Run

NO_TPOT = "TPOT is unavailable: the server's chunks do not say how many tokens they carry, or there was one chunk."
NO_ITL = "ITL is unavailable: each answer came in one chunk."


def latency(run: Run, arm: str, name: str, remark: str) -> Section:
    """The spreads of every level of `arm`, over all rounds."""
    levels, baseline = latencies(run, arm), run.info.baseline
    if not levels:
        return Section(f"The latencies of {arm} are unavailable", texts=["No request was answered."])
    rows = []
    for level in levels:
        for who, side in (("arm", level.arm), ("baseline", level.baseline))[: 2 if baseline else 1]:
            rows.append((str(level.concurrency), who, *map(_cell, (side.ttft, side.tpot, side.itl))))
    remarks = [] if any(level.arm.tpot for level in levels) else [NO_TPOT]
    remarks += [] if any(level.arm.itl for level in levels) else [NO_ITL]
    return Section(
        heading=_heading(arm, levels),
        picture=picture(
            lambda width: latency_figure(levels, "", remark, width, baseline is not None),
            f"{name}-latency",
            f"Latencies of {arm} over concurrency. The table below has the numbers.",
            "Marker: median. Thick: the middle half. Thin: 5th to 95th percentile. A chunk can carry several "
            "tokens: the gap between chunks is no time per token.",
        ),
        tables=[
            Table(
                "Milliseconds: median (5th–95th percentile)", ("n", "side", "TTFT", "TPOT", "ITL"), rows, frozenset({1})
            )
        ],
        remarks=remarks,
    )


def _heading(arm: str, levels: Sequence[LevelLatency]) -> str:
    """The medians at the lowest and at the highest concurrency."""
    ends = [levels[0], levels[-1]] if len(levels) > 1 else levels
    every = all(level.arm.tpot for level in ends)
    parts = []
    for level in ends:
        ours, theirs = (side.tpot if every else side.ttft for side in (level.arm, level.baseline))
        if ours is not None:
            parts.append(_milliseconds(ours, theirs) + f" at {level.concurrency}")
    what = "a token after the first" if every else "the first token"
    return f"{arm}: {what} takes {', '.join(parts)}" if parts else f"{arm}: how long it takes"


def _milliseconds(ours: Spread, theirs: Spread | None) -> str:
    return f"{ours.p50:.0f}{f' instead of {theirs.p50:.0f}' if theirs else ''} ms"


def _cell(known: Spread | None) -> str:
    return NONE if known is None else f"{known.p50:.0f} ({known.p5:.0f}–{known.p95:.0f})"
