"""The MLflow server answers under its Service's names and no others, and its probes would notice if it did not."""

from tests.charts.rendering import Document, expand
from tests.manifests.kustomize import build_overlay, kinds, mlflow_container, pick


def environment(documents: list[Document]) -> dict[str, str]:
    """What the server sees; what comes from a Secret is left out."""
    env: dict[str, str] = {}
    for entry in mlflow_container(documents)["env"]:
        if "value" in entry:
            env[entry["name"]] = expand(entry["value"], env)
        elif "fieldRef" in entry["valueFrom"]:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
            env[entry["name"]] = pick(documents, "Deployment", "mlflow")["metadata"]["namespace"]
    return env


def service_names(documents: list[Document]) -> set[str]:
    """Every way to write the Service's address in the cluster."""
    service = pick(documents, "Service", "mlflow")
    (port,) = [entry["port"] for entry in service["spec"]["ports"]]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return {f"{name}{end}:{port}" for end in ends}


def test_allowed_hosts_are_exactly_the_names_of_the_service(documents: list[Document]) -> None:
    for found in (documents, build_overlay("kind", namespace="team-a")):
        env, names = environment(found), service_names(found)
        assert {*env["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")} == names | {"localhost:*", "127.0.0.1:*"}
        origins = {f"http://{name}" for name in names}
        assert {*env["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")} == origins


def test_probes_cannot_be_fooled_and_settings_are_safe(documents: list[Document]) -> None:
    """/health answers 200 to a server that refuses every client: only liveness may ask it."""
    container, env = mlflow_container(documents), environment(documents)
    for name in ("startupProbe", "readinessProbe"):
        request = container[name]["httpGet"]
        (host,) = [header["value"] for header in request["httpHeaders"] if header["name"] == "Host"]
        assert request["path"].startswith("/api/") and host in service_names(documents), name
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 360
    assert env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false" and env["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert env["MLFLOW_MODEL_CATALOG_URI"] == ""
    # the Service `mlflow` would otherwise give its own pod MLFLOW_PORT=tcp://..., read as --port
    pod = pick(documents, "Deployment", "mlflow")["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    (option,) = [a for a in container["command"] if a.startswith("--uvicorn-opts=")]
    assert 0 < int(option.split()[-1]) < pod["terminationGracePeriodSeconds"], "what is in flight is finished"


def test_one_writer(documents: list[Document]) -> None:
    spec = pick(documents, "Deployment", "mlflow")["spec"]
    assert spec["replicas"] == 1 and spec["strategy"] == {"type": "Recreate"}
    assert "--workers=1" in mlflow_container(documents)["command"]
    for claim in kinds(documents, "PersistentVolumeClaim"):
        assert claim["metadata"]["name"] != "mlflow" or claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_runs_and_artifacts_outlive_the_pod(kind: list[Document]) -> None:
    """Both lie on the claim, unless a component puts them elsewhere."""
    pod = pick(kind, "Deployment", "mlflow")["spec"]["template"]["spec"]
    kept = {volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
    (place,) = [m["mountPath"] for m in mlflow_container(kind)["volumeMounts"] if m["name"] in kept]
    env = environment(kind)
    assert env["MLFLOW_BACKEND_STORE_URI"].startswith(f"sqlite:///{place}/")
    assert env["MLFLOW_ARTIFACTS_DESTINATION"].startswith(f"{place}/")


def test_external_stores_come_from_a_secret() -> None:
    documents = build_overlay("kind", "external-stores")
    container = mlflow_container(documents)
    sources = {
        e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "secretKeyRef" in str(e)
    }
    for name in ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"):
        assert sources[name] == {"name": "mlflow-stores", "key": name}, "must be there"
    assert [c["metadata"]["name"] for c in kinds(documents, "PersistentVolumeClaim")] == ["stratlab-results"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
