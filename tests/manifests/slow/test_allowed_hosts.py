import pytest

from tests.charts.rendering import Document
from tests.manifests.test_mlflow import environment, service_names


def test_the_server_itself_agrees(kind: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of MLflow's own rule, which knows wildcards."""
    security = pytest.importorskip("mlflow.server.security_utils")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", environment(kind)["MLFLOW_SERVER_ALLOWED_HOSTS"])
    allowed = security.get_allowed_hosts_from_env()
    for name in (*service_names(kind), "localhost:31234", "127.0.0.1:5000"):
        assert security.is_allowed_host_header(allowed, name), name
    for name in ("mlflow.attacker.test:5000", "mlflow", "10.0.0.7:5000", "localhost.attacker.test:80"):
        assert not security.is_allowed_host_header(allowed, name), name
