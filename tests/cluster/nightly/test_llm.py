"""A language model in one to five dimensions: eight pods of one process each, five runs, one comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import MOUNT, Lab

pytestmark = pytest.mark.cluster

PODS = 8
LAYOUTS = {
    "llm-1d": {"dp_replicate": 8},
    "llm-2d": {"pp": 2, "dp_shard": 4},
    "llm-3d": {"pp": 2, "dp_shard": 2, "tp": 2},
    "llm-4d": {"pp": 2, "dp_shard": 2, "tp": 2},
    "llm-5d": {"pp": 2, "dp_shard": 2, "tp": 2, "ep": 4},
}
VALUES = {
    "run.nodes": PODS,
    "run.processesPerNode": 1,
    "run.config.comparison": "llm",
    "run.config.model": "qwen_moe_tiny",  # one model for all five, so that they may be compared
}
PHASES = {"data", "forward", "backward", "optimizer"}

# a merged trace of eight ranks is 400 MB of JSON: it is searched, not parsed
SEARCH = """
import gzip, json, sys
labels, found, rest = sys.argv[2:], set(), ""
with gzip.open(sys.argv[1], "rt") as file:
    while piece := file.read(1 << 22):
        found |= {label for label in labels if label in rest + piece}
        rest = piece[-100:]
print(json.dumps(sorted(found)))
"""
LABELS = ["## Backward Pass ##", "## Data Loading ##", "## Forward Pass ##", "## Optimizer Step ##"]


def test_a_layout_runs_on_eight_pods(lab: Lab) -> None:
    for chart in LAYOUTS:
        lab.install(chart, chart, VALUES, files=("llm_tiny.yaml",))
        lab.watch(chart, timeout_s=900)
        check_layout(lab, chart)
    lab.test("llm-5d")


def test_the_five_layouts_are_compared(lab: Lab, tmp_path: Path) -> None:
    lab.stratlab("compare", "llm", "--on-cluster", "--output", tmp_path / "report")
    check_report(json.loads((tmp_path / "report" / "report.json").read_text()))
    for chart in LAYOUTS:
        lab.uninstall(chart)


def check_layout(lab: Lab, chart: str) -> None:
    """Every axis is there, all phases of every rank are in report and merged trace."""
    folder = f"llm/{chart}"
    assert len(lab.on_volume("ls", f"{MOUNT}/{folder}/pods").split()) == PODS
    summary, report = lab.read(f"{folder}/summary.json"), lab.read(f"{folder}/analysis/report.json")
    axes = {name: summary[name] for name in ("pp", "dp_replicate", "dp_shard", "tp", "cp", "ep")}
    assert {name: size for name, size in axes.items() if size > 1} == LAYOUTS[chart]
    assert not summary["degenerate"] and summary["nodes"] == PODS
    present = {rank: set(found) for rank, found in report["phases_present"].items()}
    assert present == {str(rank): PHASES for rank in range(PODS)}
    assert report["merged"]["ranks"] == list(range(PODS))
    trace = f"{MOUNT}/{folder}/analysis/{report['merged']['file']}"
    assert json.loads(lab.on_volume("python", "-c", SEARCH, trace, *LABELS)) == LABELS


def check_report(report: dict[str, Any]) -> None:
    rows = {row["run"]: row for row in report["runs"]}
    assert sorted(rows) == sorted(LAYOUTS) and report["fairness"]["verdict"] == "comparable"
    for chart, axes in LAYOUTS.items():
        row = rows[chart]
        assert (row["pp"] > 1) == (row["bubble_ideal_pct"] is not None) == bool(row["bubble_pct"])
        traffic = row["wire_bytes_per_axis"]
        assert all(traffic.get(name) for name in ("pp", "tp", "ep") if axes.get(name, 1) > 1), traffic
    spread = [row["test_loss"] for row in rows.values()]
    assert max(spread) - min(spread) < 1e-3, "the same model on the same data, cut up in five ways"
