"""What a user may mistype: refused by `helm template` and `helm install` alike, with words that help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, helm_template, pick, render

VOLUME = "run.pod.volumes[0]"
TERM = (
    "run.pod.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    ".matchExpressions[0]"
)
# setting, what helm 4 says, what helm 3 says
TYPOS = [
    ("run.nodez=2", "at '': additional properties 'nodez' not allowed", "Additional property nodez"),
    ("run.hostNetwork=true", "additional properties 'hostNetwork'", "Additional property hostNetwork"),
    ("run.privileged=true", "additional properties 'privileged'", "Additional property privileged"),
    ("numNodes=2", "additional properties 'numNodes' not allowed", "Additional property numNodes"),
    ("run.config.tpp=2", "at '/config': additional properties 'tpp'", "config: Additional property tpp"),
    ("run.config.run=x", "at '/config': additional properties 'run'", "config: Additional property run"),
    ("run.config.strategy=zero4", "value must be one of 'single', 'ddp'", 'following: "single", "ddp"'),
    ("run.nodes=0", "at '/nodes': minimum: got 0, want 1", "nodes: Must be greater than or equal to 1"),
    ("run.processesPerNode=two", "got string, want integer", "Expected: integer, given: string"),
    ("run.config.lr=fast", "at '/config/lr': 'fast' does not match", "config.lr: Does not match pattern"),
    ("run.config.lr=0", "at '/config/lr': exclusiveMinimum", "config.lr: Must be greater than 0"),
    (
        "run.config.comparison=a/b",
        "at '/config/comparison': 'a/b' does not",
        "config.comparison: Does not match",
    ),
    ("run.results.mountPath=results", "at '/results/mountPath'", "results.mountPath: Does not match"),
    ("run.results.readOnly=true", "at '/results': additional properties", "results: Additional property"),
    ("run.sharedMemory.sizeLimit=2GiB", "at '/sharedMemory/sizeLimit'", "sharedMemory.sizeLimit: Does not"),
    ("run.analysis.image.pullPolicy=No", "at '/analysis/image/pullPolicy'", "analysis.image.pullPolicy"),
    ("run.mlflow.trackingUri=mlflow:5000", "at '/mlflow/trackingUri'", "mlflow.trackingUri: Does not match"),
    ("run.resources.limit.cpu=1", "additional properties 'limit'", "Additional property limit "),
    ("run.resources.limits.memory=1Gb", "'1Gb' does not match", "resources.limits.memory: Does not match"),
    (
        "run.processesPerNode=3,run.analysis.shares=4",
        "run.analysis.shares=4: the run has 3 ranks (run.nodes x run.processesPerNode)",
        "run.analysis.shares=4: the run has 3 ranks",
    ),
    ("run.workload.api=tfjob", "'pytorchjob', 'mpijob-v1'", 'following: "pytorchjob", "mpijob-v1"'),
    ("run.suspend=yes", "at '/suspend': got string", "suspend: Invalid type. Expected: boolean"),
    ("run.scheduling.gang=yunikorn", "at '/scheduling/gang'", "scheduling.gang must be one of"),
    (
        "run.scheduling.queue=a,run.scheduling.gang=none",
        "needs run.scheduling.gang=kueue",
        "needs run.scheduling",
    ),
    (
        "run.mlflow.existingSecret=a,run.mlflow.trackingUri=",
        "no run.mlflow.trackingUri",
        "no run.mlflow.tracking",
    ),
    (
        "run.rdma.enabled=true",
        "run.rdma.lockMemory=true (the capability IPC_LOCK) needs `privileged`",
        "needs `p",
    ),
    (
        "run.rdma.enabled=true,run.rdma.lockMemory=false,run.resources.limits.rdma/hca=1",
        "is given by run.rdma",
        "is given by run.rdma",
    ),
    (
        "run.rdma.enabled=true,run.rdma.lockMemory=false,run.rdma.resource=nvidia.com/gpu",
        "is the accelerator's resource",
        "is the accelerator's",
    ),
    (
        f"{VOLUME}.name=x,{VOLUME}.configMap.name=a,{VOLUME}.mountPath=/results/default",
        "run.pod.volumes: x is mounted at /results/default, below /results, which is the pods' own",
        "run.pod.volumes: x is mounted at /results/default, below /results, which is the pods' own",
    ),
    (
        f"{VOLUME}.name=x,{VOLUME}.configMap.name=a,{VOLUME}.mountPath=/etc/passwd",
        "at '/pod/volumes/0/mountPath'",
        "pod.volumes.0.mountPath",
    ),
    (
        "run.pod.labels.job-name=x",
        "run.pod.labels: job-name is set by the chart, Kubernetes or an operator",
        "run.pod.labels: job-name is set by",
    ),
    (
        "run.scheduling.tolerations[0].operator=Exists,run.scheduling.tolerations[0].value=yes",
        "at '/scheduling/tolerations/0/value'",
        "scheduling.tolerations.0.value",
    ),
    (
        f"{TERM}.key=gpu,{TERM}.operator=In",
        "missing property 'values'",
        "values is required",
    ),
    ("run.secrets[0].name=A", "missing properties 'secret', 'key'", "secret is required"),
    (
        "run.scheduling.nodeSelector.a=b c",
        "at '/scheduling/nodeSelector/a'",
        "scheduling.nodeSelector.a: Does",
    ),
    ("run.env[0].name=A", "missing property 'value'", "value is required"),
    ("run.env[0].name=TRAINER_LR,run.env[0].value=1", "write run.config.lr", "write run.config.lr"),
]


@pytest.mark.parametrize(("setting", "by_helm4", "by_helm3"), TYPOS, ids=[typo for typo, _, _ in TYPOS])
def test_a_typo(helm: Path, setting: str, by_helm4: str, by_helm3: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", ["--set", setting])
    assert done.returncode == 1
    assert done.stdout == ""
    assert (by_helm3 if helm.name == "helm3" else by_helm4) in done.stderr


@pytest.mark.parametrize("chart", ["single", "fsdp", "zero2"])
def test_every_chart_refuses_what_is_not_under_run(helm: Path, chart: str) -> None:
    done = helm_template(helm, CHARTS / chart, ["--set", "numNodes=2"])
    assert done.returncode == 1 and "numNodes" in done.stderr


@pytest.mark.parametrize("release", ["1bad", "a.b", "r" * 53])
def test_a_release_that_cannot_name_a_pytorchjob(helm: Path, release: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", release=release)
    assert done.returncode == 1
    assert re.search(
        rf'release name "{release}" cannot name a PyTorchJob: .*start with a letter', done.stderr
    )


@pytest.mark.parametrize("release", ["a", "a-1", "r" * 52])
def test_a_release_that_can(helm: Path, release: str) -> None:
    assert pick(render(helm, CHARTS / "ddp", release=release), "PyTorchJob")["metadata"]["name"] == release
    assert len(f"{release}-worker-999") <= 63


def test_values_for_other_charts_of_a_parent_are_not_a_typo(helm: Path) -> None:
    render(helm, CHARTS / "ddp", ["--set", "global.team=vision"])
