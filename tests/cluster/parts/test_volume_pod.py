"""Volume pods on the cluster of KUBECONFIG, in a namespace that enforces Pod Security `restricted`.

$STRATLAB_TEST_LAB_IMAGE names the image of the lab (stratlab-lab:0.1.0).
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import CoreV1Api

from stratlab.cluster import ClusterError
from stratlab.cluster.volume_pod import Finished, read_file, run_on_volume
from tests.cluster.parts.real_cluster import RealCluster, use_cluster

pytestmark = [pytest.mark.cluster]
IMAGE = os.environ.get("STRATLAB_TEST_LAB_IMAGE", "stratlab-lab:0.1.0")
WHERE: dict[str, str] = {"claim": "stratlab-results", "mount": "/results", "image": IMAGE}

WRITE = """
import hashlib, random
data = random.Random(1).randbytes(3_000_000) + b"\\x00\\xff\\n" * 100_000
open("/results/file", "wb").write(data)
print(hashlib.sha256(data).hexdigest())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with use_cluster() as real:
        claim = {
            "metadata": {"name": "stratlab-results"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        CoreV1Api(real.connection.client).create_namespaced_persistent_volume_claim(real.namespace, claim)
        yield real


def run(cluster: RealCluster, script: str, **options: Any) -> Finished:
    command = ["python", "-c", script]
    return run_on_volume(cluster.connection, cluster.namespace, **(WHERE | {"command": command} | options))


def remaining(cluster: RealCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.pods() if not pod["metadata"].get("deletionTimestamp")]


def test_a_file_is_written_and_comes_back_byte_by_byte(cluster: RealCluster) -> None:
    done = run(cluster, WRITE, read_only=False)
    assert done.exit_code == 0, done
    content = b"".join(read_file(cluster.connection, cluster.namespace, **WHERE, path="/results/file"))
    assert hashlib.sha256(content).hexdigest() == done.output.decode().strip()
    with pytest.raises(ValueError, match="not there, on the claim"):
        list(read_file(cluster.connection, cluster.namespace, **WHERE, path="/results/nope"))
    assert remaining(cluster) == []


def test_what_a_pod_may_not(cluster: RealCluster) -> None:
    done = run(cluster, "open('/results/x', 'w')")
    assert done.exit_code == 1 and "Read-only file system" in done.termination
    done = run(cluster, "import os; print(os.getuid()); open('/x', 'w')", read_only=False)
    assert done.output.startswith(b"10001\n") and b"Read-only file system" in done.output
    done = run(
        cluster,
        "import os; print(os.path.exists('/var/run/secrets/kubernetes.io/serviceaccount'), '$(HOME)')",
    )
    assert done.output == b"False $(HOME)\n"


def test_what_cannot_start_or_takes_too_long_is_told(cluster: RealCluster) -> None:
    with pytest.raises(ClusterError, match="cannot start: ImagePullBackOff"):
        run(cluster, "", image="example.test/there-is-no-such-image:1")
    with pytest.raises(ClusterError, match="has no claim other"):
        run(cluster, "", claim="other")
    with pytest.raises(ClusterError, match="it took longer than 5 s"):
        run(cluster, "import time; time.sleep(60)", deadline_s=5)
    assert remaining(cluster) == []


def test_ctrl_c_removes_the_pod(cluster: RealCluster) -> None:
    script = (
        "import sys\nfrom stratlab.cluster.connection import connect\n"
        "from stratlab.cluster.volume_pod import run_on_volume\n"
        "from stratlab.machine.interruption import signals_raise\n"
        "with signals_raise():\n"
        "    run_on_volume(connect(), sys.argv[1], claim=None, mount='/results', image=sys.argv[2],\n"
        "                  command=['python', '-c', 'import time; time.sleep(120)'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, cluster.namespace, IMAGE], stderr=subprocess.DEVNULL
    )
    cluster.wait_until(lambda: remaining(cluster))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    cluster.wait_until(lambda: not remaining(cluster), 30)
