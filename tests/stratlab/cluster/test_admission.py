"""A pod that a quota or a LimitRange refuses is said as that, with what helps; amounts of pods can be given.
Which cluster is asked, as whom, and what is made of its answers."""

import socket
import time

import pytest
import yaml

from stratlab.cluster.connection import ALIVE_S, connect_in_cluster, find_cluster
from stratlab.cluster.pod_phase import explain_refusal
from stratlab.cluster.pod_template import PodRequest, PodResources, build_pod, parse_pod_resources
from stratlab.namespace_checks import check_quotas
from stratlab.pod_checks import PodsRequest, judge_image, judge_sharing
from stratlab.workload_checks import check_small_job
from tests.codes import find_codes
from tests.stratlab.cluster.answering import Answering
from tests.stratlab.cluster.fake_api import connect_to
from tests.stratlab.cluster.fake_kubelet import JOBS
from tests.stratlab.raised import raised

POD = 'pods "stratlab-volume-x" is forbidden: '
EXCEEDED = "exceeded quota: team, requested: limits.cpu=1, used: limits.cpu=4, limited: limits.cpu=4"
UNSPECIFIED = "failed quota: team: must specify limits.cpu for: volume; limits.memory for: volume"
RANGE = "[maximum cpu usage per Container is 500m, but limit is 1, minimum memory usage per Pod is 1Gi]"
SECURITY = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities'


@pytest.mark.parametrize(
    ("message", "code", "passes"),
    [
        (EXCEEDED, "SL-quota-exceeded", True),
        (UNSPECIFIED, "SL-quota-unspecified", False),
        (RANGE, "SL-limit-range", False),
    ],
)
def test_what_refuses_is_named(message, code, passes):
    refused = explain_refusal(POD + message)
    assert refused and find_codes(refused) == [code] == find_codes(refused.fix)
    assert message.strip("[]") in refused.seen and refused.passes is passes and refused.status != 403
    assert ("--pod-resources limits.cpu=AMOUNT" in refused.fix) is (message == UNSPECIFIED)
    assert explain_refusal(SECURITY) is None, "anything else is left as it is"


def test_a_check_blames_no_role():
    refused, later = explain_refusal(POD + UNSPECIFIED), explain_refusal(POD + EXCEEDED)
    assert refused and later
    request = PodsRequest(PodRequest("claim", image="lab"), "trainer", "")
    for finding in (judge_image("image", "lab", refused), *judge_sharing(request, refused, refused)):
        assert finding.state == "problem" and find_codes(finding.fix) == ["SL-quota-unspecified"]
    assert judge_image("image", "lab", later).state == "warning"


def test_a_check_does_not_call_the_operator_away(lab):
    connection, kubelet = lab
    kubelet.operates = False
    put = kubelet.api.put

    def create(collection, thing):
        if collection == JOBS:
            name = thing["metadata"]["name"]
            told = [  # only the newest warning about this job counts
                (name, "Warning", UNSPECIFIED),
                (name, "Warning", EXCEEDED),
                ("other", "Warning", UNSPECIFIED),
                (name, "Normal", UNSPECIFIED),
            ]
            for number, (about, kind, text) in enumerate(told):
                event = {"type": kind, "reason": "FailedCreatePod", "message": f"Error creating: {POD}{text}"}
                event |= {"metadata": {"name": f"e{number}"}, "involvedObject": {"name": about}}
                put("/api/v1/namespaces/lab/events", event)
        return put(collection, thing)

    kubelet.api.put = create
    (finding,) = check_small_job(connection, "lab", lambda text: None, patience_s=1)
    assert finding.state == "warning" and find_codes(finding.fix) == ["SL-quota-exceeded"]


@pytest.mark.parametrize(
    ("hard", "used", "limit", "states"),
    [
        ({"limits.cpu": "4"}, {"limits.cpu": "1500m"}, {}, ["ok", "warning"]),
        ({"limits.cpu": "4"}, {"limits.cpu": "4000m"}, {"default": {"cpu": "1"}}, ["warning"]),
        ({"limits.cpu": "4"}, {}, {"type": "Pod", "max": {"cpu": "1"}}, ["ok", "warning"]),
        ({"pods": "0"}, {"pods": "0"}, {}, ["ok"]),  # none is meant to be there
    ],
)
def test_quotas_of_the_namespace(hard, used, limit, states):
    core, cluster = "/api/v1/namespaces/lab", Answering()
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"used": used}}
    ranges = {"metadata": {}, "spec": {"limits": [{"type": "Container", **limit}]}}
    cluster.things = {f"{core}/resourcequotas": [], f"{core}/limitranges": [ranges]}
    assert list(check_quotas(cluster)) == []
    cluster.things[f"{core}/resourcequotas"] = [quota]
    findings = list(check_quotas(cluster))
    assert [finding.state for finding in findings] == states and "team" in findings[0].subject
    assert all("run.analysis.resources.limits.cpu" in finding.fix for finding in findings[1:])


def test_amounts_of_a_pod_are_small_bounded_and_settable():
    given = parse_pod_resources("limits.cpu=500m,requests.memory=2Gi,limits.ephemeral-storage=1Gi")
    (container,) = build_pod(["python"], PodRequest(limits={"gpu": 1}), given)["spec"]["containers"]
    limits = {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi", "gpu": 1}
    assert container["resources"] == {"limits": limits, "requests": {"cpu": "20m", "memory": "2Gi"}}
    assert parse_pod_resources("limits.memory=64Mi").requests["memory"] == "64Mi"
    assert parse_pod_resources("") == PodResources()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("cpu=1", "SL-pod-resources-form"),
        ("limits.cpu=much", "SL-pod-resources-amount"),
        ("limits.cpu=1,requests.cpu=2", "SL-pod-resources-above-limit"),
    ],
)
def test_amounts_that_are_none_are_refused(text, code):
    refused = raised(parse_pod_resources, text)
    assert find_codes(refused) == [code] and "--pod-resources" in str(refused)


PATH = "/api/v1/namespaces/lab/pods"


def write_config(path, name, server="http://127.0.0.1:1", user=None, **context):
    config = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": f"token of {name}"} | (user or {})}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(config))
    return path


def refused(environ, **options):
    failure = raised(find_cluster, environ=environ, **options)
    assert environ.get("KUBECONFIG", "") in str(failure)
    return find_codes(failure)


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
