"""`stratlab wait` on a real cluster: how a run ends there, and with which rights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api, RbacAuthorizationV1Api

from stratlab.cluster.workloads import APIS
from stratlab.wait import resource as resource_module
from stratlab.wait.resource import Resource
from tests.cluster.parts.real_cluster import RESULT, RealCluster, fail_with
from tests.stratlab.wait.waiting import Waiting, call, enter_pod, write_attempt

pytestmark = pytest.mark.cluster


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "demo"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.3)
    monkeypatch.setattr(resource_module, "SILENCE_S", {"Succeeded": 0.6})


def wait(cluster: RealCluster, run_dir: Path, name: str) -> Waiting:
    resource = Resource(cluster.connection, APIS["pytorchjob"], cluster.namespace, name)
    return Waiting(run_dir, resource, deadline_s=90)


@pytest.mark.usefixtures("fast")
def test_success(cluster: RealCluster, run_dir: Path) -> None:
    run = wait(cluster, run_dir, "good")
    cluster.submit("good", "sleep 2", workers=2)
    assert run.ends_within(60).sentence.startswith("PyTorchJob good: Succeeded")
    assert "PyTorchJob good: Running" in run.said


@pytest.mark.usefixtures("fast")
def test_failure(cluster: RealCluster, run_dir: Path) -> None:
    run = wait(cluster, run_dir, "bad")
    cluster.submit("bad", fail_with(RESULT))
    assert run.ends_within(60).sentence.startswith("PyTorchJob bad: Failed")


@pytest.mark.usefixtures("fast")
def test_restarts_suspension_and_deletion(cluster: RealCluster, run_dir: Path) -> None:
    write_attempt(run_dir, 143)
    cluster.submit("stop", "trap 'exit 143' TERM; sleep 600 & wait", suspended=True)
    run = wait(cluster, run_dir, "stop")
    run.goes_on_for(2)
    assert "PyTorchJob stop: Suspended" in run.said
    cluster.suspend("stop", False)
    cluster.wait_until(lambda: "PyTorchJob stop: Running" in run.said)
    cluster.suspend("stop", True)
    cluster.wait_until(lambda: run.said.count("PyTorchJob stop: Suspended") == 2)
    run.goes_on_for(2)
    deleted = time.monotonic()
    cluster.delete("stop")
    assert run.ends_within(10).sentence.startswith("PyTorchJob stop was deleted")
    assert time.monotonic() - deleted < 10


@pytest.mark.usefixtures("fast")
def test_never_a_status(cluster: RealCluster, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_module, "NO_STATUS_S", 4.0)
    run = wait(cluster, run_dir, "loose")
    cluster.submit("loose", "true", restricted=False)
    cluster.wait_until(lambda: any("its Events:" in text for text in run.said))
    assert any("violates PodSecurity" in text for text in run.said)
    cluster.delete("loose")
    run.ends_within(10)


def test_with_the_rights_of_the_analysis_and_no_more(
    cluster: RealCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A ServiceAccount that may get, list and watch PyTorchJobs: Events are out of its reach."""
    monkeypatch.setattr(resource_module, "NO_STATUS_S", 2.0)
    core, rbac = CoreV1Api(cluster.connection.client), RbacAuthorizationV1Api(cluster.connection.client)
    account = {"metadata": {"name": "waiter"}}
    rule = {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get", "list", "watch"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "waiter"}
    subject = {"kind": "ServiceAccount", "name": "waiter", "namespace": cluster.namespace}
    core.create_namespaced_service_account(cluster.namespace, account)
    rbac.create_namespaced_role(cluster.namespace, account | {"rules": [rule]})
    rbac.create_namespaced_role_binding(cluster.namespace, account | {"roleRef": role, "subjects": [subject]})
    token = core.create_namespaced_service_account_token("waiter", cluster.namespace, {"spec": {}})
    (tmp_path / "token").write_text(token.status.token)
    (tmp_path / "namespace").write_text(cluster.namespace)
    authority = cluster.connection.client.configuration.ssl_ca_cert
    (tmp_path / "ca.crt").write_bytes(Path(authority).read_bytes())
    enter_pod(monkeypatch, tmp_path, cluster.connection.server)
    run_dir = str(tmp_path / "run")

    cluster.submit("waited", "sleep 1")
    assert call(monkeypatch, run_dir, "--resource", "pytorchjob/waited", "--deadline-s", "90") == 0
    assert "PyTorchJob waited: Succeeded" in capsys.readouterr().out.splitlines()[-1]

    cluster.submit("refused", "true", restricted=False)
    assert call(monkeypatch, run_dir, "--resource", "pytorchjob/refused", "--deadline-s", "5") == 1
    assert (
        "This account may not read Events: kubectl describe pytorchjobs.kubeflow.org"
        in capsys.readouterr().out
    )

    assert call(monkeypatch, run_dir, "--resource", "mpijob-v1/x", "--deadline-s", "3") == 1
    assert "is forbidden" in capsys.readouterr().out
