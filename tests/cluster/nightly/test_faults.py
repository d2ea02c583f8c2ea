"""Real faults on a real cluster; docs/stops.md says how each ends. Every run here is small and trains for seconds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.faults import analysis_state, check_complete, offer, restarts
from tests.cluster.lab import HELM, KUBECTL, MOUNT, Lab, run, wait_until
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

LONG = {"run.config.epochs": 40}  # 800 steps: long enough for something to happen in the middle


def test_a_worker_pod_is_deleted(lab: Lab, steps: Steps) -> None:
    with steps.step("a worker pod deleted mid-run: trains again, Succeeded, nothing lost") as notes:
        lab.install("pod-lost", "ddp", LONG)
        lab.wait_for_step("pod-lost", 50)
        began = time.monotonic()
        lab.kubectl("delete", "pod", "pod-lost-worker-1", "--wait=false")
        wait_until(
            lambda: len(lab.read_lines("e2e/pod-lost/attempts.jsonl")) >= 3, "a second attempt", 180, 2
        )
        notes.append(f"second attempt after {time.monotonic() - began:.0f} s")
        check_complete(lab, "pod-lost", attempts=2)
        notes.append(f"starts per pod {restarts(lab, 'pod-lost')}")
        lab.uninstall("pod-lost")


def test_the_operator_is_stopped_and_started(lab: Lab, steps: Steps) -> None:
    operator = ["-n", "kubeflow", "deployment/training-operator"]
    with steps.step(
        "the operator stopped mid-run and started after it: the run goes on, then Succeeded"
    ) as notes:
        lab.install("no-operator", "ddp", LONG)
        lab.wait_for_step("no-operator", 50)
        run([KUBECTL, "scale", *operator, "--replicas=0"])
        try:
            phases = [
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/instance=no-operator,app.kubernetes.io/component=training",
            ]
            phases += ["-o", "jsonpath={.items[*].status.phase}"]
            wait_until(lambda: lab.kubectl(*phases).split() == ["Succeeded"] * 2, "both pods to end", 240)
            assert lab.conditions("pytorchjob/no-operator").get("Succeeded") != "True"
        finally:
            run([KUBECTL, "scale", *operator, "--replicas=1"])
        began = time.monotonic()
        check_complete(lab, "no-operator", attempts=1)
        notes.append(f"recorded as Succeeded and analysed {time.monotonic() - began:.0f} s after its return")
        lab.uninstall("no-operator")


def test_mlflow_is_deleted(lab: Lab, steps: Steps) -> None:
    with steps.step("MLflow's pod deleted mid-run: training goes on, every point arrives once"):
        lab.install("no-mlflow", "ddp", LONG)
        lab.wait_for_step("no-mlflow", 50)
        lab.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=mlflow", "--wait=false")
        lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=240s")
        check_complete(lab, "no-mlflow", attempts=1)
        lab.uninstall("no-mlflow")


def test_a_job_that_cannot_run_fails_at_once(lab: Lab, steps: Steps) -> None:
    with steps.step(
        "a job that cannot run: Failed at once, one start, the reason in watch, logs kept, nothing left"
    ) as notes:
        lab.install("no-sense", "ddp", {"run.config.global_batch_size": 40})  # two processes with 32 each
        done = lab.watch("no-sense")
        assert done.returncode == 2, done.stdout[-3000:]
        sentence = "TRAINER_GLOBAL_BATCH_SIZE=40: must be a multiple of"
        assert "run.config.global_batch_size=40: must be a multiple of" in done.stdout, (
            "as who installed it wrote it"
        )
        assert lab.conditions("pytorchjob/no-sense").get("Failed") == "True"
        assert sentence in lab.log("no-sense-worker-0") and sentence in lab.log("no-sense-worker-1")
        assert "no-sense" not in lab.on_volume("ls", f"{MOUNT}/e2e")
        wait_until(lambda: analysis_state(lab, "no-sense") == "Failed", "the analysis Job to end", 180)
        notes.append("analysis Job: Failed, nothing to analyse, not tried again")
        lab.uninstall("no-sense")


def test_gpus_that_cannot_be_used_end_it_at_once(lab: Lab, steps: Steps) -> None:
    with steps.step(
        "GPUs that are given and cannot be used: exit code 4, no other start, said by watch and helm test"
    ):
        with offer("nvidia.com/gpu", 4):
            lab.install("no-gpus", "ddp", {"run.accelerator": "nvidia.com/gpu"})
            done = lab.watch("no-gpus")
        assert done.returncode == 4, done.stdout[-3000:]
        assert "run.accelerator=nvidia.com/gpu: asked for 1 in this pod" in done.stdout
        assert lab.conditions("pytorchjob/no-gpus").get("Failed") == "True"
        tested = run([HELM, "-n", lab.namespace, "test", "no-gpus", "--logs"], check=False)
        assert "accelerators asked for, not visible (exit code 4)" in tested.stdout + tested.stderr
        assert "attempts.jsonl" not in lab.on_volume("ls", f"{MOUNT}/e2e/no-gpus")
        lab.uninstall("no-gpus")


def test_nodes_that_come_one_at_a_time(lab: Lab, steps: Steps) -> None:
    slot = "stratlab.test/slot"
    with steps.step(
        "one of two pods has a node: it waits for the other, and has used up no attempt"
    ) as notes:
        with offer(slot, 1):
            values = {"run.resources.limits.stratlab\\.test/slot": 1, "run.config.max_attempts": 1}
            lab.install("one-node", "ddp", values)
            pods = [
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/instance=one-node,app.kubernetes.io/component=training",
            ]
            pods += ["-o", "jsonpath={.items[*].status.phase}"]
            wait_until(
                lambda: sorted(lab.kubectl(*pods).split()) == ["Pending", "Running"], "one pod to run", 180
            )
            time.sleep(90)  # the read timeout of the rendezvous is 15 s
            assert sorted(lab.kubectl(*pods).split()) == ["Pending", "Running"]
            with offer(slot, 2):
                done = lab.watch("one-node")
        assert done.returncode == 0, done.stdout[-3000:] + lab.describe("one-node")
        notes.append(f"starts per pod {restarts(lab, 'one-node')}")
        assert set(restarts(lab, "one-node").values()) == {1}
        lab.uninstall("one-node")


def test_a_job_that_is_killed_again_and_again_is_given_up(lab: Lab, steps: Steps) -> None:
    with steps.step(
        "a pod that is killed for memory at every start: given up after max_attempts starts"
    ) as notes:
        values = {
            "run.resources.requests.memory": "300Mi",
            "run.resources.limits.memory": "300Mi",
            "run.config.max_attempts": 2,
        }  # torch alone needs more
        lab.install("no-memory", "single", values | {"run.nodes": 1})
        done = lab.watch("no-memory")
        assert done.returncode == 14, done.stdout[-3000:]
        assert "came no further than step 0" in done.stdout + done.stderr
        assert restarts(lab, "no-memory") == {"no-memory-worker-0": 2}
        notes.append("2 starts, then exit code 14")
        lab.uninstall("no-memory")


def test_a_run_is_suspended_and_resumed(lab: Lab, steps: Steps) -> None:
    with steps.step(
        "suspended mid-run and resumed by helm upgrade: a second attempt, Succeeded, nothing lost"
    ):
        lab.install("pause", "fsdp", LONG)
        lab.wait_for_step("pause", 20)
        lab.helm("upgrade", "pause", "fsdp", {**LONG, "run.suspend": "true"})
        pods = [
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/instance=pause,app.kubernetes.io/component=training",
            "-o",
            "name",
        ]
        wait_until(lambda: not lab.kubectl(*pods).split(), "no pods", 120)
        assert lab.conditions("pytorchjob/pause").get("Suspended") == "True"
        lab.helm("upgrade", "pause", "fsdp", LONG)
        check_complete(lab, "pause", attempts=2)
        lab.uninstall("pause")


def test_a_running_release_is_upgraded(lab: Lab, steps: Steps) -> None:
    with steps.step("helm upgrade of a running release: other settings refused, another analysis accepted"):
        lab.install("better", "ddp", LONG)
        lab.wait_for_step("better", 20)
        before = pods_of(lab, "better")
        command = [HELM, "-n", lab.namespace, "upgrade", "better", "charts/ddp", "--reuse-values"]
        refused = run([*command, "--set", "run.config.lr=0.5"], check=False)
        assert refused.returncode != 0
        assert "settings of a run" in refused.stderr and "immutable" not in refused.stderr
        run([*command, "--set", "run.analysis.resources.limits.memory=3Gi"])
        jobs = lab.get("jobs", "-l", "app.kubernetes.io/instance=better")["items"]
        assert len(jobs) == 1
        check_complete(lab, "better", attempts=1)
        assert pods_of(lab, "better") == before
        lab.uninstall("better")


def pods_of(lab: Lab, release: str) -> dict[str, Any]:
    """{name: uid} of the training pods."""
    selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=training"
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in lab.get("pods", "-l", selector)["items"]}
