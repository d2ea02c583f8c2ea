"""The content of report.json: every number of an analysis, with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stratlab.analysis.hta.bridge import HtaRun
from stratlab.analysis.measuring.collectives import sort_collectives
from stratlab.analysis.measuring.kernels import build_sum
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.reporting.recordings import find_recordings
from stratlab.analysis.reporting.run_facts import RunFacts
from stratlab.analysis.reporting.totals import build_mean_row, build_rank_row
from stratlab.traces.clocks import Clocks
from stratlab.traces.discover import Finding
from stratlab.traces.merge import Merged

CPU_NOTE = "CPU trace: host operator time, not GPU utilisation"
UNRECORDED_NOTE = "GPU run without its device's activity: host operator time, not GPU utilisation"
RECORDING_NOTE = "No label tells the steps: the whole recording counts as one"
MOST_KERNELS = 30  # names, those with most time over all ranks; tables/kernel_stats.csv has all


def build_report(
    facts: RunFacts,
    ranks: Sequence[RankAnalysis],
    findings: Sequence[Finding],
    hta: HtaRun,
    clocks: Clocks,
    merged: Merged,
) -> dict[str, Any]:
    """Everything but the charts' points and the recommendations. `ranks` is not empty and of one source."""
    source, steps_from = ranks[0].source, ranks[0].steps_from
    unrecorded = any(rank.unrecorded for rank in ranks)
    of_source = UNRECORDED_NOTE if unrecorded else CPU_NOTE
    notes = [of_source] * (source == "cpu") + [RECORDING_NOTE] * (steps_from == "recording")
    return {
        "schema_version": 2,
        "run": facts.origin,
        "source": source,
        "steps_from": steps_from,
        "note": ". ".join(notes),
        "backend": facts.origin["backend"] or ranks[0].backend,
        "device": facts.origin["device_name"] or ranks[0].device_name,
        "mean": build_mean_row(ranks, facts.axes, facts.origin.get("grad_accum_steps") or 1),
        "parts": build_parts(ranks),
        "ranks": [build_rank_row(rank) for rank in ranks],
        "steps": [asdict(row) for rank in ranks for row in rank.rows],
        "phases": [asdict(row) for rank in ranks for row in rank.phase_rows],
        "collectives": [asdict(row) for row in sort_collectives([c for r in ranks for c in r.collectives])],
        "kernels": _most_used([asdict(row) for rank in ranks for row in rank.kernels]),
        "durations": asdict(build_sum([rank.durations for rank in ranks])) if source == "gpu" else None,
        "copies": [asdict(row) for rank in ranks for row in rank.copies],
        "idle": [asdict(row) for rank in ranks for row in rank.idle],
        "clocks": describe_clocks(clocks),
        "merged": {
            "file": merged.file.name if merged.file else None,
            **{name: getattr(merged, name) for name in ("ranks", "events", "flows", "bytes", "reason")},
        },
        "recordings": find_recordings(facts.folder),
        "recommendations": [],
        "phases_present": {str(rank.rank): rank.phases for rank in ranks},
        "quality": [asdict(finding) for finding in findings],
        "hta": [asdict(status) for status in hta.statuses],
        "hta_ranks": {"ranks": hta.ranks, "reason": hta.reason},
        "mlflow": {"status": "not configured", "reason": ""},
    }


def build_parts(ranks: Sequence[RankAnalysis]) -> list[dict[str, Any]]:
    """The parts of the mean step over all ranks and steps, ms; they sum to its length."""
    totals: dict[tuple[str, str, str], int] = {}
    for rank in ranks:
        for key, total_ns in rank.parts_ns.items():
            totals[key] = totals.get(key, 0) + total_ns
    count = sum(len(rank.rows) for rank in ranks)
    order = list(dict.fromkeys(part for part, _, _ in totals))
    return [
        {"part": part, "collective": collective or None, "axis": axis or None, "ms": total_ns / count / 1e6}
        for (part, collective, axis), total_ns in sorted(
            totals.items(), key=lambda e: (order.index(e[0][0]), -e[1])
        )
    ]


def describe_clocks(clocks: Clocks) -> dict[str, Any]:
    """How far each rank's clock is ahead of the first one's, as report.json has it."""
    offsets = {str(rank): offset / 1e6 for rank, offset in clocks.offsets_ns.items()}
    return {
        "aligned": clocks.aligned,
        "offsets_ms": offsets,
        "residual_ms": None if clocks.residual_ns is None else clocks.residual_ns / 1e6,
        "matched": clocks.matched,
        "reason": clocks.reason,
    }


def _most_used(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    totals: dict[str, float] = {}
    for row in rows:
        totals[row["name"]] = totals.get(row["name"], 0.0) + row["sum_ms"]
    names = sorted(totals, key=lambda name: -totals[name])[:MOST_KERNELS]
    return [row for row in rows if row["name"] in names]
