"""Real faults on a real cluster that a run does not survive, or does not notice; docs/stops.md says how each ends."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stratlab.cluster.workloads import ANALYSIS, pick_jobs, read_job_end
from tests.cluster.lab import HELM, KUBECTL, MOUNT, Lab, run, wait_until
from tests.cluster.path import Run
from tests.cluster.resuming import restarts

pytestmark = pytest.mark.cluster

LONG = {"run.config.epochs": 40}  # 800 steps: long enough for something to happen in the middle


def check_one_attempt(lab: Lab, release: str) -> None:
    """Succeeded by one attempt that made every step once, and MLflow has what the file has."""
    lab.watch(release)
    assert len(lab.read_starts(f"e2e/{release}")) == 1
    lines = lab.read_lines(f"e2e/{release}/metrics.jsonl")
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == list(range(1, lab.read(f"e2e/{release}/summary.json")["steps"] + 1))
    lab.test(release)


@contextmanager
def offer(resource: str, count: int) -> Iterator[None]:
    """One node says that it has `count` of an extended resource, as a device plugin makes it; it has none."""
    node = run([KUBECTL, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).stdout
    path = "/status/capacity/" + resource.replace("/", "~1")

    def patch(change: dict[str, str], check: bool = True) -> None:
        text = json.dumps([{"path": path} | change])
        run([KUBECTL, "patch", "node", node, "--subresource=status", "--type=json", "-p", text], check=check)

    def is_offered() -> bool:
        status = json.loads(run([KUBECTL, "get", "node", node, "-o", "json"]).stdout)["status"]
        return bool(status["allocatable"].get(resource) == str(count))

    patch({"op": "add", "value": str(count)})
    try:
        wait_until(is_offered, f"{count} {resource} on {node}")
        yield
    finally:
        patch({"op": "remove"}, check=False)  # an inner one may have removed it


def test_the_operator_is_stopped_and_started(lab: Lab) -> None:
    operator = ["-n", "kubeflow", "deployment/training-operator"]
    lab.install("no-operator", "ddp", LONG)
    lab.wait_for_step("no-operator", 50)
    run([KUBECTL, "scale", *operator, "--replicas=0"])
    try:
        wait_until(lambda: lab.phases("no-operator") == ["Succeeded"] * 2, "both pods to end", 240)
        assert lab.conditions("pytorchjob/no-operator").get("Succeeded") != "True"
    finally:
        run([KUBECTL, "scale", *operator, "--replicas=1"])
    check_one_attempt(lab, "no-operator")
    lab.uninstall("no-operator")


def test_a_job_that_cannot_run_fails_at_once(lab: Lab) -> None:
    lab.install("no-sense", "ddp", {"run.config.global_batch_size": 40})  # two processes with 32 each
    assert "run.config.global_batch_size=40" in lab.watch("no-sense", code=2), "as who installed it wrote it"
    assert lab.conditions("pytorchjob/no-sense").get("Failed") == "True"
    assert all("TRAINER_GLOBAL_BATCH_SIZE=40" in lab.log(f"no-sense-worker-{index}") for index in (0, 1))
    assert "no-sense" not in lab.on_volume("ls", f"{MOUNT}/e2e")

    def analysis_failed() -> str | None:
        (job,) = pick_jobs(lab.get("jobs", "-l", "app.kubernetes.io/instance=no-sense")["items"], ANALYSIS)
        return read_job_end(job)

    wait_until(analysis_failed, "the analysis Job to end, with nothing to analyse", 180)
    lab.uninstall("no-sense")


def test_gpus_that_cannot_be_used_end_it_at_once(lab: Lab) -> None:
    with offer("nvidia.com/gpu", 4):
        lab.install("no-gpus", "ddp", {"run.accelerator": "nvidia.com/gpu"})
        assert "run.accelerator=nvidia.com/gpu" in lab.watch("no-gpus", code=4)
    assert lab.conditions("pytorchjob/no-gpus").get("Failed") == "True"
    tested = run([HELM, "-n", lab.namespace, "test", "no-gpus", "--logs"], check=False)
    assert "(exit code 4" in tested.stdout + tested.stderr
    assert "attempts.jsonl" not in lab.on_volume("ls", f"{MOUNT}/e2e/no-gpus")
    lab.uninstall("no-gpus")


def test_nodes_that_come_one_at_a_time(lab: Lab) -> None:
    slot, one = "stratlab.test/slot", Run("ddp", "one-node")
    with offer(slot, 1):
        values = {"run.resources.limits.stratlab\\.test/slot": 1, "run.config.max_attempts": 1}
        lab.install(one.name, one.chart, values)
        wait_until(lambda: lab.phases(one.name) == ["Pending", "Running"], "one pod to run", 180)
        time.sleep(90)  # the read timeout of the rendezvous is 15 s
        assert lab.phases(one.name) == ["Pending", "Running"]
        with offer(slot, 2):
            lab.watch(one.name)
    assert set(restarts(lab, one).values()) == {1}
    lab.uninstall(one.name)


def test_a_job_that_is_killed_again_and_again_is_given_up(lab: Lab) -> None:
    amounts = {f"run.resources.{kind}.memory": "300Mi" for kind in ("requests", "limits")}
    small = Run("single", "no-memory")  # torch alone needs more
    lab.install(small.name, small.chart, {**amounts, "run.config.max_attempts": 2, "run.nodes": 1})
    lab.watch(small.name, code=14)
    assert restarts(lab, small) == {"no-memory-worker-0": 2}
    lab.uninstall(small.name)


def test_a_running_release_is_upgraded(lab: Lab) -> None:
    def pods() -> dict[str, Any]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in lab.pods("better")}

    lab.install("better", "ddp", LONG)
    lab.wait_for_step("better", 20)
    before = pods()
    command = [HELM, "-n", lab.namespace, "upgrade", "better", "charts/ddp", "--reuse-values"]
    refused = run([*command, "--set", "run.config.lr=0.5"], check=False)
    assert refused.returncode and "immutable" not in refused.stderr, "the chart's word, not the API server's"
    run([*command, "--set", "run.analysis.resources.limits.memory=3Gi"])
    assert len(lab.get("jobs", "-l", "app.kubernetes.io/instance=better")["items"]) == 1
    check_one_attempt(lab, "better")
    assert pods() == before
    lab.uninstall("better")
