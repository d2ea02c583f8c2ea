"""`stratlab wait` as the init container of the analysis Job calls it."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kubernetes.client import CoreV1Api, RbacAuthorizationV1Api

from stratlab import cli
from stratlab.cluster import connection as connecting
from stratlab.wait import resource as resource_module
from tests.stratlab.cluster.fake_api import FakeApi, serve
from tests.stratlab.cluster.real_cluster import RealCluster

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["stratlab", "wait", *arguments, "--poll-s", "0.05"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def enter_pod(monkeypatch: pytest.MonkeyPatch, folder: Path, server: str) -> None:
    """As the kubelet sets up a pod; `folder` holds the token."""
    split = urlsplit(server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(split.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(split.port))
    monkeypatch.setattr(connecting, "SERVICE_ACCOUNT", folder)


def test_in_a_pod_the_resource_ends_it(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.2)
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "it failed."}]}
    api.put(JOBS, {"metadata": {"name": "demo"}, "status": failed})
    api.token = "secret"
    for name, text in (("token", "secret\n"), ("namespace", "lab")):
        (tmp_path / name).write_text(text)
    with serve(api) as address:
        enter_pod(monkeypatch, tmp_path, address)
        run_dir = str(tmp_path / "run")
        assert call(monkeypatch, run_dir, "--resource", "pytorchjob/demo", "--deadline-s", "20") == 0
        shown = capsys.readouterr().out
        assert "PyTorchJob demo: Failed, it failed.; " in shown.splitlines()[-1]
        other = ["--resource", "pytorchjob/demo", "--namespace", "elsewhere", "--deadline-s", "0.5"]
        api.served.add(JOBS.replace("/lab/", "/elsewhere/"))
        assert call(monkeypatch, run_dir, *other) == 1
        assert "PyTorchJob demo: not there yet" in capsys.readouterr().out


def test_without_a_token_the_files_decide(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setattr(connecting, "SERVICE_ACCOUNT", tmp_path / "none")
    (tmp_path / "attempts.jsonl").write_text('{"event": "ended", "exit_code": 10}\n')
    assert call(monkeypatch, str(tmp_path), "--resource", "pytorchjob/demo", "--namespace", "lab") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(
        "no Kubernetes API here (not in a pod, or no token): PyTorchJob demo is not asked"
    )
    assert shown[-1].endswith("ended with exit code 10")


def test_a_misspelt_resource_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, str(tmp_path), "--resource", "pytorch/demo") == 2
    assert "error: --resource pytorch/demo: must be API/NAME" in capsys.readouterr().err


@pytest.mark.cluster
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
