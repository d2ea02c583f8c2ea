from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("sequence_parallel", ["on", "off"])
def test_adapters_under_tp_get_the_gradients_of_one_process(sequence_parallel):
    config = make_config(
        tp=2, lora_rank=2, lora_targets=",".join(TARGETS), sequence_parallel=sequence_parallel
    )

    def run() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.parallel import small

        dist.init_process_group("gloo")
        inputs, labels = small.make_rows(config)
        alone = small.whole_decoder(config)
        (alone(inputs, labels)[0] / small.count_labels(labels)).backward()
        wanted = {name: p.grad for name, p in alone.named_parameters() if p.requires_grad}

        engine = small.start(config)
        engine._update = lambda lr: (torch.zeros(()), 0)  # the gradients stay
        engine.train_step(small.share_of(config, 1, 0), 0.0)
        held = dict(engine.stages[0].module.named_parameters())
        assert {name for name, p in held.items() if p.requires_grad} == wanted.keys()
        for name, gradient in wanted.items():
            found = held[name].grad.full_tensor()
            assert (found - gradient).abs().max() < 1e-4 * gradient.abs().max(), name

    run_ranks(run, 2)
