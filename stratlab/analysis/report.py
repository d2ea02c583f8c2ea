"""The content of report.json: every number of an analysis, with where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stratlab.analysis.breakdown import build_means
from stratlab.analysis.collectives import build_collectives
from stratlab.analysis.hta.bridge import HtaStatus
from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.run_facts import RunFacts
from stratlab.traces.discover import Finding

CPU_NOTE = "CPU trace: host operator time, not GPU utilisation"


def build_report(
    facts: RunFacts, ranks: Sequence[RankAnalysis], findings: Sequence[Finding], hta: Sequence[HtaStatus]
) -> dict[str, Any]:
    """Everything but the charts' points. `ranks` is not empty and of one source."""
    source = ranks[0].source
    one_group = sum(size > 1 for size in facts.axes.values()) <= 1
    rows = [row for rank in ranks for row in rank.rows]
    return {
        "schema_version": 1,
        "run": facts.origin,
        "source": source,
        "note": CPU_NOTE if source == "cpu" else "",
        "backend": facts.origin["backend"] or ranks[0].backend,
        "device": facts.origin["device_name"],
        "mean": {"ranks": len(ranks), "steps": len({row.step for row in rows}), **build_means(rows)},
        "ranks": [{"rank": r.rank, "steps": len(r.rows), **build_means(r.rows)} for r in ranks],
        "steps": [asdict(row) for row in rows],
        "collectives": [
            asdict(row) for row in build_collectives([c for r in ranks for c in r.calls], one_group)
        ],
        "phases_present": {str(rank.rank): rank.phases for rank in ranks},
        "quality": [asdict(finding) for finding in findings],
        "hta": [asdict(status) for status in hta],
        "mlflow": {"status": "not configured", "reason": ""},
    }
