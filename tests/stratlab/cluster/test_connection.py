from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import ALIVE_S, Connection, connect_in_cluster, find_cluster
from stratlab.user_error import UserError
from tests.stratlab.cluster.fake_api import FakeApi, connect_to, serve

PATH = "/api/v1/namespaces/lab/pods"


def write_config(path: Path, name: str, server: str = "http://127.0.0.1:1", **context: str) -> Path:
    config: dict[str, Any] = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": f"token of {name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_kubeconfig_context_and_namespace_as_kubectl_finds_them(tmp_path: Path) -> None:
    one = write_config(tmp_path / "one", "one", namespace="team")
    two = write_config(tmp_path / "two", "two", "http://127.0.0.1:2/")
    environ = {"KUBECONFIG": str(one)}
    assert find_cluster(environ=environ).namespace == "team"
    assert find_cluster(environ=environ, namespace="mine").namespace == "mine"
    both = {"KUBECONFIG": f"{tmp_path / 'missing'}:{one}:{two}"}
    chosen = find_cluster(environ=both, context="two")
    assert (chosen.server, chosen.namespace, chosen.origin) == (
        "http://127.0.0.1:2",
        "default",
        "context two",
    )
    assert chosen.client.configuration.api_key["authorization"] == "Bearer token of two"


def test_who_acts_as_somebody_else_asks_as_they(tmp_path: Path) -> None:
    path = write_config(tmp_path / "one", "one")
    config = yaml.safe_load(path.read_text())
    environ = {"KUBECONFIG": str(path)}

    def acting(**keys: object) -> Connection:
        user = config["users"][0]["user"]
        path.write_text(
            yaml.safe_dump({**config, "users": [{**config["users"][0], "user": {**user, **keys}}]})
        )
        return find_cluster(environ=environ)

    ana = acting(**{"as": "ana@example.com", "as-groups": ["lab"]})
    assert ana.client.default_headers["Impersonate-User"] == "ana@example.com"
    assert ana.client.default_headers["Impersonate-Group"] == "lab"
    assert ana.origin == "context one as ana@example.com"
    assert not [name for name in acting().client.default_headers if name.startswith("Impersonate")]
    with pytest.raises(UserError, match="several groups or extra facts.*use a token of that account"):
        acting(**{"as": "ana@example.com", "as-groups": ["lab", "ops"]})


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match="no cluster: no ~/.kube/config, and KUBECONFIG is not set"):
        find_cluster(environ={})
    (tmp_path / ".kube").mkdir()
    write_config(tmp_path / ".kube" / "config", "home")
    assert find_cluster(environ={}).origin == "context home"


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=f"no cluster: KUBECONFIG={missing}: no such file"):
        find_cluster(environ={"KUBECONFIG": str(missing)})
    config = write_config(tmp_path / "config", "one")
    environ = {"KUBECONFIG": str(config)}
    with pytest.raises(ValueError, match=f"{config}: no context 'x'; there is one"):
        find_cluster(environ=environ, context="x")
    config.write_text(config.read_text().replace("current-context: one", ""))
    with pytest.raises(ValueError, match=f"{config}: no current context; there is one"):
        find_cluster(environ=environ)
    config.write_text("")
    with pytest.raises(ValueError, match=f"{config}: .*empty"):
        find_cluster(environ=environ)
    config.write_bytes(b"a: \xff")
    with pytest.raises(ValueError, match=f"{config}: no kubeconfig, byte 3 is no UTF-8"):
        find_cluster(environ=environ)
    config.write_text("a: [1")
    with pytest.raises(UserError, match=str(config)):
        find_cluster(environ=environ)
    with pytest.raises(ValueError, match=f"KUBECONFIG={tmp_path}: a folder; expected a file"):
        find_cluster(environ={"KUBECONFIG": str(tmp_path)})


def test_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_proxy_is_for_its_scheme_and_not_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path / "config", "one", "https://10.1.2.3:6443")
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://proxy:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "10.9.0.0/16")
    environ = {"KUBECONFIG": str(config)}
    assert find_cluster(environ=environ).client.configuration.proxy == "http://proxy:1"
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "10.1.0.0/16")
    assert find_cluster(environ=environ).client.configuration.proxy is None


def test_a_server_that_is_not_there_is_said_soon() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(ClusterError) as failure:
        connect_to(f"http://127.0.0.1:{port}").get(PATH)
    why = "Failed to establish a new connection: [Errno 111] Connection refused"
    sentence = f"http://127.0.0.1:{port}: no API server answers ({why})"
    assert (str(failure.value), failure.value.status) == (sentence, None)
    assert time.monotonic() - started < 10


def test_a_frozen_server_is_said_and_not_waited_for() -> None:
    """The kernel takes the connection, and then nobody says a word."""
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        started = time.monotonic()
        with pytest.raises(ClusterError, match=r"of a test does not answer, after \d+ s"):
            connect_to(f"http://127.0.0.1:{frozen.getsockname()[1]}").check_alive(0.3)
    assert time.monotonic() - started < 5 and ALIVE_S <= 10


@pytest.mark.parametrize("fault", [{}, {"status": 403}, {"status": 401}, {"status": 500}, {"drop": True}])
def test_whatever_a_server_answers_it_is_alive(
    api: FakeApi, connection: Connection, fault: dict[str, Any]
) -> None:
    api.fault = lambda path, query: fault
    connection.check_alive()


@pytest.mark.parametrize("status", [403, 404, 409])
def test_a_refusal_is_the_servers_own_sentence(api: FakeApi, connection: Connection, status: int) -> None:
    api.fault = lambda path, query: {"status": status, "message": 'pods is forbidden: User "x" cannot list'}
    with pytest.raises(ClusterError, match='^pods is forbidden: User "x" cannot list$') as failure:
        connection.get(PATH)
    assert failure.value.status == status
    assert len(api.requests) == 1


def test_wrong_credentials_name_whose(api: FakeApi, connection: Connection) -> None:
    api.token = "right"
    with pytest.raises(ClusterError, match="does not accept the credentials of a test: Unauthorized"):
        connection.get(PATH)


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 429}, {"drop": True}, {"cut": 0}])
def test_what_passes_is_tried_again(api: FakeApi, connection: Connection, fault: dict[str, Any]) -> None:
    api.put(PATH, {"metadata": {"name": "a"}})
    faults = iter([fault, fault])
    api.fault = lambda path, query: next(faults, None)
    assert [pod["metadata"]["name"] for pod in connection.get(PATH)["items"]] == ["a"]
    assert len(api.requests) == 3


def test_the_server_says_how_long_to_wait(api: FakeApi, connection: Connection) -> None:
    api.served.add(PATH)
    faults = iter([{"status": 429, "headers": {"Retry-After": "2"}}])
    api.fault = lambda path, query: next(faults, None)
    started = time.monotonic()
    connection.get(PATH)
    assert time.monotonic() - started >= 2


def test_a_page_that_is_no_status(api: FakeApi) -> None:
    """A proxy's own page, say."""
    with serve(api) as address:
        connection = connect_to(address)
        api.fault = lambda path, query: {"status": 403, "message": json.dumps(None)}
        with pytest.raises(ClusterError):
            connection.get(PATH)


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b"null"])
def test_an_answer_that_is_no_object_is_an_error_of_the_cluster(
    api: FakeApi, connection: Connection, answer: bytes
) -> None:
    path = "/api/v1/namespaces/lab/pods"
    api.served.add(path)
    api.fault = lambda path, query: {"garbled": answer}
    with pytest.raises(ClusterError, match="the answer broke off"):
        connection.get(path)
