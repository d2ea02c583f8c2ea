"""What parity with one process means for a network with batch norm, under every strategy.

local          losses, gradient norms and weights are those of one process with the same micro_batch_size
synchronised   those of one process with all of the ranks' micro-batches as its own, running statistics included
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from trainer.models.classifier import ImageClassifier
from trainer.models.learner import ClassLoss

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
    from trainer.measuring.phases import Phases
    from trainer.models.activation_checkpointing import apply_checkpointing
    from trainer.models.batch_norm import average_running_statistics
    from trainer.models.synchronised_batch_norm import apply_synchronised_batch_norm
    from trainer.settings.precision import Precision
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


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[list[Any], dict[str, Tensor]]]:
    """One process, by its micro-batch size, with torch's own layers."""
    folder = tmp_path_factory.mktemp("single")
    sizes = (ROWS, ROWS // RANKS, ROWS // RANKS // 2)

    def each() -> None:
        for size in sizes:
            train(folder / f"{size}", "single", size)

    run_ranks(each, 1)
    return lambda size: tuple(torch.load(folder / f"{size}", weights_only=True))


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


@pytest.mark.parametrize(
    ("batch_norm", "micro", "alone"),
    [("local", 4, 4), ("synchronised", 8, 16)],
)
def test_parity_of_a_network_with_batch_norm(batch_norm, micro, alone, single, tmp_path):
    def each() -> None:
        for strategy in STRATEGIES:
            train(tmp_path / strategy, strategy, micro, batch_norm=batch_norm)

    run_ranks(each, RANKS)
    for strategy in STRATEGIES:
        found = torch.load(tmp_path / strategy, weights_only=True)
        seen, weights, statistics = differences(found, single(alone))
        assert seen < 1e-5 and weights < 1e-5, (strategy, seen, weights)
        if batch_norm == "synchronised":
            assert statistics < 1e-5, (strategy, statistics)
        other = differences(found, single(8 if alone == 16 else 16))
        assert other[0] > 1e-3, "another micro-batch is another training, or nothing was shown"


def test_recomputed_blocks_ask_for_their_collectives_again(single, tmp_path):
    """In the backward pass, between those of the strategy, and with accumulation: the ranks keep one order."""

    def each() -> None:
        for strategy in STRATEGIES:
            for recomputed in ("none", "blocks"):
                out = tmp_path / f"{strategy} {recomputed}"
                settings = {"batch_norm": "synchronised", "activation_checkpointing": recomputed}
                train(out, strategy, 4, **settings)

    run_ranks(each, RANKS)
    plain, *others = (torch.load(path, weights_only=True) for path in sorted(tmp_path.iterdir()))
    assert len(others) == 2 * len(STRATEGIES) - 1
    for found in others:
        assert max(differences(found, plain)) < 1e-5
