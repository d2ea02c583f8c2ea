"""The MLflow server answers under its Service's names and no others, and its probes would notice if it did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.charts.rendering import Document, expand
from tests.manifests.kustomize import build, kinds, mlflow_container, pick, write_overlay

FIELDS = {"metadata.namespace": ("metadata", "namespace")}


def environment(documents: list[Document]) -> dict[str, str]:
    """What the server sees; what comes from a Secret is left out."""
    template = pick(documents, "Deployment", "mlflow")
    env: dict[str, str] = {}
    for entry in mlflow_container(documents)["env"]:
        if "value" in entry:
            env[entry["name"]] = expand(entry["value"], env)
        elif "fieldRef" in entry["valueFrom"]:
            first, second = FIELDS[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            env[entry["name"]] = template[first][second]
    return env


def service_names(documents: list[Document]) -> set[str]:
    """Every way to write the Service's address in the cluster."""
    service = pick(documents, "Service", "mlflow")
    (port,) = [entry["port"] for entry in service["spec"]["ports"]]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return {f"{name}{end}:{port}" for end in ends}


def test_allowed_hosts_are_exactly_the_names_of_the_service(documents: list[Document]) -> None:
    env = environment(documents)
    assert set(env["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")) == service_names(documents) | {
        "localhost:*",
        "127.0.0.1:*",
    }
    origins = {f"http://{name}" for name in service_names(documents)}
    assert set(env["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")) == origins


def test_allowed_hosts_follow_the_namespace(tmp_path: Path) -> None:
    moved = build(write_overlay(tmp_path, "kind", namespace="team-a"))
    assert "mlflow.team-a.svc:5000" in environment(moved)["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")


def test_the_server_itself_agrees(documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of MLflow's own rule, which knows wildcards."""
    security = pytest.importorskip("mlflow.server.security_utils")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", environment(documents)["MLFLOW_SERVER_ALLOWED_HOSTS"])
    allowed = security.get_allowed_hosts_from_env()
    for name in (*service_names(documents), "localhost:5000", "localhost:31234", "127.0.0.1:5000"):
        assert security.is_allowed_host_header(allowed, name), name
    for name in (
        "mlflow.attacker.test:5000",
        "attacker.test",
        "mlflow",
        "10.0.0.7:5000",
        "localhost.attacker.test:80",
    ):
        assert not security.is_allowed_host_header(allowed, name), name


def test_probes_cannot_be_fooled(documents: list[Document]) -> None:
    """/health answers 200 to a server that refuses every client: only liveness may ask it."""
    container = mlflow_container(documents)
    for name in ("startupProbe", "readinessProbe"):
        request = container[name]["httpGet"]
        assert request["path"].startswith("/api/"), name
        (host,) = [header["value"] for header in request["httpHeaders"] if header["name"] == "Host"]
        assert host in service_names(documents), name
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 360
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


def test_safe_settings(documents: list[Document]) -> None:
    env, container = environment(documents), mlflow_container(documents)
    assert env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert env["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert env["MLFLOW_MODEL_CATALOG_URI"] == ""
    assert container["command"][:2] == ["mlflow", "server"]
    assert {"--workers=1", "--serve-artifacts", "--host=0.0.0.0"} <= set(container["command"])
    # the Service `mlflow` would otherwise give its own pod MLFLOW_PORT=tcp://..., read as --port
    pod = pick(documents, "Deployment", "mlflow")["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False


def test_one_writer(documents: list[Document]) -> None:
    spec = pick(documents, "Deployment", "mlflow")["spec"]
    assert spec["replicas"] == 1 and spec["strategy"] == {"type": "Recreate"}
    for claim in kinds(documents, "PersistentVolumeClaim"):
        if claim["metadata"]["name"] == "mlflow":
            assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_runs_and_artifacts_outlive_the_pod(kind: list[Document]) -> None:
    """Both lie on the claim, unless a component puts them elsewhere."""
    pod = pick(kind, "Deployment", "mlflow")["spec"]["template"]["spec"]
    kept = {volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
    (place,) = [m["mountPath"] for m in mlflow_container(kind)["volumeMounts"] if m["name"] in kept]
    env = environment(kind)
    assert env["MLFLOW_BACKEND_STORE_URI"].startswith(f"sqlite:///{place}/")
    assert env["MLFLOW_ARTIFACTS_DESTINATION"].startswith(f"{place}/")


def test_requests_in_flight_are_finished_before_the_pod_is_killed(documents: list[Document]) -> None:
    (option,) = [a for a in mlflow_container(documents)["command"] if a.startswith("--uvicorn-opts=")]
    pod = pick(documents, "Deployment", "mlflow")["spec"]["template"]["spec"]
    assert 0 < int(option.split()[-1]) < pod["terminationGracePeriodSeconds"]


def test_external_stores_come_from_a_secret(tmp_path: Path) -> None:
    documents = build(write_overlay(tmp_path, "kind", ["external-stores"]))
    container = mlflow_container(documents)
    sources = {
        e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "secretKeyRef" in str(e)
    }
    for name in ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"):
        assert sources[name] == {"name": "mlflow-stores", "key": name}, "must be there"
    assert all(e.keys() == {"name", "valueFrom"} for e in container["env"] if "valueFrom" in e)
    assert [c["metadata"]["name"] for c in kinds(documents, "PersistentVolumeClaim")] == ["stratlab-results"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
    text = (Path(__file__).parents[2] / "manifests/components/external-stores/kustomization.yaml").read_text()
    assert all(f"# {name}" in text for name in sources), "a key that the comment does not name"
