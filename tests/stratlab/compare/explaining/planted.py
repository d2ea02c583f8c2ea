"""What the attribution says about two simulated trainings: traces -> analysis -> one pair. Nothing in between is a
stand-in; a page and HTA are left out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.reporting.report import build_parts
from stratlab.analysis.reporting.totals import build_mean_row, build_rank_row
from tests.stratlab.simulated.team import Scene, simulate


def build_analysis(folder: Path, scene: Scene) -> dict[str, Any]:
    """The part of analysis/report.json that a comparison attributes by."""
    axes = dict(scene.mesh)
    truth = simulate(folder, scene)
    ranks = measure_traces(truth.files, axes).ranks
    assert len(ranks) == scene.ranks
    return {
        "source": ranks[0].source,
        "mean": build_mean_row(ranks, axes, scene.micro_batches),
        "parts": build_parts(ranks),
        "ranks": [build_rank_row(rank) for rank in ranks],
        "collectives": [asdict(row) for rank in ranks for row in rank.collectives],
    }
