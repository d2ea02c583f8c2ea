from __future__ import annotations

import torch

from trainer.measuring.held_tensors import Observed, list_shards, state_tensors


def test_floating_point_storages_are_counted_once() -> None:
    """Of a quantizer's tables and counters nothing, of an empty shard neither bytes nor its type."""
    weights = torch.zeros(10, 3)
    integers, empty = torch.zeros(100, dtype=torch.int64), torch.zeros(0, dtype=torch.bfloat16)
    observed = Observed()
    observed.add("parameters", [weights, weights.t(), weights[2:], integers, empty])
    observed.add("gradients", [torch.zeros(4, dtype=torch.float16), torch.zeros(2)])
    observed.add("optimizer", [])
    assert observed.bytes_held == {"parameters": 120, "gradients": 4 * 2 + 2 * 4, "optimizer": 0}
    assert observed.dtypes == {
        "parameters": ["float32"],
        "gradients": ["float16", "float32"],
        "optimizer": [],
    }
    assert observed.memory_gib()["parameters"] == 120 / 2**30


def test_of_an_optimizer_the_step_counter_is_left_out() -> None:
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    assert [tuple(tensor.shape) for tensor in state_tensors(optimizer)] == [(5,), (5,)]


def test_of_deepspeed_s_stage_3_both_shards_count() -> None:
    plain, sharded = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    sharded.ds_tensor, sharded.ds_secondary_tensor = torch.ones(2), torch.ones(3)
    assert [len(shard) for shard in list_shards([plain, sharded])] == [2, 3]
