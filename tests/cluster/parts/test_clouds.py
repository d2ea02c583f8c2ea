"""The values of three clouds on a real API server, and pods that really start with what `run.pod` can add.

The cluster has no cards and one node: of the clouds' pods the admission is shown; what every cluster has is started,
with a shell in place of the trainer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from tests.charts.pod_security import LEVELS
from tests.charts.rendering import Document, pick, render
from tests.charts.unwrapping import RUNNING, unwrap_pods
from tests.cluster.lab import HELM, KUBECTL, ROOT, run
from tests.cluster.parts.conftest import Cluster, find_image, use_namespace

pytestmark = pytest.mark.cluster

CHARTS = ("zeropp", "llm-4d", "fsdp")
LEVEL = {"eks-efa": "restricted", "gke-a3-ultra": "privileged", "infiniband": "privileged"}
"""As docs/clouds.md says."""
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
HOST: dict[str, Any] = yaml.safe_load(
    """
nodes: 1
pod:
  hostIPC: true
  volumes:
    - {name: node, mountPath: /usr/local/node, readOnly: true, hostPath: {path: /etc/ssl, type: Directory}}
  securityContext: {capabilities: [IPC_LOCK]}
podSecurity: {level: privileged, hostPaths: [/etc/ssl]}
"""
)
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
def places() -> Iterator[dict[str, Cluster]]:
    """A namespace for each level, which enforces it."""
    with ExitStack() as stack:
        yield {level: stack.enter_context(use_namespace(level)) for level in LEVELS}


def admits(cluster: Cluster, pod: Document) -> str:
    """Empty, or why the API server refuses the pod."""
    wanted = {**pod, "metadata": {**pod["metadata"], "namespace": cluster.namespace}}
    done = run([KUBECTL, "create", "--dry-run=server", "-f", "-"], text=json.dumps(wanted), check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("cloud", LEVEL)
def test_the_admission_is_what_the_page_says(places: dict[str, Cluster], cloud: str) -> None:
    values = ["--values", str(ROOT / "examples" / f"cluster-{cloud}.yaml")]
    for chart in CHARTS:
        for name, pod in unwrap_pods(render(HELM, ROOT / "charts" / chart, values)).items():
            pod["spec"].pop("serviceAccountName", None)  # of manifests/, which is not here
            for level, cluster in places.items():
                why = admits(cluster, pod)
                allowed = name not in RUNNING or LEVELS.index(level) >= LEVELS.index(LEVEL[cloud])
                assert (why == "") == allowed, f"{chart}: {name} at {level}: {why}"
                assert allowed or f'PodSecurity "{level}' in why


def start(cluster: Cluster, name: str, values: dict[str, Any], script: str) -> list[str]:
    """Renders with `run`, puts a shell in place of the trainer, submits, and gives the logs of its ended pods."""
    documents = render(HELM, ROOT / "charts" / "ddp", values={"run": values}, release=name)
    job = pick(documents, "PyTorchJob")
    job["metadata"]["namespace"] = cluster.namespace
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        container |= {"image": find_image(), "command": ["sh", "-c", script]}
    cluster.apply(job)
    wanted = ["Succeeded"] * values["nodes"]
    cluster.wait_for(name, lambda: cluster.phases(name) == wanted, f"{name} succeeds", 60)
    return [cluster.log(pod["metadata"]["name"]) for pod in cluster.pods(name)]


def test_pods_start_with_all_that_restricted_allows(places: dict[str, Cluster]) -> None:
    cluster = places["restricted"]
    for claim in ("results", "sets"):
        cluster.claim(claim)
    cluster.kubectl("create", "configmap", "topology", "--from-literal=topology.xml=<system/>")
    cluster.kubectl("create", "secret", "generic", "login", "--from-literal=token=sesame")
    cluster.kubectl("create", "serviceaccount", "trainer")
    words = ["sh", "-c", f"echo {WRITTEN} > /scratch/first"]
    first = {"name": "first", "image": find_image(), "command": words}
    logs = start(cluster, "starts", {**STARTS, "pod": {**STARTS["pod"], "initContainers": [first]}}, SHOW)
    assert len(logs) == 2
    for text in logs:
        assert "Uid: 20000 20000" in text and "Gid: 20001 20001" in text, text
        groups = next(line for line in text.splitlines() if line.startswith("Groups:"))
        assert {"20002", "20003"} <= {*groups.split()}
        for said in (WRITTEN, "<system/>", "sesame", "user trainer", "sets written", "topology is read-only"):
            assert said in text, text
        assert "CapBnd: 0000000000000000" in text


def test_pods_start_with_what_privileged_allows_alone(places: dict[str, Cluster]) -> None:
    places["privileged"].claim("results")
    values = {name: value for name, value in STARTS.items() if name != "pod"} | HOST
    (text,) = start(places["privileged"], "host", values, SHOW_HOST)
    assert "CapBnd: 0000000000004000" in text, text  # IPC_LOCK, and nothing else
    assert "folder of the node" in text and "node is read-only" in text, text
