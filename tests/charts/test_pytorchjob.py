"""What the training operator needs to see; the reasons are in charts/run/templates/_pytorchjob.tpl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, Document, container, helm_template, pick, render, training_pod


def test_workers_only_with_a_rendezvous(documents: list[Document]) -> None:
    spec = pick(documents, "PyTorchJob")["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    assert spec["elasticPolicy"]["rdzvBackend"] == "c10d"
    assert spec["elasticPolicy"]["maxRestarts"] == 0
    assert spec["elasticPolicy"]["rdzvConf"] == [{"key": "read_timeout", "value": "15"}]


def test_exit_codes_decide_and_logs_stay(documents: list[Document]) -> None:
    spec = pick(documents, "PyTorchJob")["spec"]
    assert spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
    assert spec["runPolicy"].keys() == {"cleanPodPolicy", "activeDeadlineSeconds"}  # no backoffLimit
    assert spec["runPolicy"]["cleanPodPolicy"] == "None"
    assert training_pod(documents)["terminationGracePeriodSeconds"] == 120


def test_the_trainer_is_started_without_a_shell(documents: list[Document]) -> None:
    (entry,) = training_pod(documents)["containers"]
    assert entry["name"] == "pytorch"
    assert entry["command"] == ["python", "-m", "trainer"]
    assert "args" not in entry


def test_processes_are_text_and_always_there(documents: list[Document]) -> None:
    assert pick(documents, "PyTorchJob")["spec"]["nprocPerNode"].isdigit()


def test_one_accelerator_for_every_process(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.processesPerNode=8,run.accelerator=amd.com/gpu"])
    assert container(training_pod(rendered), "pytorch")["resources"]["limits"] == {"amd.com/gpu": "8"}


def test_no_accelerator(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.accelerator="])
    assert "limits" not in container(training_pod(rendered), "pytorch")["resources"]


def test_further_resources(helm: Path) -> None:
    resources = {"limits": {"memory": "64Gi"}, "requests": {"cpu": 0.5, "memory": 68719476736}}
    rendered = render(helm, CHARTS / "single", values={"run": {"resources": resources}})
    assert container(training_pod(rendered), "pytorch")["resources"] == {
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "1"},
        "requests": {"cpu": "0.5", "memory": "68719476736"},
    }


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_the_accelerator_is_said_once(helm: Path, kind: str) -> None:
    resources = {kind: {"nvidia.com/gpu": 1}}
    done = helm_template(helm, CHARTS / "ddp", values={"run": {"resources": resources}})
    assert done.returncode and "nvidia.com/gpu is one per process by run.accelerator" in done.stderr


def test_shared_memory_is_in_memory_and_bounded(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.sharedMemory.sizeLimit=16Gi"])
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    assert volume in training_pod(rendered)["volumes"]


def test_image_pinned_by_digest(helm: Path) -> None:
    digest = "0.1.0@sha256:" + "a" * 64
    rendered = render(
        helm, CHARTS / "ddp", ["--set", f"run.image.repository=host:5000/a/b,run.image.tag={digest}"]
    )
    assert container(training_pod(rendered), "pytorch")["image"] == f"host:5000/a/b:{digest}"
