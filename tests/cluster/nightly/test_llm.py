"""A language model in one to five dimensions: eight pods of one process each, five runs, one comparison."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_layout_runs_on_eight_pods(lab: Lab) -> None:
    for chart, wanted in LAYOUTS.items():
        lab.install(chart, chart, VALUES, files=("llm_tiny.yaml",))
        lab.watch(chart, timeout_s=900)
        assert len(lab.on_volume("ls", f"{MOUNT}/llm/{chart}/pods").split()) == PODS
        summary, report = lab.read(f"llm/{chart}/summary.json"), lab.read(f"llm/{chart}/analysis/report.json")
        axes = {name: summary[name] for name in ("pp", "dp_replicate", "dp_shard", "tp", "cp", "ep")}
        assert {name: size for name, size in axes.items() if size > 1} == wanted
        assert not summary["degenerate"] and summary["nodes"] == PODS
        assert report["merged"]["ranks"] == list(range(PODS)) and len(report["phases_present"]) == PODS
    lab.test("llm-5d")


def test_the_five_layouts_are_compared(lab: Lab, tmp_path: Path) -> None:
    """Bubble and traffic of each axis: tests/nightly/rehearsals/test_llm.py."""
    lab.stratlab("compare", "llm", "--on-cluster", "--output", tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    losses = {row["run"]: row["test_loss"] for row in report["runs"]}
    assert sorted(losses) == sorted(LAYOUTS) and report["fairness"]["verdict"] == "comparable"
    assert max(losses.values()) - min(losses.values()) < 1e-3, "the same model on the same data"
    for chart in LAYOUTS:
        lab.uninstall(chart)
