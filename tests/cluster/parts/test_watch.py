"""`stratlab watch` and `stratlab logs` as a user types them, on a real cluster with the real training operator."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import BatchV1Api, CoreV1Api

from tests.cluster.parts.real_cluster import RESULT, RealCluster, fail_with

pytestmark = pytest.mark.cluster

STEPS = """
echo "$HOSTNAME: rank 0 of 2 on cpu, gloo"
for i in 1 2 3; do echo "step ${i}00/300  loss 0.4$i  812 samples/s  78.9 ms/step  about 3 s left"; sleep 1; done
"""
FOREVER = "trap 'exit 143' TERM; echo started; sleep 600 & wait"


class Typed:
    """One command, and what it has printed."""

    def __init__(self, cluster: RealCluster, *arguments: str, terminal: bool = False) -> None:
        self._command = [sys.executable, "-m", "stratlab", *arguments, "-n", cluster.namespace]
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            self._command,
            stdout=theirs,
            stderr=theirs,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | ({"TERM": "xterm", "COLUMNS": "140"} if terminal else {}),
        )
        os.close(theirs)
        self._output = ours
        self.text = ""

    def says(self, part: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while part not in self.text:
            assert time.monotonic() < end, f"{part!r} not in:\n{self.text}"
            if select.select([self._output], [], [], 0.5)[0]:
                assert self._read(), f"ended without {part!r}:\n{self.text}"

    def ends(self) -> int:
        while self._read():
            pass
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._output)

    def _read(self) -> bool:
        try:
            piece = os.read(self._output, 65536)
        except OSError:  # a terminal whose other side has closed
            return False
        self.text += piece.decode(errors="replace")
        return bool(piece)


class Shell:
    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.started: list[Typed] = []

    def __call__(self, *arguments: str, terminal: bool = False) -> Typed:
        self.started.append(Typed(self.cluster, *arguments, terminal=terminal))
        return self.started[-1]


@pytest.fixture
def stratlab(cluster: RealCluster) -> Iterator[Shell]:
    shell = Shell(cluster)
    yield shell
    for typed in shell.started:
        typed.close()


def test_a_run_is_watched_from_before_it_exists_to_its_success(cluster: RealCluster, stratlab: Shell) -> None:
    watching = stratlab("watch", "good")
    watching.says("no run good in namespace")
    cluster.submit("good", STEPS, workers=2)
    watching.says("PyTorchJob good: Running")
    watching.says("step 300/300  loss 0.4300")
    assert watching.ends() == 0
    assert "good: succeeded" in watching.text and "next: stratlab compare demo --on-cluster" in watching.text
    log = stratlab("logs", "good", "--rank", "1")
    assert log.ends() == 0
    assert "pod good-worker-1: rank 1 of 2" in log.text and "good-worker-1: rank 0 of 2" in log.text


def test_a_failure_is_the_exit_code_and_its_reason_is_said(cluster: RealCluster, stratlab: Shell) -> None:
    cluster.submit("bad", f"sleep 2; {fail_with(RESULT)}", workers=2)
    watching = stratlab("watch", "bad")
    assert watching.ends() == 10
    assert "bad: failed: accelerator out of memory (exit code 10, pod bad-worker-" in watching.text
    assert "rank 1: out of memory" in watching.text and "next: stratlab logs bad" in watching.text


def test_attempts_are_counted_and_followed(cluster: RealCluster, stratlab: Shell) -> None:
    """143: the operator makes a new pod every time."""
    cluster.submit("again", f"{STEPS}\nexit 143")
    watching = stratlab("watch", "again")
    watching.says("PyTorchJob again: Running, attempt 2")
    log = stratlab("logs", "again", "--follow")
    log.says("step 100/300")
    log.says("step 300/300")
    assert log.ends() == 0
    previous = stratlab("logs", "again", "--previous")
    previous.says("the file has all attempts")
    previous.close()
    stratlab.started.remove(previous)
    cluster.delete("again")
    assert watching.ends() == 1
    assert "again: PyTorchJob again was deleted before it ended" in watching.text


def test_suspended_and_resumed(cluster: RealCluster, stratlab: Shell) -> None:
    cluster.submit("paused", FOREVER, suspended=True)
    watching = stratlab("watch", "paused")
    watching.says("PyTorchJob paused: Suspended")
    cluster.suspend("paused", False)
    watching.says("PyTorchJob paused: Running")
    cluster.suspend("paused", True)
    cluster.wait_until(lambda: not [p for p in cluster.pods() if p["metadata"]["name"].startswith("paused-")])
    assert watching.process.poll() is None
    watching.process.send_signal(signal.SIGINT)
    assert watching.ends() == 130
    assert f"left; the run goes on: stratlab watch paused -n {cluster.namespace}" in watching.text
    assert "Traceback" not in watching.text, watching.text
    cluster.delete("paused")


def test_a_job_that_no_pod_comes_of_says_why(cluster: RealCluster, stratlab: Shell) -> None:
    cluster.submit("loose", "true", restricted=False)
    watching = stratlab("watch", "loose")
    watching.says("violates PodSecurity")
    watching.says("PyTorchJob loose has no status after 60 s; its Events:", 80)
    cluster.delete("loose")
    assert watching.ends() == 1


def test_an_image_that_is_not_there_on_a_terminal(cluster: RealCluster, stratlab: Shell) -> None:
    image, cluster.image = cluster.image, "example.test/missing:1"
    try:
        cluster.submit("lost", "true")
    finally:
        cluster.image = image
    watching = stratlab("watch", "lost", terminal=True)
    watching.says("ImagePull")
    watching.says("restarts")  # the table of pods, drawn again and again
    assert "\x1b[" in watching.text
    log = stratlab("logs", "lost")
    assert log.ends() == 1
    assert "has not started: pod lost-worker-0: Pending" in log.text
    watching.process.send_signal(signal.SIGINT)
    assert watching.ends() == 130
    cluster.delete("lost")


def test_the_analysis_is_waited_for(cluster: RealCluster, stratlab: Shell) -> None:
    cluster.submit("both", "sleep 1")
    labels = {"app.kubernetes.io/instance": "both", "app.kubernetes.io/component": "analysis"}
    container = {
        "name": "analyze",
        "image": cluster.image,
        "command": ["sh", "-c", "sleep 8"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"restartPolicy": "Never", "containers": [container], "securityContext": security}
    spec = {"template": {"metadata": {"labels": labels}, "spec": pod}}
    job = {"metadata": {"name": "both-analysis", "labels": labels}, "spec": spec}
    BatchV1Api(cluster.connection.client).create_namespaced_job(cluster.namespace, job)
    watching = stratlab("watch", "both")
    assert watching.ends() == 0
    assert "analysis: analyzing" in watching.text and "analysis: Complete" in watching.text
    assert "report: /results/demo/both/analysis/report.html" in watching.text


def test_without_rights_it_says_so(cluster: RealCluster, stratlab: Shell, tmp_path: Path) -> None:
    """As the namespace's `default` ServiceAccount, which may do nothing."""
    core = CoreV1Api(cluster.connection.client)
    cluster.wait_until(
        lambda: cluster.connection.get(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts")["items"]
    )
    token = core.create_namespaced_service_account_token("default", cluster.namespace, {"spec": {}})
    config = tmp_path / "config"
    server, ca = cluster.connection.server, cluster.connection.client.configuration.ssl_ca_cert
    config.write_text(
        f"""
clusters: [{{name: c, cluster: {{server: "{server}", certificate-authority: "{ca}"}}}}]
users: [{{name: u, user: {{token: "{token.status.token}"}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
    )
    before = os.environ["KUBECONFIG"]
    os.environ["KUBECONFIG"] = str(config)
    try:
        watching = stratlab("watch", "good")
    finally:
        os.environ["KUBECONFIG"] = before
    assert watching.ends() == 1
    assert "is forbidden" in watching.text and "Traceback" not in watching.text
