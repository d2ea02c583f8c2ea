"""The values of three clouds on a real API server, and pods that really start with what `run.pod` can add."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from tests.charts.pod_security import LEVELS
from tests.charts.rendering import Document, pick, render
from tests.charts.valid_objects import RUNNING, unwrap_pods
from tests.cluster.lab import HELM, KUBECTL, ROOT, run
from tests.cluster.parts.conftest import Cluster, find_image, use_namespace

pytestmark = pytest.mark.cluster

CHARTS = ("zeropp", "llm-4d", "fsdp")
LEVEL = {"eks-efa": "restricted", "gke-a3-ultra": "privileged", "infiniband": "privileged"}
"""As docs/clouds.md says."""
STARTS: dict[str, Any] = yaml.safe_load(
    """
processesPerNode: 1
nodes: 1
accelerator: ""
resources: {requests: {cpu: 10m, memory: 16Mi}}
analysis: {enabled: false}
results: {claim: results}
pod:
  serviceAccount: trainer
  topologySpread: [{topologyKey: kubernetes.io/hostname, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]
  volumes:
    - {name: topology, mountPath: /etc/nccl, readOnly: true, configMap: {name: topology}}
    - {name: login, mountPath: /login, readOnly: true, secret: {secretName: login}}
    - {name: sets, mountPath: /usr/local/sets, subPath: sets, persistentVolumeClaim: {claimName: sets}}
  securityContext: {runAsUser: 20000, runAsGroup: 20001, fsGroup: 20002, supplementalGroups: [20003]}
"""
)
SHOW = """
while read -r name value; do case $name in
  Uid:|Gid:|Groups:|CapBnd:) echo "$name" $value;; esac; done < /proc/self/status
cat /etc/nccl/topology.xml /login/token
touch /usr/local/sets/mine && echo written; touch /etc/nccl/x || echo kept
"""


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Cluster]]:
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


def test_a_pod_starts_with_what_restricted_allows(places: dict[str, Cluster]) -> None:
    cluster = places["restricted"]
    for claim in ("results", "sets"):
        cluster.claim(claim)
    cluster.kubectl("create", "configmap", "topology", "--from-literal=topology.xml=<system/>")
    cluster.kubectl("create", "secret", "generic", "login", "--from-literal=token=sesame")
    cluster.kubectl("create", "serviceaccount", "trainer")
    job = pick(render(HELM, ROOT / "charts" / "ddp", values={"run": STARTS}, release="starts"), "PyTorchJob")
    job["metadata"]["namespace"] = cluster.namespace
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container |= {"image": find_image(), "command": ["sh", "-c", SHOW]}
    cluster.apply(job)
    cluster.wait_for("starts", lambda: cluster.phases("starts") == ["Succeeded"], "its pod succeeds", 60)
    said = cluster.logs("starts")
    for part in ("Uid: 20000", "Gid: 20001", "20002", "20003", "<system/>", "sesame", "written", "kept"):
        assert part in said, said
    assert "CapBnd: 0000000000000000" in said
