"""Gauges of runs, and a dashboard that asks for no other."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stratlab.metrics.run_gauges import RunGauges, find_runs
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.metrics.dashboard import METRIC, read_dashboard, read_queries

Samples = dict[tuple[str, str], float]


def ask(results: Path, newest: int = 50) -> Samples:
    """(metric, `run` or `run rank` or `run status`) -> value, as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(RunGauges(results, newest))
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = sample.labels
            more = labels.get("rank") or labels.get("status")
            found[sample.name, " ".join(filter(None, (labels["run"], more)))] = sample.value
    return found


@pytest.fixture
def results(tmp_path: Path) -> Path:
    build_run_dir(tmp_path / "demo", "ddp", "ddp", device="cuda")
    build_run_dir(tmp_path / "demo", "fsdp", "fsdp", device="cuda", status="failed")
    build_run_dir(tmp_path / "_prepared", "nobody", "ddp")
    return tmp_path


def test_the_last_line_of_each_kind_in_base_units(results: Path) -> None:
    lines = [json.loads(line) for line in (results / "demo/ddp/metrics.jsonl").read_text().splitlines()]
    last = {line["kind"]: line for line in lines}
    found = ask(results)
    assert found["stratlab_train_loss", "ddp"] == last["train"]["loss"]
    assert found["stratlab_step_seconds", "ddp"] == pytest.approx(last["train"]["step_time_ms"] / 1e3)
    assert found["stratlab_validation_accuracy_ratio", "ddp"] == pytest.approx(
        last["eval"]["validation_accuracy_pct"] / 100
    )
    assert found["stratlab_run_step", "ddp"] == found["stratlab_run_steps", "ddp"] == lines[-1]["step"]
    assert found["stratlab_run_status", "ddp finished"] == found["stratlab_run_status", "fsdp failed"] == 1
    assert found["stratlab_run_status", "ddp failed"] == 0
    assert not [key for key in found if "nobody" in key[1]]


def test_an_evaluation_that_ended_well_is_finished_without_a_summary(results: Path) -> None:
    run = results / "demo" / "ddp"
    config = json.loads((run / "config.json").read_text())
    config["config"]["mode"] = "evaluate"
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").unlink()
    ended = {"event": "ended", "attempt": 1, "exit_code": 0, "reason": "finished", "t": 1.7e9}
    with open(run / "attempts.jsonl", "a") as file:
        file.write(json.dumps(ended) + "\n")
    assert ask(results)["stratlab_run_status", "ddp finished"] == 1


def test_ranks_have_a_label(results: Path) -> None:
    line = {"t": 1.7e9, "attempt": 1, "step": 60, "kind": "system", "rank0_host_memory_gib": 0.5}
    line |= {"rank11_gpu_power_w": 540.0, "rank11_gpu_utilisation_pct": 97.0, "checkpoint_ms": 3.0}
    with open(results / "demo/ddp/metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n" + '{"kind": "train", "loss": ')  # and one that is being written
    found = ask(results)
    assert found["stratlab_host_memory_bytes", "ddp 0"] == 2**29
    assert found["stratlab_gpu_power_watts", "ddp 11"] == 540.0
    assert found["stratlab_gpu_utilisation_ratio", "ddp 11"] == pytest.approx(0.97)
    assert ("stratlab_train_loss", "ddp") in found


def test_the_newest_runs_alone_and_spoilt_ones_harm_nobody(results: Path) -> None:
    for age, name in enumerate(("ddp", "fsdp")):
        os.utime(results / "demo" / name / "metrics.jsonl", (age + 1, age + 1))
    assert [path.name for path in find_runs(results, 1)] == ["fsdp"]
    (results / "demo/fsdp/config.json").write_text("{")
    (results / "demo/fsdp/metrics.jsonl").write_bytes(
        b"\xff\n[]\n" + b'{"kind": 3}\n{"kind": "train", "loss": "x"}\n'
    )
    found = ask(results)
    assert ("stratlab_train_loss", "fsdp") not in found and ("stratlab_train_loss", "ddp") in found
    assert ask(results / "nowhere") == {}


def test_a_hostile_name_is_a_label(tmp_path: Path) -> None:
    build_run_dir(tmp_path / "demo", 'a"} 1\n{x="', "ddp")
    assert ask(tmp_path)["stratlab_run_attempts", 'a"} 1\n{x="'] == 1


def test_the_dashboard_asks_for_metrics_that_there_are(results: Path) -> None:
    registry = CollectorRegistry()
    registry.register(RunGauges(results, 1))
    known = {family.name for family in registry.collect()}
    asked = {name for query in read_queries().values() for name in METRIC.findall(query)}
    assert asked <= known and len(asked) >= 12
    variables = read_dashboard()["templating"]["list"]
    assert {name for each in variables for name in METRIC.findall(each["query"])} == {"stratlab_run_info"}
    document = (Path(__file__).parents[3] / "docs/monitoring.md").read_text()
    assert set(re.findall(r"`(stratlab_\w+)`", document)) == known
