"""The whole thread, as `make demo` pulls it: real helm, real processes, real MLflow, real data, one report.

With fewer epochs than the demo, without ddp, which every `make e2e` runs on a cluster, and with warm programs
(tests/programs.py); tests/nightly/rehearsals runs the demo as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import mlflow
import pytest

from stratlab.tracking.server import run_server
from tests.programs import find_python
from tests.stratlab.browser import ABSENT, CHROMIUM, serve, visit
from trainer.launch.sender import line_points

STRATEGIES = ["fsdp", "zero2"]
EPOCHS = 8  # fsdp trains for more than the five seconds after which a rehearsal says how far it is
STEPS = 1294 * EPOCHS // 64  # samples of the training split, in batches
RESULTS = {  # of a run on a CPU, whether an analysis follows or not
    *("samples_per_s", "step_time_ms_p50", "step_time_ms_p95", "train_time_s", "epoch_time_s"),
    *(
        "test_loss",
        "test_accuracy_pct",
        "test_top5_accuracy_pct",
        "train_accuracy_pct",
        "epoch_train_accuracy_pct",
    ),
    *("peak_host_memory_gib", "state_memory_gib", "wire_bytes_per_step", "comm_exposed_pct"),
}


def stratlab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run to its end; the limit is for what hangs."""
    command = [find_python(), "-m", "stratlab"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=1500)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the two commands of `make demo` leave behind, after less training."""
    folder = tmp_path_factory.mktemp("demo")
    charts = [f"charts/{name}" for name in STRATEGIES]
    stores = ["--results", folder / "runs", "--mlflow", folder / "mlflow"]
    fewer = ["--set", f"run.config.epochs={EPOCHS}"]
    done = stratlab("rehearse", *charts, "--values", "examples/digits.yaml", *fewer, *stores)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "step" in done.stdout and "loss" in done.stdout and "left" in done.stdout  # progress all along
    assert "run.accelerator" not in done.stdout, "nobody has named one"
    done = stratlab("compare", folder / "runs" / "demo", "--output", folder, "--mlflow", folder / "mlflow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "View run" not in done.stdout, "the link leads to a server that has ended"
    assert "report and charts in MLflow, experiment demo:  " in done.stdout
    assert done.stdout.endswith(f"stratlab mlflow {folder / 'mlflow'}\n")
    assert str(folder / "report.html") in done.stdout
    return folder


@pytest.fixture(scope="module")
def report(demo: Path) -> dict[str, Any]:
    return json.loads((demo / "report.json").read_text())


def train_lines(demo: Path, run: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (demo / "runs" / "demo" / run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def test_complete_runs_with_every_phase_and_every_hta_status(report: dict[str, Any]) -> None:
    assert [run["strategy"] for run in report["runs"]] == STRATEGIES
    for run in report["runs"]:
        assert run["status"] == "finished" and run["complete"] and run["missing"] == []
        assert all(all(phases.values()) for phases in run["phases_present"].values())
        assert len(run["phases_present"]) == 2
        assert len(run["hta"]) > 10
        assert {entry["status"] for entry in run["hta"]} == {"ok", "unsupported"}


def test_every_strategy_learns(report: dict[str, Any]) -> None:
    for run in report["runs"]:
        assert run["test_accuracy_pct"] >= 95.0, run["run"]


def test_the_losses_of_the_first_20_steps_and_the_first_gradient_norms_agree(demo: Path) -> None:
    fsdp, zero2 = (train_lines(demo, name)[:20] for name in STRATEGIES)
    for one, other in zip(fsdp, zero2, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-4)
    assert fsdp[0]["grad_norm"] == pytest.approx(zero2[0]["grad_norm"], abs=1e-4)


def test_a_run_knows_its_exposed_communication_as_its_analysis_does(
    demo: Path, report: dict[str, Any]
) -> None:
    for run in report["runs"]:
        summary = json.loads((demo / "runs" / "demo" / run["run"] / "summary.json").read_text())
        assert summary["comm_exposed_pct"] > 1
        assert summary["comm_exposed_pct"] == pytest.approx(run["comm_exposed_pct"], abs=1.5)


def test_the_comparison_is_fair_and_names_no_fastest_strategy_on_a_cpu(report: dict[str, Any]) -> None:
    assert report["fairness"]["verdict"] == "comparable"
    assert report["fairness"]["same"]["runs beside it"] == "none"
    assert all(pair["agrees"] for pair in report["loss_agreement"]["pairs"])
    assert report["winners"]["samples_per_s"] is None
    assert "CPU" in report["winner_reasons"]["samples_per_s"]
    assert report["winners"]["state_memory_gib"] == "fsdp"


def test_mlflow_holds_exactly_what_was_written(demo: Path, report: dict[str, Any]) -> None:
    with run_server(demo / "mlflow") as uri:
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name("demo")
        assert experiment is not None
        found = client.search_runs([experiment.experiment_id])
        (compared,) = [run for run in found if run.info.run_name == "comparison"]
        assert compared.data.tags["verdict"] == "comparable"
        files = {entry.path for entry in client.list_artifacts(compared.info.run_id, "comparison")}
        assert "comparison/report.html" in files
        runs = [run for run in found if run is not compared]
        assert {run.info.run_name: run.info.status for run in runs} == dict.fromkeys(STRATEGIES, "FINISHED")
        for run in runs:
            name = run.info.run_name
            assert run.info.run_id == next(r["mlflow_run_id"] for r in report["runs"] if r["run"] == name)
            keys = [key for key in run.data.metrics if not key.startswith("trace/")]
            stored = Counter(
                (m.key, m.value, m.timestamp, m.step)
                for key in keys
                for m in client.get_metric_history(run.info.run_id, key)
            )
            text = (demo / "runs" / "demo" / name / "metrics.jsonl").read_text()
            written = Counter(
                (p["key"], float(p["value"]), p["timestamp"], p["step"])
                for line in text.splitlines()
                for p in line_points(json.loads(line))
            )
            assert stored == written
            assert len({step for key, _, _, step in written if key == "loss"}) == STEPS
            assert run.data.metrics.keys() >= RESULTS
            names = {entry.path for entry in client.list_artifacts(run.info.run_id, "analysis")}
            assert {"analysis/report.html", "analysis/report.json"} <= names


@pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)
@pytest.mark.parametrize("page", ["report.html", "runs/demo/fsdp/analysis/report.html"])
def test_both_reports_show_tables_and_plots_in_a_browser_and_load_nothing(
    demo: Path, tmp_path: Path, page: str
) -> None:
    with serve(demo) as address:
        seen = visit(f"{address}/{page}", tmp_path)
    assert seen.requests == [f"{address}/{page}"]
    assert seen.dom.count("<table") >= 4 and seen.dom.count("<svg") >= 4
    assert "Intel" in seen.dom or "cores" in seen.dom  # the origin of the numbers
    assert "fsdp" in seen.dom and "gloo" in seen.dom
    if page == "report.html":
        assert all(name in seen.dom for name in STRATEGIES)
    else:
        assert "host operator time, not GPU utilisation" in seen.dom
