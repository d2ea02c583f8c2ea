"""The tool's commands on what only a real API server, operator and kubelet say; Pod Security `restricted`."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratlab.check.small_job import check_small_job
from stratlab.cluster import ClusterError
from stratlab.cluster.volume_pod import Finished, read_file, run_on_volume
from stratlab.cluster.workloads import APIS
from stratlab.wait import resource as resource_module
from stratlab.wait.resource import Resource
from tests.cluster.lab import LAB_IMAGE, STRATLAB, wait_until
from tests.cluster.parts.conftest import Cluster
from tests.stratlab.wait.waiting import Waiting, call, enter_pod, write_attempt

pytestmark = pytest.mark.cluster

WHERE: dict[str, Any] = {"claim": "stratlab-results", "mount": "/results", "image": LAB_IMAGE}
WRITE = """
import hashlib, random
data = random.Random(1).randbytes(3_000_000) + b"\\x00\\xff\\n" * 100_000
open("/results/file", "wb").write(data)
print(hashlib.sha256(data).hexdigest())
"""
MAY_NOT = """
import os
print(os.getuid(), os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount"), "$(HOME)")
open("/x", "w")
"""
FOREVER = """
import sys
from stratlab.cluster.connection import connect
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.machine.interruption import signals_raise
with signals_raise():
    run_on_volume(connect(), sys.argv[1], claim=None, mount="/results", image=sys.argv[2],
                  command=["python", "-c", "import time; time.sleep(120)"])
"""


def run(cluster: Cluster, script: str, **options: Any) -> Finished:
    command = ["python", "-c", script]
    return run_on_volume(cluster.connection, cluster.namespace, **(WHERE | {"command": command} | options))


def test_what_is_written_comes_back_byte_by_byte_and_no_more_may_be_written(cluster: Cluster) -> None:
    cluster.claim("stratlab-results")
    done = run(cluster, WRITE, read_only=False)
    content = b"".join(read_file(cluster.connection, cluster.namespace, **WHERE, path="/results/file"))
    assert hashlib.sha256(content).hexdigest() == done.output.decode().strip()
    done = run(cluster, "open('/results/x', 'w')")
    assert done.exit_code == 1 and "Read-only file system" in done.termination
    done = run(cluster, MAY_NOT, read_only=False)
    assert done.exit_code == 1 and done.output.startswith(b"10001 False $(HOME)\n")
    assert b"Read-only file system" in done.output


def test_what_cannot_start_or_takes_too_long_is_told_and_ctrl_c_leaves_nothing(cluster: Cluster) -> None:
    for script, options, named in (
        ("", {"image": "example.test/there-is-no-such-image:1"}, "ImagePullBackOff"),
        ("", {"claim": "other"}, "other"),
        ("import time; time.sleep(60)", {"deadline_s": 5}, "5 s"),
    ):
        with pytest.raises(ClusterError) as told:
            run(cluster, script, **options)
        assert named in str(told.value)
    assert cluster.names() == []
    command = [sys.executable, "-c", FOREVER, cluster.namespace, LAB_IMAGE]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(cluster.names, "its pod")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    wait_until(lambda: not cluster.names(), "its pod is gone", 30)


@pytest.mark.parametrize(
    ("image", "patience_s", "state"), [(LAB_IMAGE, 120, "ok"), ("stratlab-nowhere:1", 15, "problem")]
)
def test_a_check_starts_a_small_job_of_its_own(
    cluster: Cluster, image: str, patience_s: int, state: str
) -> None:
    (finding,) = check_small_job(cluster.connection, cluster.namespace, image, lambda text: None, patience_s)
    assert finding.state == state, finding
    assert not cluster.get("pytorchjobs")["items"]
    wait_until(lambda: not cluster.names(), "its pod is gone")


def test_restarts_suspension_and_deletion(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.3)
    write_attempt(tmp_path / "demo", 143)
    cluster.submit("stop", "trap 'exit 143' TERM; sleep 600 & wait", suspended=True)
    resource = Resource(cluster.connection, APIS["pytorchjob"], cluster.namespace, "stop")
    run = Waiting(tmp_path / "demo", resource, deadline_s=90)
    suspended, running = (f"PyTorchJob stop: {state}" for state in ("Suspended", "Running"))
    run.goes_on_for(2)
    assert suspended in run.said
    cluster.suspend("stop", False)
    wait_until(lambda: running in run.said, running)
    cluster.suspend("stop", True)
    wait_until(lambda: run.said.count(suspended) == 2, suspended)
    run.goes_on_for(2)
    cluster.delete("stop")
    run.ends_within(10)


def test_with_the_rights_of_the_analysis_and_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ServiceAccount that may get, list and watch PyTorchJobs: Events are out of its reach."""
    monkeypatch.setattr(resource_module, "NO_STATUS_S", 2.0)
    cluster.kubectl("create", "serviceaccount", "waiter")
    resources = ("--resource=pytorchjobs.kubeflow.org", "--verb=get,list,watch")
    cluster.kubectl("create", "role", "waiter", *resources)
    account = f"--serviceaccount={cluster.namespace}:waiter"
    cluster.kubectl("create", "rolebinding", "waiter", "--role=waiter", account)
    (tmp_path / "token").write_text(cluster.kubectl("create", "token", "waiter").strip())
    (tmp_path / "namespace").write_text(cluster.namespace)
    connection = cluster.connection
    (tmp_path / "ca.crt").write_bytes(Path(connection.client.configuration.ssl_ca_cert).read_bytes())
    enter_pod(monkeypatch, tmp_path, connection.server)

    def wait_for(resource: str, deadline_s: int) -> tuple[int, str]:
        words = ("--resource", resource, "--deadline-s", str(deadline_s))
        return call(monkeypatch, str(tmp_path / "run"), *words), capsys.readouterr().out

    cluster.submit("waited", "sleep 1")
    code, said = wait_for("pytorchjob/waited", 90)
    assert code == 0 and "PyTorchJob waited: Succeeded" in said.splitlines()[-1]
    cluster.submit("refused", "true", restricted=False)
    code, said = wait_for("pytorchjob/refused", 5)
    assert code == 1 and "kubectl describe pytorchjobs.kubeflow.org" in said
    assert wait_for("mpijob-v1/x", 3)[0] == 1


STEPS = """
for i in 1 2 3; do echo "step ${i}00/300  loss 0.4$i  812 samples/s  78.9 ms/step  about 3 s left"; sleep 1; done
exit 143
"""
FOREVER_POD = "trap 'exit 143' TERM; echo started; sleep 600 & wait"


class Typed:
    """One command, and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def text(self) -> str:
        return self._log.read_text()

    def says(self, part: str) -> None:
        wait_until(lambda: part in self.text or self.process.poll() is not None, f"{part!r} is said", 80)
        assert part in self.text, self.text

    def ends(self, code: int) -> None:
        assert self.process.wait(60) == code, self.text
        assert "Traceback" not in self.text


@contextmanager
def typed(cluster: Cluster, folder: Path, *arguments: str, **variables: str) -> Iterator[Typed]:
    """Killed where it still runs."""
    log = folder / f"{arguments[0]}.log"
    command = [STRATLAB, *arguments, "-n", cluster.namespace]
    with log.open("w") as out:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=out,
            stderr=out,
            env=os.environ | variables,
            start_new_session=True,
        )
    try:
        yield Typed(process, log)
    finally:
        process.kill()
        process.wait()


def test_attempts_are_counted_and_followed(cluster: Cluster, tmp_path: Path) -> None:
    """143: the operator makes a new pod every time. It is watched from before it exists."""
    with typed(cluster, tmp_path, "watch", "again") as watching:
        watching.says("again")
        cluster.submit("again", STEPS)
        watching.says("attempt 2")
        with typed(cluster, tmp_path, "logs", "again", "--follow") as log:
            log.says("step 100/300")
            log.says("step 300/300")
            log.ends(0)
        cluster.delete("again")
        watching.ends(1)


def test_suspended_and_resumed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.submit("paused", FOREVER_POD, suspended=True)
    with typed(cluster, tmp_path, "watch", "paused") as watching:
        watching.says("Suspended")
        cluster.suspend("paused", False)
        watching.says("Running")
        cluster.suspend("paused", True)
        wait_until(lambda: not cluster.pods("paused"), "no pods")
        assert watching.process.poll() is None
        watching.process.send_signal(signal.SIGINT)
        watching.ends(130)
        assert f"stratlab watch paused -n {cluster.namespace}" in watching.text
    cluster.delete("paused")


@pytest.mark.parametrize(
    ("release", "options", "why"),
    [
        ("loose", {"restricted": False}, "PodSecurity"),
        ("lost", {"image": "example.test/missing:1"}, "ImagePull"),
    ],
)
def test_why_no_pod_starts(
    cluster: Cluster, tmp_path: Path, release: str, options: dict[str, Any], why: str
) -> None:
    cluster.submit(release, "true", **options)
    with typed(cluster, tmp_path, "watch", release) as watching:
        watching.says(why)
        cluster.delete(release)
        watching.ends(1)


def test_without_rights_it_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """As the namespace's `default` ServiceAccount, which may do nothing."""
    token, connection = cluster.kubectl("create", "token", "default").strip(), cluster.connection
    server, authority = connection.server, connection.client.configuration.ssl_ca_cert
    config = tmp_path / "config"
    config.write_text(
        f"""
clusters: [{{name: c, cluster: {{server: "{server}", certificate-authority: "{authority}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
    )
    with typed(cluster, tmp_path, "watch", "good", KUBECONFIG=str(config)) as watching:
        watching.ends(1)
        assert "forbidden" in watching.text
