"""The tool's commands on what only a real API server, operator and kubelet say; Pod Security `restricted`."""

import hashlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stratlab import wait as resource_module
from stratlab.cluster import ClusterError
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import Finished, read_file, run_on_volume
from stratlab.cluster.workloads import APIS
from stratlab.wait import Resource, wait_for_run
from tests.cluster.lab import LAB_IMAGE, STRATLAB, wait_until
from tests.cluster.parts.conftest import Cluster
from tests.stratlab.wait.waiting import write_attempt

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
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.machine import signals_raise
with signals_raise():
    pod = PodRequest(claim=None, image=sys.argv[2])
    run_on_volume(connect(namespace=sys.argv[1]), pod, ["python", "-c", "import time; time.sleep(120)"])
"""


def run(cluster: Cluster, script: str, **options: Any) -> Finished:
    return run_on_volume(cluster.connection, PodRequest(**WHERE | options), ["python", "-c", script])


def test_what_is_written_comes_back_byte_by_byte_and_no_more_may_be_written(cluster: Cluster) -> None:
    cluster.claim("stratlab-results")
    done = run(cluster, WRITE, read_only=False)
    content = b"".join(read_file(cluster.connection, PodRequest(**WHERE), "/results/file"))
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


def test_a_waiter_outlives_restarts_and_suspension_and_ends_with_a_deletion(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.3)
    write_attempt(tmp_path / "demo", 143)
    cluster.submit("stop", "trap 'exit 143' TERM; sleep 600 & wait", suspended=True)
    resource = Resource(cluster.connection, APIS["pytorchjob"], cluster.namespace, "stop")
    said, times = list[str](), {"deadline_s": 90.0, "poll_s": 0.05, "quiet_s": 0.6}

    def wait_for_state(state: str, count: int) -> None:
        """Told as often as that, and the waiter goes on."""
        wait_until(lambda: sum(state in text for text in said) >= count, state)
        time.sleep(2)
        assert waiter.running(), said

    with ThreadPoolExecutor() as pool:
        resource.start()
        waiter = pool.submit(wait_for_run, tmp_path / "demo", resource=resource, say=said.append, **times)
        wait_for_state("Suspended", 1)
        cluster.suspend("stop", False)
        wait_for_state("Running", 1)
        cluster.suspend("stop", True)
        wait_for_state("Suspended", 2)
        cluster.delete("stop")
        waiter.result(timeout=30)
        resource.stop()


STEPS = """
for i in 1 2 3; do echo "step ${i}00/300  loss 0.4$i  812 samples/s  78.9 ms/step  about 3 s left"; sleep 1; done
exit 143
"""


class Typed:
    def __init__(self, cluster: Cluster, folder: Path, *arguments: str) -> None:
        self._log = folder / f"{arguments[0]}.log"
        command = [str(STRATLAB), *arguments, "-n", cluster.namespace]
        with self._log.open("w") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def says(self, part: str) -> None:
        ended = self._process.poll
        wait_until(lambda: part in self._log.read_text() or ended() is not None, f"{part!r} is said", 80)
        assert part in self._log.read_text(), self._log.read_text()

    def ends(self, code: int) -> None:
        assert self._process.wait(60) == code and "Traceback" not in self._log.read_text()


def test_attempts_are_counted_and_followed(cluster: Cluster, tmp_path: Path) -> None:
    """143: the operator makes a new pod every time. It is watched from before it exists."""
    watching = Typed(cluster, tmp_path, "watch", "again")
    watching.says("again")
    cluster.submit("again", STEPS)
    watching.says("attempt 2")
    log = Typed(cluster, tmp_path, "logs", "again", "--follow")
    log.says("step 300/300")
    log.ends(0)
    cluster.delete("again")
    watching.ends(1)


@pytest.mark.parametrize(
    ("release", "options", "why"),
    [
        ("loose", {"restricted": False}, "PodSecurity"),
        ("lost", {"image": "example.test/missing:1"}, "ImagePull"),
    ],
)
def test_why_no_pod_starts(cluster, tmp_path, release, options, why):
    cluster.submit(release, "true", **options)
    watching = Typed(cluster, tmp_path, "watch", release)
    watching.says(why)
    cluster.delete(release)
    watching.ends(1)
