"""Training loops of other libraries around our module, batch, loss and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.peer_job import Job, build_job
from benchmarks.gpu.session import Session

LIBRARIES = {
    "plain": "torch",
    "hf_trainer": "accelerate",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "timm_loop": "timm",
    "timm_model": "timm",
}
"""What each peer needs to be installed."""


def train_peer(session: Session, family: str, peer: str, settings: dict[str, str]) -> dict[str, Any]:
    """Time of a step of one peer, its peak memory and its last loss."""
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
    """As timm's train.py: waits for the device after each update, and keeps a running mean of the loss."""
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
    """What transformers' Trainer wants of a model."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.inner, self.loss = job.model, job.loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.inner(x), labels)}


class _Ready(torch.utils.data.Dataset):
    """Batches that lie on the device, handed out whole."""

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
