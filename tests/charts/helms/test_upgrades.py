"""An upgrade with equal settings keeps the pods that there are, whatever image it names; one with others is refused."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stratlab.cluster.workloads import APIS
from tests.charts.rendering import (
    CHARTS,
    HELMS,
    NAMESPACE,
    RELEASE,
    find_program,
    helm_template,
    read_documents,
)
from tests.codes import find_codes

BASELINE = "run.podSecurity.level=baseline"
REPLICAS = {
    "pytorchjob": ["pytorchReplicaSpecs"],
    "mpijob-v1": ["mpiReplicaSpecs"],
    "mpijob-v2beta1": ["mpiReplicaSpecs"],
    "trainjob": [],
}
NEWER = "run.image.tag=newer,run.image.repository=registry.example/trainer"


class _ApiServer(BaseHTTPRequestHandler):
    """Serves the objects of its server, and what helm asks before them: versions, groups, kinds."""

    server: _Cluster

    def do_GET(self):
        found = self.server.answers.get(self.path.partition("?")[0])
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


class _Cluster(ThreadingHTTPServer):
    answers: dict[str, Any]


def _answer(objects):
    kinds = {"apiregistration.k8s.io/v1": {}, "batch/v1": {"jobs": "Job"}}
    version = {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    answers = {"/version": version, "/api": {"kind": "APIVersions", "versions": ["v1"]}}
    for each in objects:
        plural = f"{each['kind'].lower()}s"
        kinds.setdefault(each["apiVersion"], {})[plural] = each["kind"]
        answers[f"/apis/{each['apiVersion']}/namespaces/{NAMESPACE}/{plural}/{each['metadata']['name']}"] = (
            each
        )
    groups = []
    for served, known in {"v1": {}, **kinds}.items():
        group, _, number = served.rpartition("/")
        both = {"groupVersion": served, "version": number}
        groups += [{"name": group, "versions": [both], "preferredVersion": both}] if group else []
        plain = {"singularName": "", "namespaced": True, "verbs": ["get"]}
        resources = [{"name": plural, "kind": kind, **plain} for plural, kind in known.items()]
        listed = {"kind": "APIResourceList", "groupVersion": served, "resources": resources}
        answers[f"/apis/{served}" if group else "/api/v1"] = listed
    answers["/apis"] = {"kind": "APIGroupList", "groups": groups}
    return answers


@contextmanager
def cluster(objects):
    """The address of an API server that has `objects`."""
    with _Cluster(("127.0.0.1", 0), _ApiServer) as server:
        server.answers = _answer(objects)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def upgrade(helm, address, settings, api="pytorchjob"):
    """`helm template` as `helm upgrade` would render it: helm 3 does not ask a cluster here for its versions."""
    served = f"{APIS[api].group}/{APIS[api].version}/{APIS[api].kind}"
    command = [helm, "template", RELEASE, CHARTS / "ddp", "--namespace", NAMESPACE, "--set", settings]
    command += ["--is-upgrade", "--dry-run=server", "--disable-openapi-validation"]
    command += ["--kube-apiserver", address, "--api-versions", served]
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "KUBECONFIG": os.devnull},
    )


def find_workload(documents, api):
    kinds = {APIS[api].kind, "TrainingRuntime"}
    return [each for each in documents if each["kind"] in kinds]


@pytest.mark.parametrize(
    ("program", "api"),
    [*((HELMS[0], api) for api in REPLICAS), *((other, "trainjob") for other in HELMS[1:])],
)
def test_an_upgrade_keeps_the_pods_of_the_run(program, api):
    helm = find_program(program)
    chosen = f"run.workload.api={api},{BASELINE}"
    first = read_documents(helm_template(helm, CHARTS / "ddp", ["--set", chosen]).stdout)
    running = find_workload(first, api)
    later = f"{chosen},{NEWER},run.analysis.image.tag=newer,run.scheduling.waitSeconds=77"
    with cluster(running) as address:
        done = upgrade(helm, address, later, api)
        refused = upgrade(helm, address, f"{chosen},run.config.lr=0.5", api)
    assert done.returncode == 0, done.stderr
    upgraded = read_documents(done.stdout)
    workload = find_workload(upgraded, api)
    assert len(workload) == len(running) > 0
    text = json.dumps([each["spec"] for each in workload])
    assert "newer" not in text and '"stratlab-trainer:0.1.0"' in text
    waits = {"name": "TRAINER_WAIT_S", "value": "77"}
    assert json.dumps(waits) in text and "86400" not in text.replace('"TRAINER_DEADLINE_S"', "")
    assert "stratlab-lab:newer" in json.dumps([each for each in upgraded if each["kind"] == "Job"])
    for field in REPLICAS[api]:
        for role, replica in running[0]["spec"][field].items():
            kept = workload[0]["spec"][field][role]["template"]
            env = replica["template"]["spec"]["containers"][0]["env"]
            env[:] = [waits if each["name"] == waits["name"] else each for each in env]
            assert kept == replica["template"]
    assert refused.returncode == 1 and find_codes(refused.stderr) == ["SL-settings-changed"]


def test_an_upgrade_of_a_run_that_is_gone_starts_it_with_the_newer_image():
    other = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "other"}}
    with cluster([other]) as address:
        done = upgrade(find_program(HELMS[0]), address, NEWER)
    assert done.returncode == 0, done.stderr
    (workload,) = find_workload(read_documents(done.stdout), "pytorchjob")
    assert "registry.example/trainer:newer" in json.dumps(workload)
