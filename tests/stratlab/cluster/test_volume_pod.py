"""Pods of our own: what they may do, what comes back, and that none stays. A process plays the pod (fake_kubelet)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratlab.cluster import ClusterError, pod_phase, volume_pod
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.cluster.volume_pod import Finished, read_file, run_on_volume
from stratlab.user_error import UserError
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import PODS, Kubelet, run_kubelet

Lab = tuple[Connection, Kubelet]


@pytest.fixture
def lab(api: FakeApi) -> Iterator[Lab]:
    with run_kubelet(api) as pair:
        yield pair


def run(lab: Lab, *command: str, **options: Any) -> Finished:
    given = {"claim": "stratlab-results", "mount": "/results", "image": "lab"} | options
    return run_on_volume(lab[0], "lab", command=["python", "-c", *command], **given)


def read(lab: Lab, path: Path) -> bytes:
    pieces = read_file(lab[0], "lab", claim="stratlab-results", mount="/results", image="lab", path=str(path))
    return b"".join(pieces)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def test_output_and_exit_code_come_back_and_the_pod_goes(lab: Lab, api: FakeApi) -> None:
    done = run(
        lab, "import os, sys; print(os.environ['GREETING'], '$(HOME)'); sys.exit(7)", env={"GREETING": "a $b"}
    )
    assert (done.exit_code, done.output) == (7, b"a $b $(HOME)\n")
    assert done.termination.startswith("Error: a $b")
    assert run(lab, "print(1)") == Finished(0, b"1\n", "")
    assert api.collections[PODS] == {}, "every pod was deleted"


def test_a_pod_passes_the_restricted_profile_and_has_no_token() -> None:
    pod = build_pod(["python", "-c", "print('$(A)')"], PodRequest(env={"A": "$b"}))
    spec = pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False and spec["activeDeadlineSeconds"] > 0
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys() and container["resources"]["limits"]
    assert container["command"][-1] == "print('$$(A)')" and {"name": "A", "value": "$$b"} in container["env"]
    assert container["volumeMounts"][0] == {"name": "results", "mountPath": "/results", "readOnly": True}
    labels = pod["metadata"]["labels"]
    assert (
        labels["app.kubernetes.io/component"] == "volume"
        and labels["app.kubernetes.io/part-of"] == "stratlab"
    )
    assert "generateName" in pod["metadata"] and "name" not in pod["metadata"]
    without = build_pod(["a"], PodRequest(claim=None, read_only=False))["spec"]
    assert without["volumes"][0] == {"name": "results", "emptyDir": {}}
    assert without["containers"][0]["volumeMounts"][0]["readOnly"] is False


def test_a_file_comes_back_byte_by_byte(lab: Lab, tmp_path: Path, api: FakeApi) -> None:
    content = os.urandom(2_500_000) + b"\n\x00\xff" * 500_000
    (tmp_path / "file").write_bytes(content)
    assert read(lab, tmp_path / "file") == content
    (tmp_path / "empty").write_bytes(b"")
    assert read(lab, tmp_path / "empty") == b""
    assert api.collections[PODS] == {}


def test_a_file_that_is_not_there_is_told(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}/nope: not there, on the claim stratlab-results"):
        read(lab, tmp_path / "nope")
    with pytest.raises(ClusterError, match="(?s)could not be read in pod .*IsADirectoryError"):
        read(lab, tmp_path)


def test_who_stops_reading_leaves_no_pod(lab: Lab, tmp_path: Path, api: FakeApi) -> None:
    (tmp_path / "file").write_bytes(os.urandom(3_000_000))
    pieces = read_file(
        lab[0], "lab", claim="stratlab-results", mount="/results", image="lab", path=str(tmp_path / "file")
    )
    assert len(next(pieces)) > 0 and len(api.collections[PODS]) == 1  # type: ignore[call-overload]
    pieces.close()  # type: ignore[attr-defined]
    assert api.collections[PODS] == {}


def test_a_log_connection_that_breaks_is_resumed_where_it_was(lab: Lab, tmp_path: Path, api: FakeApi) -> None:
    content = os.urandom(4_000_000)
    (tmp_path / "file").write_bytes(content)
    broken: list[str] = []

    def break_twice(path: str, query: dict[str, str]) -> dict[str, Any] | None:
        if path.endswith("/log") and len(broken) < 2:
            broken.append(path)
            return {"cut": 2}
        return None

    api.fault = break_twice
    assert read(lab, tmp_path / "file") == content and len(broken) == 2
    broken.clear()
    api.fault = lambda path, query: {"cut": 1} if path.endswith("/log") else None
    with pytest.raises(ClusterError, match="the log of pod stratlab-volume-.* broke off"):
        read(lab, tmp_path / "file")
    assert api.collections[PODS] == {}


def test_a_log_that_was_cut_is_not_taken_for_the_file(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"a" * 100)
    monkeypatch.setattr(volume_pod, "SEND_FILE", volume_pod.SEND_FILE.replace('print("end"', 'print("ned"'))
    with pytest.raises(ClusterError, match="was cut after 100 bytes; try again"):
        read(lab, tmp_path / "file")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (waiting("ImagePullBackOff", "no such host"), "cannot start: ImagePullBackOff: no such host"),
        (waiting("CreateContainerConfigError", "x"), "cannot start: CreateContainerConfigError"),
        (
            unscheduled('persistentvolumeclaim "x" not found'),
            'cannot start: persistentvolumeclaim "x" not found',
        ),
        (
            unscheduled("0/1 nodes are available"),
            "has not started after .* waits for a node: 0/1 nodes are available",
        ),
        (waiting("ContainerCreating"), "has not started after .* waits: ContainerCreating"),
    ],
)
def test_a_pod_that_will_not_start_is_told_and_removed(
    lab: Lab, api: FakeApi, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr(pod_phase, "UNSCHEDULED_S", 0.6)
    monkeypatch.setattr(pod_phase, "START_S", 1.2)
    lab[1].waits["lab"] = status
    with pytest.raises(ClusterError, match=sentence):
        run(lab, "print(1)")
    assert api.collections[PODS] == {}


def test_progress_comes_while_a_pod_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_phase, "UNSCHEDULED_S", 1.0)
    monkeypatch.setattr(pod_phase, "TICK_S", 0.3)
    lab[1].waits["lab"] = unscheduled("0/1 nodes")
    said: list[str] = []
    with pytest.raises(ClusterError):
        run(lab, "print(1)", progress=said.append)
    assert any("waits for a node: 0/1 nodes, " in sentence for sentence in said)
    lab[1].waits.clear()
    said.clear()
    run(lab, "import time; time.sleep(1)", progress=said.append)
    assert any("is running, " in sentence for sentence in said)


def test_no_claim_and_no_right_are_told_before_a_pod_waits(lab: Lab, api: FakeApi) -> None:
    with pytest.raises(ClusterError, match="namespace lab has no claim other: name it with --claim"):
        run(lab, "print(1)", claim="other")
    api.namespaces.clear()
    with pytest.raises(UserError, match="-n lab: there is no such namespace"):
        run(lab, "print(1)", claim="other")
    assert lab[1].created == []
    lab[1].deny = (403, 'pods is forbidden: violates PodSecurity "restricted:latest"')
    with pytest.raises(ClusterError, match="violates PodSecurity") as failure:
        run(lab, "print(1)")
    assert failure.value.status == 403


def test_an_interruption_removes_the_pod(lab: Lab, api: FakeApi) -> None:
    class Interrupted(BaseException):
        pass

    pod = volume_pod._running_pod(lab[0], "lab", ["python", "-c", "print(1)"], PodRequest(image="lab"), print)
    with pytest.raises(Interrupted):
        with pod:
            assert len(api.collections[PODS]) == 1
            raise Interrupted
    assert api.collections[PODS] == {}


def test_an_end_by_the_deadline_or_by_others_is_told(lab: Lab, api: FakeApi) -> None:
    ended = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}
    end = pod_phase.build_end({"status": ended})
    with pytest.raises(ClusterError, match="pod p was stopped: it took longer than 5 s"):
        pod_phase.read_end("p", iter([end]), 5)
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}
    assert pod_phase.build_end({"status": evicted}) == pod_phase.PodEnd(1, "Evicted: disk pressure")
    container = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    killed = {"phase": "Failed", "containerStatuses": [container]}
    assert pod_phase.build_end({"status": killed}) == pod_phase.PodEnd(137, "OOMKilled")
