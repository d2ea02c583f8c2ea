"""Which cluster is asked, as whom, and what is made of its answers."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from stratlab import UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import ALIVE_S, connect_in_cluster, find_cluster
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import connect_to
from tests.stratlab.raised import raised

PATH = "/api/v1/namespaces/lab/pods"


def write_config(
    path: Path,
    name: str,
    server: str = "http://127.0.0.1:1",
    user: dict[str, Any] | None = None,
    **context: str,
) -> Path:
    config: dict[str, Any] = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": f"token of {name}"} | (user or {})}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(config))
    return path


def refused(environ: dict[str, str], **options: str) -> list[str]:
    with pytest.raises(UserError) as failure:
        find_cluster(environ=environ, **options)
    assert environ.get("KUBECONFIG", "") in str(failure.value)
    return find_codes(failure.value)


def test_kubeconfig_context_and_namespace_as_kubectl_finds_them(tmp_path):
    one = write_config(tmp_path / "one", "one", namespace="team")
    two = write_config(tmp_path / "two", "two", "http://127.0.0.1:2/")
    environ = {"KUBECONFIG": str(one)}
    assert find_cluster(environ=environ).namespace == "team"
    assert find_cluster(environ=environ, namespace="mine").namespace == "mine"
    both = {"KUBECONFIG": f"{tmp_path / 'missing'}:{one}:{two}"}
    chosen = find_cluster(environ=both, context="two")
    found = (chosen.server, chosen.namespace, chosen.origin)
    assert found == ("http://127.0.0.1:2", "default", "context two")
    assert chosen.client.configuration.api_key["authorization"] == "Bearer token of two"


def test_who_acts_as_somebody_else_asks_as_they(tmp_path):
    acting = {"as": "ana@example.com", "as-groups": ["lab"]}
    environ = {"KUBECONFIG": str(write_config(tmp_path / "one", "one", user=acting))}
    ana = find_cluster(environ=environ)
    assert ana.client.default_headers["Impersonate-User"] == "ana@example.com"
    assert ana.client.default_headers["Impersonate-Group"] == "lab"
    assert ana.origin == "context one as ana@example.com"
    write_config(tmp_path / "one", "one", user=acting | {"as-groups": ["lab", "ops"]})
    assert "SL-impersonation-partial" in refused(environ)
    write_config(tmp_path / "one", "one")
    headers = find_cluster(environ=environ).client.default_headers
    assert not [name for name in headers if name.startswith("Impersonate")]


def test_what_is_wrong_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert refused({}) == ["SL-no-cluster"]
    (tmp_path / ".kube").mkdir()
    write_config(tmp_path / ".kube" / "config", "home")
    assert find_cluster(environ={}).origin == "context home"
    for missing in (tmp_path / "missing", tmp_path):
        assert refused({"KUBECONFIG": str(missing)}) == ["SL-no-cluster"]
    config = write_config(tmp_path / "config", "one")
    environ = {"KUBECONFIG": str(config)}
    assert refused(environ, context="x") == ["SL-context-unknown"]
    for text, code in (
        (config.read_bytes().replace(b"current-context: one", b""), "SL-context-unknown"),
        (b"", "SL-kubeconfig-invalid"),
        (b"a: [1", "SL-kubeconfig-invalid"),
        (b"a: \xff", "SL-kubeconfig-not-utf8"),
    ):
        config.write_bytes(text)
        assert refused(environ) == [code]


def test_in_a_pod(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert connect_in_cluster({}, tmp_path) is None
    assert connect_in_cluster(environ, tmp_path) is None, "no token"
    for name, text in (("token", "abc\n"), ("namespace", "team"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    inside = connect_in_cluster(environ, tmp_path)
    assert inside and (inside.server, inside.namespace) == ("https://[fd00::1]:6443", "team")
    assert inside.client.configuration.ssl_ca_cert == str(tmp_path / "ca.crt")
    monkeypatch.setattr("stratlab.cluster.connection.SERVICE_ACCOUNT", tmp_path)
    assert find_cluster(environ=environ).namespace == "team"
    assert find_cluster(environ=environ, namespace="mine").namespace == "mine"
    config = write_config(tmp_path / "config", "one")
    assert find_cluster(environ=environ | {"KUBECONFIG": str(config)}).origin == "context one"


def test_a_proxy_is_for_its_scheme_and_not_for_all(tmp_path, monkeypatch):
    environ = {"KUBECONFIG": str(write_config(tmp_path / "config", "one", "https://10.1.2.3:6443"))}
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    for without, proxy in (("10.9.0.0/16", "http://proxy:1"), ("10.1.0.0/16", None)):
        monkeypatch.setenv("no_proxy", without)
        assert find_cluster(environ=environ).client.configuration.proxy == proxy


def test_a_server_that_is_not_there_or_frozen_is_said_soon():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        connection = connect_to(f"http://127.0.0.1:{taken.getsockname()[1]}")
        started = time.monotonic()
        failure = raised(connection.stream, PATH)
        assert find_codes(failure) == ["SL-server-unreachable"] and failure.status is None
        assert connection.server in str(failure)
        taken.listen()
        assert find_codes(raised(connection.check_alive, 0.3)) == ["SL-server-silent"]
    assert time.monotonic() - started < 5 and ALIVE_S <= 10


def test_a_refusal_is_the_servers_own_sentence(api, connection):
    api.fault = lambda path, query: {"status": 403, "message": "pods is forbidden"}
    with pytest.raises(ClusterError) as failure:
        connection.get(PATH)
    assert (str(failure.value), failure.value.status) == ("pods is forbidden", 403)
    assert len(api.requests) == 1
    api.fault = lambda path, query: None
    api.token = "right"
    failure = raised(connection.get, PATH)
    assert find_codes(failure) == ["SL-credentials-refused"] and "a test" in str(failure)


@pytest.mark.parametrize("fault", [{"status": 500}, {"cut": 0}])
def test_what_passes_is_tried_again(api, connection, fault):
    api.put(PATH, {"metadata": {"name": "a"}})
    faults = iter([fault, fault])
    api.fault = lambda path, query: next(faults, None)
    assert [pod["metadata"]["name"] for pod in connection.get(PATH)["items"]] == ["a"]
    assert len(api.requests) == 3


def test_the_server_says_how_long_to_wait(api, connection):
    api.served.add(PATH)
    faults = iter([{"status": 429, "headers": {"Retry-After": "2"}}])
    api.fault = lambda path, query: next(faults, None)
    started = time.monotonic()
    connection.get(PATH)
    assert time.monotonic() - started >= 2
