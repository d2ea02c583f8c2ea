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
    waiter_pod,
)
from trainer.settings.config import Config


def job_name(helm: Path, settings: str = "", *, release: str = "golden") -> str:
    arguments = ["--set", settings] if settings else []
    return pick(render(helm, CHARTS / "ddp", arguments, release=release), "Job")["metadata"]["name"]


@pytest.fixture(scope="module")
def shipped(helm: Path) -> str:
    return job_name(helm)


@pytest.fixture(scope="module")
def shipped_jobs(helm: Path) -> list[Document]:
    return [document for document in render(helm, CHARTS / "ddp") if document["kind"] == "Job"]


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
def test_another_spec_has_another_name(helm: Path, shipped_jobs: list[Document], change: str) -> None:
    """The spec of a Job cannot change: an upgrade under the same name would fail."""
    changed = [job for job in render(helm, CHARTS / "ddp", ["--set", change]) if job["kind"] == "Job"]
    same = [old["spec"] == new["spec"] for old, new in zip(shipped_jobs, changed, strict=True)]
    names = [
        old["metadata"]["name"] == new["metadata"]["name"]
        for old, new in zip(shipped_jobs, changed, strict=True)
    ]
    assert same == names and not all(same)


def test_a_change_of_the_training_alone_keeps_the_name(helm: Path, shipped: str) -> None:
    assert job_name(helm, "run.config.lr=0.5") == shipped


def test_the_longest_release_still_names_a_job(helm: Path) -> None:
    """63 characters: the name is also a label of the pods."""
    first, second = (
        [
            job["metadata"]["name"]
            for job in render(helm, CHARTS / "ddp", release="r" * 51 + end)
            if job["kind"] == "Job"
        ]
        for end in "ab"
    )
    assert {len(name) for name in (*first, *second)} == {63}
    assert len({*first, *second}) == 4


def requested(pod: Document) -> dict[str, float]:
    """What the pod holds of a quota: its largest init container, or all others together, whichever is more."""
    amounts: dict[str, float] = {}
    for kind in ("requests", "limits"):
        for name in ("cpu", "memory"):

            def read(each: Document, kind: str = kind, name: str = name) -> float:
                given = each["resources"].get(kind, {}).get(name, "0")
                number, unit = re.fullmatch(r"([0-9.]+)(.*)", given).groups()
                return float(number) * {"": 1, "m": 1e-3, "Mi": 2**20, "Gi": 2**30}[unit]

            together = sum(read(each) for each in pod["containers"])
            amounts[f"{kind}.{name}"] = max([together, *map(read, pod.get("initContainers", []))])
    return amounts


def test_what_waits_costs_next_to_nothing(helm: Path) -> None:
    """As a quota counts it: pods that are there, whatever they do; a suspended Job has none."""
    given = "run.analysis.resources.limits.cpu=8,run.analysis.resources.requests.cpu=4"
    rendered = render(helm, CHARTS / "ddp", ["--set", given])
    jobs = [document["spec"] for document in rendered if document["kind"] == "Job"]
    pods = [job["template"]["spec"] for job in jobs if not job.get("suspend")]
    held = [requested(pod) for pod in pods]
    assert sum(each["requests.cpu"] for each in held) <= 0.02
    assert 0 < sum(each["limits.cpu"] for each in held) <= 0.2
    assert sum(each["limits.memory"] for each in held) <= 2**29
    assert requested(analysis_pod(rendered))["limits.cpu"] == 8, "and the analysis has what it needs"


def test_the_waiter_s_resources_are_settable(helm: Path) -> None:
    given = "run.analysis.wait.resources.limits.cpu=1,run.analysis.wait.resources.requests.cpu=100m"
    rendered = render(helm, CHARTS / "ddp", ["--set", given])
    assert container(waiter_pod(rendered), "wait")["resources"]["limits"]["cpu"] == "1"
    assert container(waiter_pod(rendered), "wait")["resources"]["requests"]["cpu"] == "100m"


def test_the_waiter_starts_the_analysis(documents: list[Document]) -> None:
    job, waiter = pick(documents, "Job"), pick(documents, "waiter")
    assert job["spec"]["suspend"] is True and "suspend" not in waiter["spec"]
    command = container(waiter_pod(documents), "wait")["command"]
    assert command[command.index("--then-start") + 1] == job["metadata"]["name"]


@pytest.mark.parametrize("settings", ["", "run.config.deadline_s=3000000,run.scheduling.waitSeconds=0"])
def test_whoever_waits_gives_up_after_whom_he_waits_for(helm: Path, settings: str) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", settings])
    trainer = Config.from_env(environment(training_pod(rendered), "pytorch")).deadline_s
    workload = pick(rendered, "PyTorchJob")["spec"]["runPolicy"]["activeDeadlineSeconds"]
    command = container(waiter_pod(rendered), "wait")["command"]
    waiter = int(command[command.index("--deadline-s") + 1])
    job = pick(rendered, "waiter")["spec"]["activeDeadlineSeconds"]
    assert trainer < workload < waiter < job
    analysis = pick(rendered, "Job")["spec"]["activeDeadlineSeconds"]
    assert analysis == job - waiter == 3600, "an hour to analyse, which counts from its start"
    assert workload - trainer >= (0 if settings else 86400)


def test_the_token_is_for_the_waiter_alone(documents: list[Document]) -> None:
    pod, analysis = waiter_pod(documents), analysis_pod(documents)
    assert pod["serviceAccountName"] == "stratlab-analysis" and "serviceAccountName" not in analysis
    assert pod["automountServiceAccountToken"] is analysis["automountServiceAccountToken"] is False
    mount = {
        "name": "token",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    }
    assert mount in container(pod, "wait")["volumeMounts"]
    assert mount not in container(analysis, "analyze")["volumeMounts"]
    assert "token" not in [volume["name"] for volume in analysis["volumes"]]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "token"]
    token, authority, namespace = volume["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    assert namespace["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.namespace"


def test_the_waiter_looks_at_the_resource(documents: list[Document]) -> None:
    command = container(waiter_pod(documents), "wait")["command"]
    assert command[3:7] == ["--resource", "pytorchjob/golden", "--namespace", "lab"]


def test_without_an_account_there_is_no_token_and_only_files(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.analysis.serviceAccount="])
    assert [document["kind"] for document in rendered].count("Job") == 1
    job = pick(rendered, "Job")["spec"]
    pod = job["template"]["spec"]
    assert container(pod, "wait")["command"][3] == "--deadline-s" and "suspend" not in job
    assert "serviceAccountName" not in pod and "token" not in [volume["name"] for volume in pod["volumes"]]
    command = container(pod, "wait")["command"]
    assert job["activeDeadlineSeconds"] - int(command[command.index("--deadline-s") + 1]) == 3600


def test_kueue_takes_it_only_where_it_must(helm: Path) -> None:
    label = "kueue.x-k8s.io/queue-name"
    settings = "run.scheduling.gang=kueue,run.scheduling.queue=gpus"
    rendered = render(helm, CHARTS / "ddp", ["--set", settings])
    assert pick(rendered, "PyTorchJob")["metadata"]["labels"][label] == "gpus"
    assert not any(label in pick(rendered, kind)["metadata"]["labels"] for kind in ("Job", "waiter"))
    rendered = render(helm, CHARTS / "ddp", ["--set", f"{settings},run.analysis.queue=cpus"])
    assert pick(rendered, "waiter")["metadata"]["labels"][label] == "cpus"
    assert label not in pick(rendered, "Job")["metadata"]["labels"], "Kueue would start it at once"
    command = container(waiter_pod(rendered), "wait")["command"]
    assert command[command.index("--queue") + 1] == "cpus"


def test_bad_arguments_and_nothing_to_analyse_are_final(documents: list[Document]) -> None:
    spec = pick(documents, "Job")["spec"]
    final, ignored = spec["podFailurePolicy"]["rules"]
    assert final == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 3, 13]}}
    assert ignored["action"] == "Ignore" and ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["backoffLimit"] == 2


def test_it_can_be_left_out(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.analysis.enabled=false"])
    assert [document["kind"] for document in rendered] == ["PyTorchJob", "Pod"]


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
    directory = container(waiter_pod(rendered), "wait")["command"][2]
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
