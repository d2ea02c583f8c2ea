"""The Job that waits for a run and analyses it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stratlab.analysis.measuring.shares import Share, parse_share
from tests.charts.rendering import (
    CHARTS,
    Document,
    analysis_pod,
    container,
    environment,
    expand,
    pick,
    render,
    training_pod,
)
from trainer.settings.config import Config


def job_name(helm: Path, settings: str = "", *, release: str = "golden") -> str:
    arguments = ["--set", settings] if settings else []
    return pick(render(helm, CHARTS / "ddp", arguments, release=release), "Job")["metadata"]["name"]


@pytest.fixture(scope="module")
def shipped(helm: Path) -> str:
    return job_name(helm)


def test_a_plain_job(documents: list[Document]) -> None:
    """A hook would block `helm install` until the training ends."""
    assert "annotations" not in pick(documents, "Job")["metadata"]


def test_name_carries_the_hash_of_the_spec(shipped: str) -> None:
    assert re.fullmatch(r"golden-analysis-[0-9a-f]{8}", shipped)


@pytest.mark.parametrize(
    "change",
    [
        "run.scheduling.waitSeconds=60",
        "run.config.deadline_s=600",
        "run.analysis.image.tag=other",
        "run.config.comparison=other",
        "run.mlflow.trackingUri=http://x",
        "run.analysis.ttlSecondsAfterFinished=0",
        "run.processesPerNode=2,run.analysis.shares=2",
    ],
)
def test_another_spec_has_another_name(helm: Path, shipped: str, change: str) -> None:
    """The spec of a Job cannot change: an upgrade under the same name would fail."""
    assert job_name(helm, change) != shipped


def test_a_change_of_the_training_alone_keeps_the_name(helm: Path, shipped: str) -> None:
    assert job_name(helm, "run.config.lr=0.5") == shipped


def test_the_longest_release_still_names_a_job(helm: Path) -> None:
    """63 characters: the name is also a label of the pods."""
    first, second = (job_name(helm, release="r" * 51 + end) for end in "ab")
    assert len(first) == len(second) == 63
    assert first != second


@pytest.mark.parametrize("settings", ["", "run.config.deadline_s=3000000,run.scheduling.waitSeconds=0"])
def test_whoever_waits_gives_up_after_whom_he_waits_for(helm: Path, settings: str) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", settings])
    trainer = Config.from_env(environment(training_pod(rendered), "pytorch")).deadline_s
    workload = pick(rendered, "PyTorchJob")["spec"]["runPolicy"]["activeDeadlineSeconds"]
    command = container(analysis_pod(rendered), "wait")["command"]
    waiter = int(command[command.index("--deadline-s") + 1])
    analysis = pick(rendered, "Job")["spec"]["activeDeadlineSeconds"]
    assert trainer < workload < waiter < analysis
    assert analysis - waiter == 3600, "an hour to analyse"
    assert workload - trainer >= (0 if settings else 86400)


def test_the_token_is_for_the_waiter_alone(documents: list[Document]) -> None:
    pod = analysis_pod(documents)
    assert pod["serviceAccountName"] == "stratlab-analysis"
    assert pod["automountServiceAccountToken"] is False
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = {
        name: [mount for mount in container(pod, name)["volumeMounts"] if mount["mountPath"] == path]
        for name in ("wait", "analyze")
    }
    assert mounts == {"wait": [{"name": "token", "mountPath": path, "readOnly": True}], "analyze": []}
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "token"]
    token, authority, namespace = volume["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    assert namespace["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.namespace"


def test_the_waiter_looks_at_the_resource(documents: list[Document]) -> None:
    command = container(analysis_pod(documents), "wait")["command"]
    assert command[3:7] == ["--resource", "pytorchjob/golden", "--namespace", "lab"]


def test_without_an_account_there_is_no_token_and_only_files(helm: Path) -> None:
    pod = analysis_pod(render(helm, CHARTS / "ddp", ["--set", "run.analysis.serviceAccount="]))
    assert container(pod, "wait")["command"][3] == "--deadline-s"
    assert "serviceAccountName" not in pod and "token" not in [volume["name"] for volume in pod["volumes"]]


def test_kueue_takes_it_only_where_it_must(helm: Path) -> None:
    label = "kueue.x-k8s.io/queue-name"
    settings = "run.scheduling.gang=kueue,run.scheduling.queue=gpus"
    rendered = render(helm, CHARTS / "ddp", ["--set", settings])
    assert pick(rendered, "PyTorchJob")["metadata"]["labels"][label] == "gpus"
    assert label not in pick(rendered, "Job")["metadata"]["labels"]
    rendered = render(helm, CHARTS / "ddp", ["--set", f"{settings},run.analysis.queue=cpus"])
    assert pick(rendered, "Job")["metadata"]["labels"][label] == "cpus"


def test_bad_arguments_and_nothing_to_analyse_are_final(documents: list[Document]) -> None:
    spec = pick(documents, "Job")["spec"]
    final, ignored = spec["podFailurePolicy"]["rules"]
    assert final == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 3, 13]}}
    assert ignored["action"] == "Ignore" and ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["backoffLimit"] == 2


def test_it_can_be_left_out(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.analysis.enabled=false"])
    assert {document["kind"] for document in rendered} == {"PyTorchJob", "Pod"}


def test_the_verification_is_a_hook_and_no_part_of_the_run(documents: list[Document]) -> None:
    pod = pick(documents, "Pod")
    assert pod["metadata"]["name"] == "golden-test"
    assert pod["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    (verify,) = pod["spec"]["containers"]
    assert verify["command"] == [
        "stratlab",
        "verify",
        container(analysis_pod(documents), "analyze")["command"][2],
    ]
    assert environment(pod["spec"], "verify")["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_of_shares_each_pod_reads_its_own(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.nodes=4,run.analysis.shares=4"])
    spec = pick(rendered, "Job")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (2, 0) and "backoffLimit" not in spec
    pod = spec["template"]["spec"]
    env = environment(pod, "analyze") | {"JOB_COMPLETION_INDEX": "3"}
    command = [expand(word, env) for word in container(pod, "analyze")["command"]]
    directory = container(pod, "wait")["command"][2]
    label = "<metadata.labels['batch.kubernetes.io/controller-uid']>"
    assert command == ["stratlab", "analyze", directory, "--share", "3/4", "--job", label]
    assert parse_share(command[4]) == Share(3, 4)


def test_one_share_is_the_job_as_it_was(helm: Path, shipped: str) -> None:
    assert job_name(helm, "run.analysis.shares=1") == shipped
    text = json.dumps(pick(render(helm, CHARTS / "ddp"), "Job"))
    assert not [word for word in ("Indexed", "share", "STRATLAB_JOB", "PerIndex") if word in text]


def test_the_longest_release_still_names_the_pods_of_shares(helm: Path) -> None:
    """63 characters: the API server refuses an Indexed Job whose last pod's host name is longer."""
    settings = "run.nodes=1000,run.analysis.shares=1000"
    first, second = (job_name(helm, settings, release="r" * 51 + end) for end in "ab")
    assert len(f"{first}-999") == 63 and first != second
