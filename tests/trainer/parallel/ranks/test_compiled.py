"""Compiled layers have the first gradients of eager ones. `aot_eager` compiles without code generation."""

import pytest

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config

CASES = {
    "pp2 selective, bf16": {"pp": 2, "activation_checkpointing": "selective", "precision": "bf16"},
    "tp2": {"tp": 2},
    "cp2 packed": {"cp": 2, "packing": True},
}


@pytest.mark.parametrize("name", ["tp2"])
def test_first_gradients_are_those_of_eager_layers(name):
    compare_with_eager(name)


def compare_with_eager(name: str) -> None:
    def run() -> None:
        import torch
        import torch.distributed as dist
        from torch._dynamo.utils import counters

        from tests.parity_llm.training import _gradients
        from tests.trainer.parallel import small
        from tests.trainer.runs import run_of
        from trainer.measuring.operators import WireCounter
        from trainer.measuring.phases import Phases
        from trainer.models import weights as weight_sources
        from trainer.models.decoder_build import build_decoder
        from trainer.strategies import build_engine

        weight_sources.RandomWeights = small.Louder
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        found: list[dict[str, torch.Tensor]] = []
        sent = []
        for compiled in (False, True):
            config = make_config(**CASES[name], compile=compiled)
            # as a run does, with its recipe of bf16
            engine = build_engine(run_of(config), build_decoder(config, empty=True), Phases("cpu"))
            gradients = {}
            with _gradients(engine, gradients):
                engine.train_step(small.share_of(config, 1, 0), 1e-3)
            assert (counters["stats"]["unique_graphs"] > 0) == compiled
            found.append(gradients)
            with WireCounter() as wire:  # the second step: everything is compiled
                engine.train_step(small.share_of(config, 1, 0), 1e-3)
            sent.append((wire.operations, wire.axes))
        assert sent[0] == sent[1], sent
        eager, other = found
        assert eager.keys() == other.keys()
        for parameter, gradient in eager.items():
            apart = (gradient - other[parameter]).norm() / (gradient.norm() + 1e-3)
            assert apart < 1e-5, (parameter, float(apart))

    run_ranks(run, 2)
