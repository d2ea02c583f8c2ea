"""What every peer trains: our module, batches, loss and optimizer, and the clock around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.session import Session
from stratlab_spec.settings.config import Config
from trainer.models.model_with_loss import sum_losses


@dataclass
class Clock:
    """Mean time of the steps after the warm ones; waits for the device only at both ends."""

    is_cuda: bool
    warm: int
    steps: int
    done: int = 0
    times: list[float] = field(default_factory=list)

    def step(self) -> None:
        """After every update."""
        self.done += 1
        if self.done in (self.warm, self.warm + self.steps):
            if self.is_cuda:
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    @property
    def ms(self) -> float:
        return (self.times[1] - self.times[0]) / self.steps * 1e3


@dataclass(frozen=True)
class Job:
    """What every peer is given.

    Attributes:
        batches: (inputs, labels), one per micro-batch.
        accumulate: micro-batches per update.
    """

    session: Session
    config: Config
    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    accumulate: int
    clock: Clock

    def autocast(self) -> Any:
        return torch.autocast(self.session.device, dtype=torch.bfloat16, enabled=self.session.is_cuda)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return sum_losses(logits, labels) / labels.numel()

    def optimizer(self, model: nn.Module | None = None) -> Any:
        config, parameters = self.config, (model or self.model).parameters()
        return torch.optim.AdamW(parameters, config.lr, weight_decay=config.weight_decay, fused=True)


def build_job(session: Session, family: str, peer: str, settings: dict[str, str]) -> Job:
    """The model of a family on the device, with batches that lie ready there; `timm_model` has timm's own ViT."""
    torch.manual_seed(0)
    config = Config.model_validate({"run": "peer", **settings})
    model, draw = (_build_images if family == "vit" else _build_text)(session, config)
    if peer == "timm_model":
        model = _build_timm(session, config)
    accumulate = config.global_batch_size // config.micro_batch_size
    clock = Clock(session.is_cuda, *((1, 3) if session.tiny else (8, 20)))
    ready = [draw() for _ in range(4)]
    batches = [ready[i % 4] for i in range((clock.warm + clock.steps) * accumulate)]
    return Job(session, config, model.to(session.device).train(), batches, accumulate, clock)


def _build_images(session: Session, config: Config) -> tuple[nn.Module, Callable[[], Any]]:
    from stratlab_spec.models.model_specs import default_image_size
    from trainer.models import build_model

    size, batch = config.image_size or default_image_size(config), config.micro_batch_size

    def draw() -> tuple[Tensor, Tensor]:
        images = torch.randn(batch, 3, size, size, device=session.device)
        return images, torch.randint(0, 10, (batch,), device=session.device)

    return build_model(config, image_size=size, channels=3, num_labels=10), draw


def _build_text(session: Session, config: Config) -> tuple[nn.Module, Callable[[], Any]]:
    from trainer.models.decoder_build import build_decoder

    shape = (config.micro_batch_size, config.seq_len)
    places = torch.arange(config.seq_len, device=session.device).expand(shape)

    def draw() -> tuple[Tensor, Tensor]:
        ids, labels = (torch.randint(0, 256, shape, device=session.device) for _ in range(2))
        return torch.stack((ids, places), 1), labels

    return build_decoder(config), draw


def _build_timm(session: Session, config: Config) -> nn.Module:
    import timm

    if session.tiny:
        sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2}
        small: nn.Module = timm.create_model("vit_tiny_patch16_224", num_classes=10, **sizes)
        return small
    names = {"vit_base": "vit_base_patch16_224", "vit_huge": "vit_huge_patch14_224"}
    large: nn.Module = timm.create_model(names[config.model], num_classes=10)
    return large
