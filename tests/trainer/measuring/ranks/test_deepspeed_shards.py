"""What ranks of ZeRO++ say that they hold: the copy in the node too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ranks import run_ranks

RANKS, PER_NODE = 4, 2
TEXT = (
    "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2 global_batch_size=8 persistent_elements=0 "
    "precision=fp32"
)


def hold(more: str, folder: Path) -> dict[str, int]:
    def work() -> None:
        import torch.distributed as dist

        from tests.trainer.counting.ranks.real_steps import make_config, run_steps

        os.environ["LOCAL_WORLD_SIZE"] = str(PER_NODE)
        dist.init_process_group("gloo")
        engine = run_steps(make_config(f"{TEXT} {more}"), PER_NODE)
        if dist.get_rank() == 0:
            count = sum(parameter.ds_numel for parameter in engine.module.parameters())
            (folder / "held").write_text(f"{engine.observed.bytes_held['parameters']} {count}")
        dist.destroy_process_group()

    run_ranks(work, RANKS)
    held, count = (folder / "held").read_text().split()
    return {"parameters": int(held), "count": int(count)}


def test_the_copy_in_the_node_is_counted(tmp_path: Path) -> None:
    alone = hold("strategy=zero3", tmp_path)
    found = hold("strategy=zeropp", tmp_path)
    assert found["count"] == alone["count"]
    again = 4 * alone["count"] / PER_NODE
    assert found["parameters"] - alone["parameters"] == pytest.approx(again, rel=0.001)
