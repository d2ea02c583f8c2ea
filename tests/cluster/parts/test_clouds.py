"""The values of three clouds on a real API server, and pods that really start with what `run.pod` can add.

The cluster has no cards and one node: of the clouds' pods the admission is shown; what every cluster has is started,
with a shell in place of the trainer.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stratlab.cluster.connection import connect
from tests.charts.pod_security import LEVELS
from tests.charts.rendering import CHARTS, ROOT, Document, pick, render
from tests.charts.slow.test_clouds import FILES, LEVEL, MANY_NODES, name_of
from tests.charts.unwrapping import RUNNING, unwrap_pods
from tests.cluster.parts.real_cluster import find_image
from tests.cluster.parts.test_charts import kubectl, read, wait_for

pytestmark = pytest.mark.cluster
ENFORCE = "pod-security.kubernetes.io/enforce"
STARTS: dict[str, Any] = yaml.safe_load(
    """
processesPerNode: 1
nodes: 2
accelerator: ""
resources: {requests: {cpu: 10m, memory: 16Mi}}
analysis: {enabled: false}
results: {claim: results}
pod:
  labels: {team: vision}
  annotations: {example.com/networks: '[{"interface":"eth1"}]'}
  serviceAccount: trainer
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname}]
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname}}
  topologySpread: [{topologyKey: kubernetes.io/hostname, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]
  volumes:
    - {name: scratch, mountPath: /scratch, emptyDir: {sizeLimit: 16Mi}}
    - {name: topology, mountPath: /etc/nccl, readOnly: true, configMap: {name: topology}}
    - {name: login, mountPath: /login, readOnly: true, secret: {secretName: login}}
    - {name: sets, mountPath: /usr/local/sets, subPath: sets, persistentVolumeClaim: {claimName: sets}}
  securityContext: {runAsUser: 20000, runAsGroup: 20001, fsGroup: 20002, supplementalGroups: [20003]}
"""
)
HOST: dict[str, Any] = {
    "pod": {
        "hostIPC": True,
        "volumes": [
            {
                "name": "node",
                "mountPath": "/usr/local/node",
                "readOnly": True,
                "hostPath": {"path": "/etc/ssl", "type": "Directory"},
            }
        ],
        "securityContext": {"capabilities": ["IPC_LOCK"]},
    },
    "podSecurity": {"level": "privileged", "hostPaths": ["/etc/ssl"]},
}
WRITTEN = "first"
SHOW = """
while read -r name value; do case $name in
  Uid:|Gid:|Groups:|CapBnd:) echo "$name" $value;; esac; done < /proc/self/status
cat /scratch/first /etc/nccl/topology.xml /login/token; echo; echo "user $USER"
touch /usr/local/sets/mine && echo "sets written"; touch /etc/nccl/x || echo "topology is read-only"
"""
SHOW_HOST = """
while read -r name value; do case $name in CapBnd:) echo "$name" $value;; esac; done < /proc/self/status
ls -d /usr/local/node && echo "folder of the node"
touch /usr/local/node/x || echo "node is read-only"
"""


@pytest.fixture(scope="module")
def namespaces() -> Iterator[dict[str, str]]:
    """One for each level that enforces it."""
    suffix = uuid.uuid4().hex[:6]
    found = {level: f"stratlab-{level}-{suffix}" for level in LEVELS}
    for level, name in found.items():
        assert kubectl("create", "namespace", name).returncode == 0
        assert kubectl("label", "namespace", name, f"{ENFORCE}={level}").returncode == 0
    yield found
    for name in found.values():
        kubectl("delete", "namespace", name, "--wait=false")


def admits(namespace: str, pod: Document) -> str:
    """Empty, or why the API server refuses the pod."""
    wanted = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
    command = [str(ROOT / ".tools" / "kubectl"), "create", "--dry-run=server", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("file", FILES, ids=name_of)
@pytest.mark.parametrize("chart", MANY_NODES)
def test_the_admission_is_what_the_page_says(
    helm: Path, namespaces: dict[str, str], chart: str, file: Path
) -> None:
    pods = unwrap_pods(render(helm, CHARTS / chart, ["--values", str(file)]))
    wait_for(
        lambda: all(read(name, "serviceaccount", "default") for name in namespaces.values())
    )  # pods need one
    for level in LEVELS:
        for name, pod in pods.items():
            pod["spec"].pop("serviceAccountName", None)  # of manifests/, which is not here
            why = admits(namespaces[level], pod)
            allowed = name not in RUNNING or LEVELS.index(level) >= LEVELS.index(LEVEL[name_of(file)])
            assert (why == "") == allowed, f"{name} at {level}: {why}"
            assert allowed or f'violates PodSecurity "{level}' in why


@pytest.fixture(scope="module")
def image() -> str:
    return find_image(connect(namespace="default"))


Start = Callable[..., list[str]]


@pytest.fixture
def start(helm: Path, namespaces: dict[str, str], image: str) -> Start:
    """Renders with `run`, puts a shell in place of the trainer, submits, and gives the logs of its ended pods."""

    def begin(name: str, run: dict[str, Any], script: str, level: str) -> list[str]:
        namespace = namespaces[level]
        release = f"{name}-{helm.name}"
        job = pick(render(helm, CHARTS / "ddp", values={"run": run}, release=release), "PyTorchJob")
        job["metadata"]["namespace"] = namespace
        for replica in job["spec"]["pytorchReplicaSpecs"].values():
            (container,) = replica["template"]["spec"]["containers"]
            container |= {"image": image, "command": ["sh", "-c", script]}
        command = [str(ROOT / ".tools" / "kubectl"), "create", "-f", "-"]
        done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        pods = [f"{release}-worker-{index}" for index in range(run.get("nodes", 1))]
        try:
            wait_for(
                lambda: all(
                    read(namespace, "pod", pod).get("status", {}).get("phase") in ("Succeeded", "Failed")
                    for pod in pods
                )
            )
            for pod in pods:
                status = read(namespace, "pod", pod)["status"]
                assert status["phase"] == "Succeeded", status
            return [kubectl("-n", namespace, "logs", pod).stdout for pod in pods]
        except AssertionError:
            print(kubectl("-n", namespace, "describe", "pods").stdout[-6000:])
            raise
        finally:
            kubectl("-n", namespace, "delete", "pytorchjob", release, "--wait=false")

    return begin


@pytest.fixture(scope="module")
def things(namespaces: dict[str, str]) -> None:
    """What the values name, in the strictest namespace."""
    namespace = namespaces["restricted"]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    for name, level in (("results", "restricted"), ("sets", "restricted"), ("results", "privileged")):
        claim["metadata"] = {"name": name, "namespace": namespaces[level]}
        command = [str(ROOT / ".tools" / "kubectl"), "create", "-f", "-"]
        subprocess.run(command, input=json.dumps(claim), text=True, check=True, capture_output=True)
    for words in (
        ("create", "configmap", "topology", "--from-literal=topology.xml=<system/>"),
        ("create", "secret", "generic", "login", "--from-literal=token=sesame"),
        ("create", "serviceaccount", "trainer"),
    ):
        assert kubectl("-n", namespace, *words).returncode == 0


@pytest.mark.usefixtures("things")
def test_pods_start_with_all_that_restricted_allows(
    start: Start, image: str, namespaces: dict[str, str]
) -> None:
    first = {
        "name": "first",
        "image": image,
        "command": ["sh", "-c", f"echo {WRITTEN} > /scratch/first"],
    }
    run = {**STARTS, "pod": {**STARTS["pod"], "initContainers": [first]}}
    logs = start("starts", run, SHOW, "restricted")
    assert len(logs) == 2
    for text in logs:
        assert "Uid: 20000 20000" in text and "Gid: 20001 20001" in text, text
        groups = next(line for line in text.splitlines() if line.startswith("Groups:"))
        assert {"20002", "20003"} <= {*groups.split()}
        for said in (WRITTEN, "<system/>", "sesame", "user trainer", "sets written", "topology is read-only"):
            assert said in text, text
        assert "CapBnd: 0000000000000000" in text


@pytest.mark.usefixtures("things")
def test_pods_start_with_what_privileged_allows_alone(start: Start) -> None:
    run = {**HOST, "accelerator": "", "nodes": 1, "processesPerNode": 1}
    run |= {key: STARTS[key] for key in ("resources", "analysis", "results")}
    (text,) = start("host", run, SHOW_HOST, "privileged")
    assert "CapBnd: 0000000000004000" in text, text  # IPC_LOCK, and nothing else
    assert "folder of the node" in text and "node is read-only" in text, text


@pytest.mark.usefixtures("things")
def test_a_label_of_the_namespace_is_what_lets_them_in(helm: Path, namespaces: dict[str, str]) -> None:
    """As the page tells whoever runs the namespace."""
    namespace = namespaces["baseline"]
    file = next(file for file in FILES if name_of(file) == "gke-a3-ultra")
    pods = unwrap_pods(render(helm, CHARTS / "fsdp", ["--values", str(file)]))
    assert "hostPath" in admits(namespace, pods["PyTorchJob.Worker"])
    assert kubectl("label", "namespace", namespace, "--overwrite", f"{ENFORCE}=privileged").returncode == 0
    try:
        wait_for(lambda: not admits(namespace, pods["PyTorchJob.Worker"]))
    finally:
        kubectl("label", "namespace", namespace, "--overwrite", f"{ENFORCE}=baseline")


def test_the_chart_refuses_before_the_api_server_is_asked(helm: Path, namespaces: dict[str, str]) -> None:
    """`helm install` itself: nothing of the run is there afterwards."""
    namespace = namespaces["restricted"]
    command = [str(helm), "install", "refused", str(CHARTS / "ddp"), "-n", namespace]
    command += ["--set", "run.pod.hostNetwork=true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode and "run.pod.hostNetwork=true needs `privileged`" in done.stderr
    assert read(namespace, "pytorchjob", "refused") == {}
