"""Image classifiers as transformers saves them, under each image strategy: the losses of one process."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from stratlab_spec.settings.config import Config
from tests.ranks import run_ranks
from tests.trainer.models.conftest import write_model
from tests.trainer.runs import run_of
from trainer.data.batches import Batch
from trainer.distributed.world import Precision
from trainer.measuring.phases import Phases
from trainer.models import build_model
from trainer.strategies import build_engine, builds_empty

GLOBAL_BATCH, LABELS, STEPS = 16, 5, 3
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")


def train(folder: Path, strategy: str) -> list[float]:
    """The losses of the first steps, with two micro-batches each."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = GLOBAL_BATCH // world_size // 2
    config = Config(
        run="try", strategy=strategy, model_path=str(folder), init="pretrained", precision="fp32",
        lr=0.01, clip_norm=0.5, global_batch_size=GLOBAL_BATCH, micro_batch_size=size,
    )  # fmt: skip
    empty = builds_empty(config, rank)
    model = build_model(config, image_size=16, channels=3, num_labels=LABELS, empty=empty)
    engine = build_engine(run_of(config, Precision("fp32")), model, Phases("cpu"))
    losses = []
    for step in range(STEPS):
        source = torch.Generator().manual_seed(step)
        images = torch.randn(GLOBAL_BATCH, 3, 16, 16, generator=source)
        labels = torch.randint(0, LABELS, (GLOBAL_BATCH,), generator=source)
        mine = range(rank * GLOBAL_BATCH // world_size, (rank + 1) * GLOBAL_BATCH // world_size)[::size]
        batch = Batch(
            [(images[i : i + size], labels[i : i + size]) for i in mine], GLOBAL_BATCH, GLOBAL_BATCH
        )
        loss = engine.train_step(batch, config.lr).loss.clone()
        dist.all_reduce(loss)
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("kind", ["vit", "deit", "swin", "convnext", "dinov2"])
def test_every_strategy_trains_it_as_one_process_does(kind, tmp_path):
    folder = tmp_path / "model"
    write_model(folder, kind)

    def each(*strategies: str) -> None:
        for strategy in strategies:
            losses = train(folder, strategy)
            if dist.get_rank() == 0:
                (tmp_path / f"{strategy}.json").write_text(json.dumps(losses))

    run_ranks(lambda: each("single"), 1)
    run_ranks(lambda: each(*STRATEGIES), 2)
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    alone = found.pop("single")
    assert len(found) == len(STRATEGIES) and alone[-1] != pytest.approx(alone[0], abs=1e-3)
    for strategy, losses in found.items():
        assert losses == pytest.approx(alone, abs=1e-5), strategy
