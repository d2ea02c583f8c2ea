"""What ranks of ZeRO hold, and a peak that another program has left."""

from __future__ import annotations

import os

import pytest

from tests.ranks import run_ranks

RANKS, PER_NODE = 4, 2
TEXT = (
    "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2 global_batch_size=8 persistent_elements=0 "
    "precision=fp32"
)


def test_the_copy_in_the_node_is_counted() -> None:
    def hold() -> None:
        import torch.distributed as dist

        from tests.trainer.counting.real_steps import make_config, run_steps

        os.environ["LOCAL_WORLD_SIZE"] = str(PER_NODE)
        dist.init_process_group("gloo")
        held, gradients, count = {}, {}, 0
        for strategy in ("zero3", "zeropp"):
            engine = run_steps(make_config(f"{TEXT} strategy={strategy}"), PER_NODE)
            held[strategy] = engine.observed.bytes_held["parameters"]
            gradients[strategy] = engine.observed.bytes_held["gradients"]
            count = sum(parameter.ds_numel for parameter in engine.module.parameters())
            engine.close()
        assert gradients == pytest.approx(dict.fromkeys(held, 4 * count / RANKS), rel=0.001)
        assert held["zeropp"] - held["zero3"] == pytest.approx(4 * count / PER_NODE, rel=0.001)

    run_ranks(hold, RANKS)
