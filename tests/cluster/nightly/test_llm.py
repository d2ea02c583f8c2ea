"""A language model in one to five dimensions: eight pods of one process each, five runs, one comparison."""

from __future__ import annotations

import json

import pytest

from tests.cluster.lab import MOUNT, STRATLAB, Lab, run
from tests.cluster.steps import Steps

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


@pytest.mark.parametrize("chart", LAYOUTS)
def test_a_layout_runs_on_eight_pods(lab: Lab, steps: Steps, chart: str) -> None:
    with steps.step(f"{chart}: helm install, {PODS} pods, Succeeded, analysed") as notes:
        lab.install(chart, chart, VALUES, files=("llm_tiny.yaml",))
        done = lab.watch(chart, timeout_s=900)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:] + lab.describe(chart)
        assert lab.conditions(f"pytorchjobs.v1.kubeflow.org/{chart}").get("Succeeded") == "True"
        folder = f"{MOUNT}/llm/{chart}"
        assert len(lab.on_volume("ls", f"{folder}/pods").split()) == PODS
        summary = json.loads(lab.on_volume("cat", f"{folder}/summary.json"))
        axes = {name: summary[name] for name in ("pp", "dp_replicate", "dp_shard", "tp", "cp", "ep")}
        assert {name: size for name, size in axes.items() if size > 1} == LAYOUTS[chart]
        assert not summary["degenerate"] and summary["nodes"] == PODS
        report = json.loads(lab.on_volume("cat", f"{folder}/analysis/report.json"))
        present = {rank: set(found) for rank, found in report["phases_present"].items()}
        assert present == {str(rank): PHASES for rank in range(PODS)}
        merged = report["merged"]
        assert merged["ranks"] == list(range(PODS))
        trace = f"{folder}/analysis/{merged['file']}"
        assert json.loads(lab.on_volume("python", "-c", SEARCH, trace, *LABELS)) == LABELS
        notes.append(f"{summary['layout']}, perplexity {summary['test_perplexity']:.1f}")


def test_helm_test_of_a_language_model(lab: Lab, steps: Steps) -> None:
    with steps.step("llm-5d: helm test"):
        lab.test("llm-5d")


def test_the_five_layouts_are_compared(lab: Lab, steps: Steps, tmp_path) -> None:
    with steps.step("stratlab compare --on-cluster: five layouts, bubble and traffic per axis") as notes:
        output = tmp_path / "report"
        done = run([STRATLAB, "compare", "llm", "--on-cluster", "-n", lab.namespace, "--output", output])
        report = json.loads((output / "report.json").read_text())
        rows = {row["run"]: row for row in report["runs"]}
        assert sorted(rows) == sorted(LAYOUTS)
        assert report["fairness"]["verdict"] == "comparable"
        assert rows["llm-1d"]["bubble_pct"] in (None, 0.0)
        for chart, axes in LAYOUTS.items():
            row = rows[chart]
            assert (row["pp"] > 1) == (row["bubble_ideal_pct"] is not None)
            assert row["pp"] == 1 or row["bubble_pct"] > 0
            traffic = row["wire_bytes_per_axis"]
            assert all(traffic.get(name) for name in ("pp", "tp", "ep") if axes.get(name, 1) > 1), traffic
        spread = [row["test_loss"] for row in rows.values()]
        assert max(spread) - min(spread) < 1e-3, "the same model on the same data, cut up in five ways"
        notes.append(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("chart", LAYOUTS)
def test_uninstall(lab: Lab, steps: Steps, chart: str) -> None:
    with steps.step(f"{chart}: uninstall"):
        lab.uninstall(chart)
