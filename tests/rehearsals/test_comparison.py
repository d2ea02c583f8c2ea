"""The whole thread, as `make demo` pulls it: real helm, real processes, real MLflow, real data, one report."""

import csv
import json
import os
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from docs.pictures.devtools import open_browser
from stratlab.analysis.mlflow_upload import build_numbers
from stratlab.tracking import TRACE
from stratlab.wording import format_number
from stratlab_spec.run_directory import name_metric
from tests.programs import find_python
from tests.stratlab.browser import ABSENT, CHROMIUM, LOADED, serve
from trainer.launch.mlflow_sender import line_points

STRATEGIES = ["ddp", "fsdp"]
EPOCHS = 2
STEPS = 1294 * EPOCHS // 64  # samples of the training split, in batches
LESS = f"run.config.epochs={EPOCHS},run.config.warmup_steps=5,run.config.profile_steps=4"
RESULTS = {  # of a run on a CPU, whether an analysis follows or not
    *("samples_per_s", "step_time_ms_p50", "step_time_ms_p95", "train_time_s", "epoch_time_s"),
    *("test_loss", "test_accuracy_pct", "test_top5_accuracy_pct", "train_accuracy_pct"),
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
    done = stratlab("rehearse", *charts, "--values", "examples/digits.yaml", "--set", LESS, *stores)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "run.accelerator" not in done.stdout, "nobody has named one"
    done = stratlab("compare", folder / "runs" / "demo", "--output", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(folder / "report.html") in done.stdout
    return folder


@pytest.fixture(scope="module")
def report(demo: Path) -> dict[str, Any]:
    return json.loads((demo / "report.json").read_text())


def train_lines(demo: Path, run: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (demo / "runs" / "demo" / run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def test_complete_runs_with_every_phase_and_every_hta_status(demo: Path, report: dict[str, Any]) -> None:
    assert [run["strategy"] for run in report["runs"]] == STRATEGIES
    for run in report["runs"]:
        assert run["status"] == "finished" and run["complete"] and run["missing"] == []
        assert all(all(phases.values()) for phases in run["phases_present"].values())
        assert len(run["phases_present"]) == 2
        assert len(run["hta"]) > 10
        assert {entry["status"] for entry in run["hta"]} == {"ok", "unsupported"}
        summary = json.loads((demo / "runs" / "demo" / run["run"] / "summary.json").read_text())
        assert summary["comm_exposed_pct"] == pytest.approx(run["comm_exposed_pct"], abs=0.01)


def test_the_runs_learn_and_their_losses_agree(demo: Path) -> None:
    ddp, fsdp = (train_lines(demo, name) for name in STRATEGIES)
    assert len(ddp) == len(fsdp) == STEPS and ddp[-1]["loss"] < 0.7 * ddp[0]["loss"]
    for one, other in zip(ddp[:20], fsdp[:20], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-4)
    assert ddp[0]["grad_norm"] == pytest.approx(fsdp[0]["grad_norm"], abs=1e-4)


def test_the_comparison_is_fair_and_names_no_fastest_strategy_on_a_cpu(report: dict[str, Any]) -> None:
    assert report["fairness"]["verdict"] == "comparable"
    assert all(pair["agrees"] for pair in report["loss_agreement"]["pairs"])
    assert report["winners"]["samples_per_s"] is None and report["winner_reasons"]["samples_per_s"]
    assert report["winners"]["state_memory_gib"] == "fsdp"


def test_mlflow_holds_exactly_what_was_written(demo: Path, report: dict[str, Any]) -> None:
    """Asked of its store, which lies beside the runs."""
    with closing(sqlite3.connect(demo / "mlflow" / "mlflow.db")) as store:
        runs = dict(store.execute("select name, run_uuid from runs where status = 'FINISHED'"))
        assert runs.keys() == {*STRATEGIES}
        pages = [path.parts[-3:-1] for path in (demo / "mlflow").rglob("report.html")]
        assert {*pages} == {(uuid, "artifacts") for uuid in runs.values()}
        for name, uuid in runs.items():
            assert uuid == next(run["mlflow_run_id"] for run in report["runs"] if run["run"] == name)
            rows = store.execute("select key, value, timestamp, step from metrics where run_uuid = ?", [uuid])
            stored = Counter(row for row in rows if not row[0].startswith(TRACE))
            text = (demo / "runs" / "demo" / name / "metrics.jsonl").read_text()
            written = Counter(
                (p["key"], float(p["value"]), p["timestamp"], p["step"])
                for line in text.splitlines()
                for p in line_points(json.loads(line))
            )
            assert stored == written and {key for key, *_ in stored} >= {*map(name_metric, RESULTS)}
            query = "select key, value from latest_metrics where run_uuid = ?"
            shown = dict(store.execute(query, [uuid]))  # what MLflow's pages show
            folder = demo / "runs" / "demo" / name
            summary = json.loads((folder / "summary.json").read_text())
            of_an_epoch = {
                "train_accuracy_pct": "epoch_train_accuracy_pct"
            }  # MLflow has a series of the steps too
            assert {n: shown[name_metric(of_an_epoch.get(n, n))] for n in RESULTS} == {
                n: summary[n] for n in RESULTS
            }
            means = build_numbers(json.loads((folder / "analysis" / "report.json").read_text()))
            assert {key.removeprefix(TRACE): value for key, value in shown.items() if TRACE in key} == means


FACTS = ("step_time_ms_p50", "samples_per_s", "measured_steps", "state_memory_gib", "train_loss")
LISTED = ("step_time_ms_p50", "samples_per_s")


def test_every_surface_has_the_same_number_for_the_same_fact(demo: Path, report: dict[str, Any]) -> None:
    """report.json, the run's own summary, `list --json`, MLflow's store, the CSV and the table in the terminal."""
    rows = {row["run"]: row for row in report["runs"]}
    listed = {
        row["run"]: row for row in json.loads(stratlab("list", "--json", demo / "runs" / "demo").stdout)
    }
    printed = stratlab("compare", demo / "runs" / "demo", "--output", demo).stdout
    with (demo / "comparison.csv").open() as file:
        table = {row["run"]: row for row in csv.DictReader(file)}
    with closing(sqlite3.connect(demo / "mlflow" / "mlflow.db")) as store:
        for name, row in rows.items():
            summary = json.loads((demo / "runs" / "demo" / name / "summary.json").read_text())
            stored = dict(
                store.execute(
                    "select key, value from latest_metrics where run_uuid = ?", [row["mlflow_run_id"]]
                )
            )
            for fact in FACTS:
                assert row[fact] == summary[fact] == float(table[name][fact]), fact
                assert stored[name_metric(fact)] == pytest.approx(row[fact], rel=1e-12), fact
            assert [listed[name][fact] for fact in LISTED] == [row[fact] for fact in LISTED]
            assert format_number(row["step_time_ms_p50"], 2) in printed, "the table has two decimals"
            assert row["warmup"] == summary["warmup"] and row["step_times_from"] == "summary.json"
            assert row["step_time_ms_p50"] != row["step_ms"], "recorded steps never stand for the run's"


@pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)
def test_a_report_shows_tables_and_plots_in_a_browser_and_loads_nothing(demo: Path) -> None:
    """That of the comparison; pages of an analysis: tests/stratlab/analysis/reporting/in_browser."""
    with serve(demo) as address, open_browser(1200, 900) as page:
        page.open(f"{address}/report.html")
        page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
        assert page.run(LOADED) == []
        dom = page.run("document.documentElement.outerHTML")
    assert dom.count("<table") >= 4 and dom.count("<svg") >= 4
    assert "fsdp" in dom and "gloo" in dom
