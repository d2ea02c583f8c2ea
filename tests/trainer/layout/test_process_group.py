"""The group of a GPU's ranks is bound to their devices, where torch can; tests of real groups: ranks/."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch
import torch.distributed as dist

from tests.trainer.runs import make_world
from trainer.layout.process_group import bind_device
from trainer.layout.world import World


def old_init(backend, timeout=None):
    """Of a torch that knows no device_id."""


def test_the_device_is_named_where_it_can_be():
    gpu = replace(make_world(1, 2), device_type="cuda", device="cuda:1")
    assert bind_device(gpu, dist.init_process_group) == {"device_id": torch.device("cuda:1")}
    assert bind_device(gpu, old_init) == {}
    assert bind_device(make_world(1, 2), dist.init_process_group) == {}
    alone = replace(make_world(0, 1), device_type="cuda", device="cuda:0")
    assert bind_device(alone, dist.init_process_group) == {}, "one rank has nobody to talk to"


def test_a_group_of_gloo_s_is_bound_to_no_device():
    """Two ranks on one GPU (benchmarks/gpu/gloo_worker.py): torch 2.11 cannot split a bound one."""

    class Shared(World):
        backend = "gloo"

    facts = asdict(replace(make_world(1, 2), device_type="cuda", device="cuda:0"))
    assert bind_device(Shared(**facts), dist.init_process_group) == {}
