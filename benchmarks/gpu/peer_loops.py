"""Training loops of other libraries around our module, batches, loss and optimizer, with a clock around them."""

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

LIBRARIES = {
    "plain": "torch",
    "hf_trainer": "accelerate",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "timm_loop": "timm",
    "timm_model": "timm",
}
"""Packages that each peer needs."""


@dataclass
class Clock:
    """Measure the mean time of the steps after the warm ones; wait for the device only at both ends."""

    is_cuda: bool
    warm: int
    steps: int
    done: int = 0
    times: list[float] = field(default_factory=list)

    def step(self) -> None:
        """Count an update."""
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
    """The input of every peer.

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
    """Return the model of a family on the device, with its batches there; `timm_model` has timm's own ViT."""
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


def train_peer(session: Session, family: str, peer: str, settings: dict[str, str]) -> dict[str, Any]:
    """Return time of a step of one peer, its peak memory and its last loss."""
    job = build_job(session, family, peer, settings)
    if session.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    loss = LOOPS[peer](job)
    ms = job.clock.ms
    facts = {"ms": ms, "steps": job.clock.steps, "loss": loss, "accumulate": job.accumulate}
    facts["samples_per_s"] = job.config.global_batch_size / ms * 1e3
    if session.is_cuda:
        facts["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        facts["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return facts


def _run_plain(job: Job) -> float:
    optimizer = job.optimizer()
    loss = torch.zeros(())
    for i, (inputs, labels) in enumerate(job.batches, 1):
        with job.autocast():
            logits = job.model(inputs)
        loss = job.loss(logits, labels) / job.accumulate
        loss.backward()
        if i % job.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            job.clock.step()
    return loss.item()


def _run_timm(job: Job) -> float:
    """Train as timm's train.py: it waits for the device after each update, and keeps a running mean of the loss."""
    import timm.utils

    optimizer, mean, loss = job.optimizer(), timm.utils.AverageMeter(), torch.zeros(())
    for i, (inputs, labels) in enumerate(job.batches, 1):
        with job.autocast():
            loss = job.loss(job.model(inputs), labels)
        (loss / job.accumulate).backward()
        if i % job.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            if job.session.is_cuda:
                torch.cuda.synchronize()
            job.clock.step()
            mean.update(loss.item() if job.clock.done % 50 == 1 else mean.val, len(labels))
    return loss.item()


class _WithLoss(nn.Module):
    """A model in the form that transformers' Trainer requires."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.inner, self.loss = job.model, job.loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.inner(x), labels)}


class _Ready(torch.utils.data.Dataset):
    """Batches on the device, returned whole."""

    def __init__(self, job: Job) -> None:
        self.batches, self.rows = job.batches, len(job.batches[0][1])

    def __len__(self) -> int:
        return len(self.batches) * self.rows

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.batches[(indices[0] // self.rows) % len(self.batches)]


def _run_hf_trainer(job: Job) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Steps(TrainerCallback):
        def on_step_end(self, *arguments: Any, **others: Any) -> None:
            job.clock.step()

    is_cuda = job.session.is_cuda
    arguments = TrainingArguments(
        output_dir=str(job.session.work_folder / "hf_trainer"),
        per_device_train_batch_size=len(job.batches[0][1]),
        gradient_accumulation_steps=job.accumulate,
        max_steps=len(job.batches) // job.accumulate,
        bf16=is_cuda,
        use_cpu=not is_cuda,
        optim="adamw_torch_fused",
        learning_rate=job.config.lr,
        weight_decay=job.config.weight_decay,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=_WithLoss(job),
        args=arguments,
        train_dataset=_Ready(job),
        data_collator=lambda pair: {"x": pair[0], "labels": pair[1]},
        callbacks=[Steps()],
    )
    return float(trainer.train().training_loss)


def _run_accelerate(job: Job) -> float:
    from accelerate import Accelerator

    is_cuda, loss = job.session.is_cuda, torch.zeros(())
    accelerator = Accelerator(
        mixed_precision="bf16" if is_cuda else "no",
        gradient_accumulation_steps=job.accumulate,
        cpu=not is_cuda,
    )
    loader = torch.utils.data.DataLoader(job.batches, batch_size=None)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(job.model, job.optimizer(), loader)
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = job.loss(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            job.clock.step()
    return loss.item()


def _run_lightning(job: Job) -> float:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = job.model, torch.zeros(())

        def training_step(self, pair: tuple[Tensor, Tensor], index: int) -> Tensor:
            self.last = job.loss(self.inner(pair[0]), pair[1])
            return self.last

        def configure_optimizers(self) -> Any:
            return job.optimizer(self.inner)

    class Steps(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *arguments: Any) -> None:
            if trainer.global_step > job.clock.done:
                job.clock.step()

    is_cuda, module = job.session.is_cuda, Module()
    trainer = lightning.Trainer(
        accelerator="gpu" if is_cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if is_cuda else "32-true",
        max_epochs=1,
        accumulate_grad_batches=job.accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Steps()],
        default_root_dir=str(job.session.work_folder),
        limit_val_batches=0,
    )
    trainer.fit(module, torch.utils.data.DataLoader(job.batches, batch_size=None))  # type: ignore[arg-type]
    return module.last.item()


LOOPS: dict[str, Callable[[Job], float]] = {
    "plain": _run_plain,
    "hf_trainer": _run_hf_trainer,
    "accelerate": _run_accelerate,
    "lightning": _run_lightning,
    "timm_loop": _run_timm,
    "timm_model": _run_timm,
}
