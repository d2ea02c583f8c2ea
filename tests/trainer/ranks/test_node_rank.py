"""Ranks follow the pods, whatever order torch's rendezvous gives them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratlab.rehearse.processes import free_port
from tests.trainer.ranks.test_launcher import environment
from trainer.node_rank import read_node_rank, read_rank

TORCHRUN = {"RANK": "0", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
RENDEZVOUS = {**TORCHRUN, "PET_RDZV_ENDPOINT": "ddp-worker-0:23456"}


@pytest.mark.parametrize(("pod", "rank"), [("ddp-worker-0", 1), ("ddp-worker-2", 5), ("ddp-worker-10", 21)])
def test_the_rank_follows_the_pod(pod, rank):
    assert read_rank(RENDEZVOUS, pod) == rank


@pytest.mark.parametrize(
    ("env", "pod"), [(TORCHRUN, "ddp-worker-2"), (RENDEZVOUS, "laptop"), (RENDEZVOUS, "ddp-master-0")]
)
def test_elsewhere_torch_s_rank_holds(env, pod):
    assert read_node_rank(env, pod) is None and read_rank(env, pod) == 0


def test_rank_0_is_in_the_first_pod_whatever_the_addresses(tmp_path):
    """Two real pods, of which torch would number the second one first, because 127.0.0.1 < 127.0.0.2."""
    port = free_port()
    shared = {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "try",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}", "PET_MAX_RESTARTS": "0",
    }  # fmt: skip
    pods = [
        subprocess.Popen(
            [sys.executable, "-m", "trainer"],
            env=environment(
                tmp_path, **shared, HOSTNAME=f"try-worker-{index}", PET_LOCAL_ADDR=f"127.0.0.{2 - index}"
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [pod.communicate(timeout=120)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert "attempt 1, rank 0 of 2" in outputs[0] and "step 12/12" in outputs[0], outputs[0]
    assert "step 12/12" not in outputs[1]
