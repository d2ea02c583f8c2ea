"""Which machine a rank is on, and to which device the group of its ranks is bound."""

import os
import socket
from dataclasses import asdict, replace

import pytest
import torch
import torch.distributed as dist

from tests.trainer.runs import make_world
from trainer.distributed import read_node
from trainer.distributed.world import World, bind_device, processor_name


@pytest.mark.parametrize(
    ("env", "node"),
    [
        ({"STRATLAB_NODE": "gpu-node-7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "gpu-node-7"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ""),  # the host name is the pod's
        ({"STRATLAB_NODE": ""}, socket.gethostname()),
    ],
)
def test_the_node_is_the_cluster_s_or_this_computer(env: dict[str, str], node: str) -> None:
    assert read_node(env) == node


def test_the_device_is_named_where_it_can_be() -> None:
    def old_init(backend, timeout=None):
        """Of a torch that knows no device_id."""

    class OverGloo(World):
        """Two ranks on one GPU (benchmarks/gpu/gloo_worker.py): torch 2.11 cannot split a bound group."""

        backend = "gloo"

    gpu = replace(make_world(1, 2), device_type="cuda", device="cuda:1")
    alone = replace(make_world(0, 1), device_type="cuda", device="cuda:0")
    assert bind_device(gpu, dist.init_process_group) == {"device_id": torch.device("cuda:1")}
    assert bind_device(gpu, old_init) == {}
    for world in (make_world(1, 2), alone, OverGloo(**asdict(gpu))):
        assert bind_device(world, dist.init_process_group) == {}


def test_the_processor_is_named_by_its_model_and_cores() -> None:
    model, _, cores = processor_name().rpartition(", ")
    assert model != "model name" and cores == f"{len(os.sched_getaffinity(0))} cores"
