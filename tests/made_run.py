"""Run directories with made-up rates: `write_run`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.analysis.records import CellKey, CellRecord, RequestRecord, Side
from toolkit.analysis.run import ArmInfo, Run, RunInfo, WorkloadInfo, resume_key

Rates = Mapping[tuple[str, int], Sequence[tuple[float | None, float | None]]]
SECONDS = 10.0  # a cell's window
TOKENS = 20  # per request


def write_run(
    folder: Path,
    rates: Rates,
    *,
    workload: str = "copy-code",
    baseline: str | None = "lab-baseline",
    failed: Mapping[tuple[str, int], int] | None = None,
    on_disk: int | None = None,
    arm: Mapping[str, Any] | None = None,
    baseline_arm: Mapping[str, Any] | None = None,
    cell: Mapping[str, Any] | None = None,
    **info: Any,
) -> Run:
    """`failed` requests in each cell of an (arm, concurrency); `on_disk` of the 4n requests that it counts are there.

    `arm`, `baseline_arm`, `cell` replace fields of every ArmInfo, of the baseline's, of every CellRecord; further
    keywords replace fields of the RunInfo. Without a `baseline` there are no baseline cells.
    """
    names = list(dict.fromkeys(name for name, _ in rates))
    levels = sorted({level for _, level in rates})
    parts = {"arms": names, "baseline": baseline, "workload": workload, "levels": levels}
    defaults: dict[str, Any] = {
        "toolkit_version": "0.1.0",
        "created": "2026-01-02T03:04:05+00:00",
        "arms": [_arm(name, **{"method": "ngram", **(arm or {})}) for name in names],
        "baseline": _arm(baseline, "none", **(baseline_arm or {})) if baseline else None,
        "workload": WorkloadInfo(name=workload, digest="d" * 64, seed=0, size=None),
        "levels": levels,
        "requests": {level: 4 * level for level in levels},
        "rounds": max(map(len, rates.values()), default=0),
        "sampling": {"temperature": 0.0, "max_tokens": TOKENS},
        "hardware": {},
        "environment": {},
        "key_parts": parts,
        "key": resume_key(parts),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(RunInfo(**{**defaults, **info}).model_dump_json(by_alias=True))
    cells: list[CellRecord] = []
    requests: list[RequestRecord] = []
    for (name, level), rounds in rates.items():
        for number, pair in enumerate(rounds, start=1):
            sides: list[tuple[Side, str | None]] = [("arm", name), ("baseline", baseline)]
            for (side, served_by), rate in zip(sides, pair, strict=True):
                if served_by is None:
                    continue
                key = CellKey(arm=name, side=side, workload=workload, concurrency=level, round=number)
                lost = (failed or {}).get((name, level), 0)
                cells.append(_cell(key, served_by, rate, lost, len(cells), cell or {}))
                requests += [
                    _request(key, served_by, index, index < lost)
                    for index in range(4 * level if on_disk is None else on_disk)
                ]
    _write_lines(folder / "cells.jsonl", cells)
    _write_lines(folder / "requests.jsonl", requests)
    return Run(folder)


def _write_lines(path: Path, records: Sequence[CellRecord | RequestRecord]) -> None:
    path.write_text("".join(record.model_dump_json(by_alias=True, exclude_none=True) + "\n" for record in records))


def _arm(name: str, method: str, **fields: Any) -> ArmInfo:
    speculates = method != "none"
    defaults = {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "model": "lab/SmolLM2-135M-Instruct",
        "precision": "float32",
        "method": method,
        "num_speculative_tokens": 4 if speculates else None,
        "argv": ["vllm", "serve"],
        "speculates": speculates,
    }
    return ArmInfo(name=name, **{**defaults, **fields})


def _cell(
    key: CellKey, served_by: str, rate: float | None, failed: int, order: int, fields: Mapping[str, Any]
) -> CellRecord:
    defaults = {
        "attempt": 1,
        "finished_at": "2026-01-02T03:05:00+00:00",
        "seconds": 1.5 * SECONDS,
        "requests": 4 * key.concurrency,
        "window": None if rate is None else (1.0, 1.0 + SECONDS),
        "window_tokens": None if rate is None else rate * SECONDS,
        "client_cpu": 0.1,
        "prompts_digest": "p",
    }
    return CellRecord(cell=key, served_by=served_by, failed=failed, order=order, **{**defaults, **fields})


def _request(key: CellKey, served_by: str, index: int, failed: bool) -> RequestRecord:
    common = {"cell": key, "attempt": 1, "served_by": served_by, "warmup": False, "category": "code", "prompt": index}
    if failed:
        return RequestRecord(**common, prompt_hash=str(index), sent=1.0, ended=2.0, error="no answer")
    # An arm keeps 2 of 4 draft tokens a step: 20 tokens in 8 passes, the prefill one of them.
    drafts = key.side == "arm"
    return RequestRecord(
        **common,
        prompt_hash=str(index),
        sent=1.0,
        ttft=0.1,
        ended=2.0,
        chunks=[(0.1, 1), (2.0, TOKENS - 1)],
        prompt_tokens=100,
        completion_tokens=TOKENS,
        finish_reason="length",
        steps=6 if drafts else 0,
        drafted=24 if drafts else 0,
        accepted=12 if drafts else 0,
        passes=(8, 8) if drafts else (TOKENS, TOKENS),
    )
