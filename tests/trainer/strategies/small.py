"""A small residual network, its batches and a training run on one rank: what the strategies are tested with.

Not one of the lab's models, so that these tests fail only for what the strategies do: linear layers, a norm, a
parameter of its own, a buffer in the state and one outside it. Parity over the real models is in tests/parity.
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stratlab_spec.settings.config import Config
from tests.trainer.runs import run_of
from trainer.data.batches import Batch
from trainer.distributed.world import Precision
from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.models.model_with_loss import ClassLoss, ImageClassifier
from trainer.strategies import build_engine, builds_empty

GLOBAL_BATCH, CLASSES, WIDTH = 16, 8, 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class SmallNet(ImageClassifier):
    """Images [batch, 1, 4, 4] -> logits [batch, classes]; with an odd number of classes that of parameters is odd."""

    flops_per_sample = 1.0

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.loss = ClassLoss()
        self.stem = nn.Linear(16, WIDTH)
        self.shift = nn.Parameter(torch.randn(1, WIDTH))
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, classes)
        self.register_buffer("gain", torch.rand(WIDTH) + 0.5)
        self.register_buffer("hidden_gain", torch.linspace(0.5, 1.5, WIDTH), persistent=False)

    def predict(self, images: Tensor) -> Tensor:
        x = self.stem(images.flatten(1)) * self.gain * self.hidden_gain + self.shift
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def build_net(
    config: Config, *, empty: bool = False, frozen: bool = False, classes: int = CLASSES
) -> SmallNet:
    """Seeded like `trainer.models.build_model`. `frozen`: only `down` and the head train, as with adapters."""
    with torch.device("meta" if empty else "cpu"):
        torch.manual_seed(config.seed)
        net = SmallNet(classes)
    if frozen:
        for name, parameter in net.named_parameters():
            parameter.requires_grad_("down" in name or "head" in name)
    return net


def make_config(strategy: str, world_size: int, **settings: Any) -> Config:
    """Two micro-batches per step on every world size up to 4."""
    sizes = {"global_batch_size": GLOBAL_BATCH, "micro_batch_size": GLOBAL_BATCH // world_size // 2}
    return Config(**{"run": "try", "strategy": strategy, "precision": "fp32", "lr": 0.01} | sizes | settings)


def batch_of(step: int, config: Config, rank: int, world_size: int) -> Batch:
    """This rank's micro-batches of a global batch that depends on the step alone."""
    source = torch.Generator().manual_seed(1000 + step)
    images = torch.randn(GLOBAL_BATCH, 1, 4, 4, generator=source)
    labels = torch.randint(0, CLASSES, (GLOBAL_BATCH,), generator=source)
    mine = range(rank * GLOBAL_BATCH // world_size, (rank + 1) * GLOBAL_BATCH // world_size)
    size = config.micro_batch_size
    return Batch(
        [(images[i : i + size], labels[i : i + size]) for i in mine[::size]], GLOBAL_BATCH, GLOBAL_BATCH
    )


def start(
    config: Config, *, frozen: bool = False, processes_per_node: int = 0, classes: int = CLASSES
) -> Engine:
    """The engine on this rank; joins the process group if needed."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    net = build_net(config, empty=builds_empty(config, dist.get_rank()), frozen=frozen, classes=classes)
    return build_engine(run_of(config, Precision(config.precision), processes_per_node), net, Phases("cpu"))


def steps(engine: Engine, config: Config, first: int, last: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of the steps first to last."""
    seen = []
    for step in range(first, last + 1):
        result = engine.train_step(batch_of(step, config, dist.get_rank(), dist.get_world_size()), config.lr)
        loss = result.loss.clone()
        dist.all_reduce(loss)
        seen.append((float(loss), float(result.grad_norm)))
    return seen


def train(out: Path, strategy: str, *, last: int = 4, **options: Any) -> None:
    """One rank: trains and leaves (losses and norms, initial state, final state, dtypes) in `out`."""
    net = {name: options.pop(name) for name in ("frozen", "classes") if name in options}
    config = make_config(strategy, int(os.environ["WORLD_SIZE"]), **options)
    engine = start(config, **net)
    initial = engine.gather_state()
    seen = steps(engine, config, 1, last)
    final = engine.gather_state()
    if dist.get_rank() == 0:
        torch.save([seen, initial, final, engine.observed.dtypes], out)
    engine.close()
    dist.barrier()


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
