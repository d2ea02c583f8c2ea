"""Gauges of runs, and a dashboard that asks for no other."""

import json
import os
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from docs.building.metrics_page import write_metrics
from stratlab import UserError, metrics
from stratlab.metrics_exporter import RunGauges, find_runs
from stratlab_spec.exit_codes import BAD_CONFIG
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.raised import raised

FILE = Path(__file__).parents[3] / "manifests/components/prometheus/dashboard.json"
METRIC = re.compile(r"\bstratlab_\w+")


def read_dashboard():
    return json.loads(FILE.read_text())


def read_queries():
    """`title, A` -> PromQL, with every variable set to everything."""
    return {
        f"{panel['title']}, {target['refId']}": re.sub(r"\$(comparison|run)\b", ".*", target["expr"])
        for panel in read_dashboard()["panels"]
        for target in panel["targets"]
    }


def open_registry(results, newest=50):
    registry = CollectorRegistry()
    registry.register(RunGauges(results, newest))
    return registry


def ask(results):
    """(metric, `run` or `run rank` or `run status`) -> value, as Prometheus reads it."""
    found = {}
    text = generate_latest(open_registry(results)).decode()
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        more = sample.labels.get("rank") or sample.labels.get("status")
        found[sample.name, " ".join(filter(None, (sample.labels["run"], more)))] = sample.value
    return found


@pytest.fixture
def results(tmp_path):
    build_run_dir(tmp_path / "demo", "ddp", "ddp", device="cuda")
    build_run_dir(tmp_path / "demo", "fsdp", "fsdp", device="cuda", status="failed")
    build_run_dir(tmp_path / "_prepared", "nobody", "ddp")
    return tmp_path


def test_the_last_line_of_each_kind_in_base_units(results):
    path = results / "demo/ddp/metrics.jsonl"
    last = {line["kind"]: line for line in map(json.loads, path.read_text().splitlines())}
    system = {"t": 1.7e9, "attempt": 1, "step": 40, "kind": "system", "rank0_host_memory_gib": 0.5}
    system |= {"rank11_gpu_power_w": 540.0, "rank11_gpu_utilisation_pct": 97.0, "checkpoint_ms": 3.0}
    with open(path, "a") as file:
        file.write(json.dumps(system) + "\n" + '{"kind": "train", "loss": ')  # and one that is being written
    found = {name.removeprefix("stratlab_") + " " + run: value for (name, run), value in ask(results).items()}
    assert found["train_loss ddp"] == last["train"]["loss"]
    assert found["step_seconds ddp"] == pytest.approx(last["train"]["step_time_ms"] / 1e3)
    accuracy = last["eval"]["validation_accuracy_pct"] / 100
    assert found["validation_accuracy_ratio ddp"] == pytest.approx(accuracy)
    assert found["run_step ddp"] == found["run_steps ddp"] == 60
    assert found["run_status ddp finished"] == found["run_status fsdp failed"] == 1
    assert found["run_status ddp failed"] == 0 and not [key for key in found if "nobody" in key]
    assert found["host_memory_bytes ddp 0"] == 2**29 and found["gpu_power_watts ddp 11"] == 540.0
    assert found["gpu_utilisation_ratio ddp 11"] == pytest.approx(0.97)


def test_the_newest_runs_alone_and_spoilt_ones_harm_nobody(results):
    for age, name in enumerate(("ddp", "fsdp")):
        os.utime(results / "demo" / name / "metrics.jsonl", (age + 1, age + 1))
    assert [path.name for path in find_runs(results, 1)] == ["fsdp"]
    (results / "demo/fsdp/config.json").write_text("{")
    spoilt = b'\xff\n[]\n{"kind": 3}\n{"kind": "train", "loss": "x"}\n'
    (results / "demo/fsdp/metrics.jsonl").write_bytes(spoilt)
    hostile = 'a"} 1\n{x="'
    build_run_dir(results / "demo", hostile, "ddp")
    found = ask(results)
    assert ("stratlab_train_loss", "fsdp") not in found and ("stratlab_train_loss", "ddp") in found
    assert found["stratlab_run_attempts", hostile] == 1 and ask(results / "nowhere") == {}


def test_the_dashboard_asks_for_metrics_that_there_are(results):
    known = {family.name for family in open_registry(results, 1).collect()}
    asked = {name for query in read_queries().values() for name in METRIC.findall(query)}
    assert asked <= known and len(asked) >= 12
    variables = read_dashboard()["templating"]["list"]
    assert {name for each in variables for name in METRIC.findall(each["query"])} == {"stratlab_run_info"}
    assert set(re.findall(r"`(stratlab_\w+)`", write_metrics(Path()))) == known


def test_what_was_asked_wrongly_of_a_replay_is_told_from_a_failure():
    assert metrics._read_answer(0, " done\n", "") == "done"
    for code, kind in ((BAD_CONFIG, UserError), (1, metrics.ReplayFailed)):
        assert type(raised(metrics._read_answer, code, "", "error: no")) is kind
