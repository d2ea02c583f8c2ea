"""Pods of our own: what they may do, what comes back, and that none stays. A process plays the pod (fake_kubelet)."""

import os
from dataclasses import replace

import pytest

from stratlab.cluster import ClusterError, pod_phase, volume_pod
from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.cluster.volume_pod import read_file, run_on_volume
from tests.codes import find_codes
from tests.stratlab.cluster.fake_kubelet import PODS, run_kubelet
from tests.stratlab.raised import raised

PLACE = PodRequest(image="lab")


@pytest.fixture
def lab(api):
    with run_kubelet(api) as pair:
        yield pair
    assert api.collections.get(PODS, {}) == {}, "every pod was deleted"


def run(lab, *command, **options):
    progress = options.pop("progress", print)
    return run_on_volume(lab[0], replace(PLACE, **options), ["python", "-c", *command], progress)


def read(lab, path):
    return b"".join(read_file(lab[0], PLACE, str(path)))


def waiting(reason, message=""):
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


def unscheduled(message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def test_a_pod_passes_the_restricted_profile_and_has_no_token():
    pod = build_pod(["python", "-c", "print('$(A)')"], PodRequest(env={"A": "$b"}))
    spec = pod["spec"]
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] == security["fsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False and spec["activeDeadlineSeconds"] == 900
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    amounts = container["resources"]
    assert {*amounts["requests"]} == {*amounts["limits"]} == {"cpu", "memory"}
    assert container["command"][-1] == "print('$$(A)')" and {"name": "A", "value": "$$b"} in container["env"]
    assert container["volumeMounts"][0] == {"name": "results", "mountPath": "/results", "readOnly": True}
    labels = pod["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "volume"
    assert labels["app.kubernetes.io/part-of"] == "stratlab"
    assert "generateName" in pod["metadata"] and "name" not in pod["metadata"]
    trusting = {
        component: build_pod(["a"], PodRequest(component=component, certificates="secret/ours/ca.crt"))
        for component in ("volume", "test", "comparison")
    }
    names = {each: {v["name"] for v in pod["spec"]["volumes"]} for each, pod in trusting.items()}
    assert {each for each, held in names.items() if "certificates" in held} == {"test", "comparison"}
    without = build_pod(["a"], PodRequest(claim=None, read_only=False))["spec"]
    assert without["volumes"][0] == {"name": "results", "emptyDir": {}}
    assert without["containers"][0]["volumeMounts"][0]["readOnly"] is False


def test_a_file_comes_back_byte_by_byte(lab, tmp_path):
    content = os.urandom(1_200_000) + b"\n\x00\xff" * 200_000
    (tmp_path / "file").write_bytes(content)
    assert read(lab, tmp_path / "file") == content
    (tmp_path / "empty").write_bytes(b"")
    assert read(lab, tmp_path / "empty") == b""


def test_a_file_that_is_not_there_is_told(lab, tmp_path):
    missing = raised(read, lab, tmp_path / "nope")
    assert find_codes(missing) == ["SL-file-not-there"] and f"{tmp_path}/nope" in str(missing)
    failure = raised(read, lab, tmp_path)
    assert find_codes(failure) == ["SL-volume-file-unreadable"] and "IsADirectoryError" in str(failure)


def test_who_stops_reading_leaves_no_pod(lab, tmp_path, api):
    (tmp_path / "file").write_bytes(os.urandom(1_500_000))
    pieces = read_file(lab[0], PLACE, str(tmp_path / "file"))
    assert len(next(pieces)) > 0 and len(api.collections[PODS]) == 1
    pieces.close()
    assert api.collections[PODS] == {}
    pod = volume_pod._running_pod(lab[0], PLACE, ["python", "-c", "print(1)"], print)
    with pytest.raises(KeyboardInterrupt):
        with pod:
            assert len(api.collections[PODS]) == 1
            raise KeyboardInterrupt


def test_a_log_connection_that_breaks_is_resumed_where_it_was(lab, tmp_path, api, monkeypatch):
    monkeypatch.setattr(volume_pod, "LOG_PAUSES_S", (0.05, 0.05, None))
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    broken = []

    def break_twice(path, query):
        if path.endswith("/log") and len(broken) < 2:
            broken.append(path)
            return {"cut": 2}
        return None

    api.fault = break_twice
    assert read(lab, tmp_path / "file") == content and len(broken) == 2
    api.fault = lambda path, query: {"cut": 1} if path.endswith("/log") else None
    assert find_codes(raised(read, lab, tmp_path / "file")) == ["SL-pod-log-broke-off"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (waiting("ImagePullBackOff", "no such host"), "SL-pod-hopeless"),
        (unscheduled("0/1 nodes are available"), "SL-pod-not-started"),
    ],
)
def test_a_pod_that_will_not_start_is_told_and_removed(lab, monkeypatch, status, code):
    monkeypatch.setattr(pod_phase, "UNSCHEDULED_S", 0.6)
    monkeypatch.setattr(pod_phase, "TICK_S", 0.2)
    lab[1].waits["lab"] = status
    said = []
    failure = raised(run, lab, "print(1)", progress=said.append)
    assert find_codes(failure) == [code]
    assert bool(said) is (code == "SL-pod-not-started"), "progress while it waits"
    assert "no such host" in str(failure) or "0/1 nodes" in said[0]


def test_no_claim_and_no_right_are_told_before_a_pod_waits(lab, api):
    failure = raised(run, lab, "print(1)", claim="other")
    assert find_codes(failure) == ["SL-claim-unknown"] and "other" in str(failure)
    api.namespaces.clear()
    refused = raised(run, lab, "print(1)", claim="other")
    assert find_codes(refused) == ["SL-namespace-unknown"] and lab[1].created == []
    lab[1].deny = (403, "no right")
    with pytest.raises(ClusterError) as failure:
        run(lab, "print(1)")
    assert (str(failure.value), failure.value.status) == ("no right", 403)
