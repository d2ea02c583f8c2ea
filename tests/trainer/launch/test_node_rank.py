"""Ranks follow the pods, whatever order torch's rendezvous gives them. Two real pods: ranks/test_launcher.py."""

from __future__ import annotations

import pytest

from trainer.launch.rendezvous import holds_rank_0, read_node_rank, read_rank

TORCHRUN = {"RANK": "0", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
RENDEZVOUS = {**TORCHRUN, "PET_RDZV_ENDPOINT": "ddp-worker-0:23456"}


@pytest.mark.parametrize(("pod", "rank"), [("ddp-worker-0", 1), ("ddp-worker-10", 21)])
def test_the_rank_follows_the_pod(pod, rank):
    assert read_rank(RENDEZVOUS, pod) == rank


@pytest.mark.parametrize(("env", "pod"), [(TORCHRUN, "ddp-worker-2"), (RENDEZVOUS, "ddp-master-0")])
def test_elsewhere_torch_s_rank_holds(env, pod):
    assert read_node_rank(env, pod) is None and read_rank(env, pod) == 0


@pytest.mark.parametrize(
    ("env", "pod", "nodes", "holds"),
    [
        (RENDEZVOUS, "ddp-worker-1", 2, False),
        ({"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "ddp-node-0-0.ddp"}, "ddp-node-0-1", 2, False),
        ({**RENDEZVOUS, "PET_NODE_RANK": "0"}, "laptop", 2, False),  # torch numbers them by their addresses
        ({}, "laptop", 1, True),
    ],
)
def test_where_the_first_rank_will_be(env, pod, nodes, holds):
    assert holds_rank_0(env, pod, nodes) is holds
