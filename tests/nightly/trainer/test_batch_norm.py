"""What parity with one process means for a network with batch norm, under every strategy.

local          losses, gradient norms and weights are those of one process with the same micro_batch_size
synchronised   those of one process with all of the ranks' micro-batches as its own, running statistics included
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from trainer.models.model_with_loss import ClassLoss, ImageClassifier

STRATEGIES = ("ddp", "fsdp", "zero1", "zero3")
RANKS, ROWS, CLASSES, STEPS = 2, 16, 8, 4
STATISTICS = ("running_mean", "running_var")


class NormedNet(ImageClassifier):
    """Two convolutions with batch norm, as blocks."""

    flops_per_sample = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.loss = ClassLoss()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()) for c in (1, 6)
        )
        self.head = nn.Linear(6, CLASSES)

    def predict(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = layer(images)
        return self.head(images.mean(dim=(2, 3)))

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def train(out: Path, strategy: str, micro_batch_size: int, **settings: Any) -> None:
    """One rank: losses and norms, and the state after the ranks have agreed on the running statistics."""
    import os

    import torch.distributed as dist

    from tests.trainer.runs import run_of
    from tests.trainer.strategies.small import make_config, steps
    from trainer.distributed.world import Precision
    from trainer.measuring.phases import Phases
    from trainer.models.batch_norm import apply_synchronised_batch_norm, average_running_statistics
    from trainer.models.decoder_build import apply_checkpointing
    from trainer.strategies import build_engine, builds_empty

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    # not Adam, which makes steps of full length out of the rounding error of a bias that batch norm takes away
    moving = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
    sizes = {"micro_batch_size": micro_batch_size}
    config = make_config(strategy, int(os.environ["WORLD_SIZE"]), **moving | sizes | settings)
    with torch.device("meta" if builds_empty(config, dist.get_rank()) else "cpu"):
        torch.manual_seed(0)
        net = NormedNet()
    if config.batch_norm == "synchronised":
        assert apply_synchronised_batch_norm(net) == 2
    if config.activation_checkpointing != "none":
        apply_checkpointing(net, config)
    engine = build_engine(run_of(config, Precision("fp32")), net, Phases("cpu"))
    seen = steps(engine, config, 1, STEPS)
    average_running_statistics(engine.module)
    state = engine.gather_state()
    if dist.get_rank() == 0:
        torch.save([seen, state], out)
    engine.close()
    dist.barrier()


def differences(found: Any, wanted: Any) -> tuple[float, float, float]:
    """Largest of (losses and norms, weights, running statistics)."""
    pairs = zip(found[0], wanted[0], strict=True)
    seen = max(abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True))
    apart = {
        name: float((found[1][name] - tensor).abs().max())
        for name, tensor in wanted[1].items()
        if tensor.is_floating_point()
    }
    kept = max(value for name, value in apart.items() if name.endswith(STATISTICS))
    return seen, max(value for name, value in apart.items() if not name.endswith(STATISTICS)), kept


@pytest.mark.parametrize("batch_norm", ["local", "synchronised"])
def test_parity_of_a_network_with_batch_norm(batch_norm, tmp_path):
    """Recomputed blocks ask for their collectives again, in the backward pass: the ranks keep one order."""
    micro, alone, another = {"local": (4, 4, 16), "synchronised": (8, 16, 8)}[batch_norm]
    kinds = [(strategy, recomputed) for strategy in STRATEGIES for recomputed in ("none", "blocks")]

    def one() -> None:
        train(tmp_path / "alone", "single", alone)
        train(tmp_path / "another", "single", another)

    def each() -> None:
        for strategy, recomputed in kinds:
            settings = {"batch_norm": batch_norm, "activation_checkpointing": recomputed}
            train(tmp_path / f"{strategy} {recomputed}", strategy, micro, **settings)

    run_ranks(one, 1)
    run_ranks(each, RANKS)
    wanted, other = (torch.load(tmp_path / name, weights_only=True) for name in ("alone", "another"))
    for strategy, recomputed in kinds:
        found = torch.load(tmp_path / f"{strategy} {recomputed}", weights_only=True)
        seen, weights, statistics = differences(found, wanted)
        assert seen < 1e-5 and weights < 1e-5, (strategy, recomputed, seen, weights)
        assert batch_norm == "local" or statistics < 1e-5, (strategy, recomputed, statistics)
    assert differences(wanted, other)[0] > 1e-3, (
        "another micro-batch is another training, or nothing was shown"
    )
