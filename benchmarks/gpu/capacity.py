"""Throughput and the allocator's retries as memory fills up, by default and with expandable segments.

How full a card may be planned: ViT-H with bf16 autocast and fused AdamW, batches that fill 60 to 99 % of the card.
Each way to allocate has a process of its own: `python -m benchmarks.gpu.capacity SESSION NAME`.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import transformers

from benchmarks.gpu.processes import read_tail, run_command
from benchmarks.gpu.session import ROOT, Session
from stratlab_spec.models.model_specs import VIT
from trainer.models.hugging_face import vit_config

ALLOCATORS = {"default": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
SHARES = (0.60, 0.80, 0.85, 0.90, 0.93, 0.95, 0.97, 0.99)
COUNTED = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


def run(session: Session) -> None:
    """Measure both allocators, half of the time each."""
    for number, (name, setting) in enumerate(ALLOCATORS.items()):
        seconds = session.left_s() / (len(ALLOCATORS) - number) - 1
        log = session.work_folder / "logs" / f"capacity-{name}.log"
        own = replace(session, deadline=time.time() + seconds)
        command = [sys.executable, "-m", "benchmarks.gpu.capacity", own.to_json(), name]
        env = {**os.environ, **setting}
        code, _ = run_command(command, env=env, log=log, seconds=seconds + 1, folder=ROOT)
        if code != 0:
            why = "killed: out of time" if code is None else f"ended with {code}"
            session.record(f"{name} sweep", "failed", error=why, log=read_tail(log, 12))


class Sweep:
    """One model and optimizer, trained with growing batches."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.shape = VIT["vit_tiny" if session.tiny else "vit_huge"]
        config = vit_config(self.shape, self.shape.image, 3, 10)
        with torch.device(session.device):
            self.model = transformers.ViTForImageClassification(config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=True)

    def train(self, batch: int, warm: int, steps: int) -> dict[str, Any]:
        """Return the mean time of `steps` after `warm` ones, and their memory."""
        device, is_cuda = self.session.device, self.session.is_cuda
        self.optimizer.zero_grad(set_to_none=True)  # of a batch that did not fit
        images = torch.randn(batch, 3, self.shape.image, self.shape.image, device=device)
        labels = torch.randint(0, 10, (batch,), device=device)
        before = torch.cuda.memory_stats() if is_cuda else {}
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        began = 0.0
        for step in range(warm + steps):
            if step == warm:
                began = self._now()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=is_cuda):
                logits = self.model(pixel_values=images).logits
            F.cross_entropy(logits.float(), labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        ms = (self._now() - began) / steps * 1e3
        facts = {"batch": batch, "ms": ms, "samples_per_s": batch / ms * 1e3}
        return facts | (self._memory(before) if is_cuda else {})

    def _now(self) -> float:
        if self.session.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    @staticmethod
    def _memory(before: dict[str, Any]) -> dict[str, Any]:
        after, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
        return {
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "allocated_pct": 100 * torch.cuda.max_memory_allocated() / total,
            "reserved_pct": 100 * torch.cuda.max_memory_reserved() / total,
            "device_used_pct": 100 * (1 - free / total),
            **{name: after.get(name, 0) - before.get(name, 0) for name in COUNTED},
        }


def sweep(session: Session, name: str) -> None:
    """Fit the memory per sample on two small batches, then fill the card."""
    found = Sweep(session)
    if not session.is_cuda:
        for batch in (2, 4):
            session.measure(f"{name} batch {batch}", found.train, batch, 1, 2, needs_s=0)
        return
    found.train(8, 1, 2)
    small, large = found.train(32, 2, 2), found.train(64, 2, 2)
    per_sample = (large["peak_gib"] - small["peak_gib"]) / 32
    fixed = small["peak_gib"] - 32 * per_sample
    total = torch.cuda.mem_get_info()[1] / 2**30
    session.record(f"{name} model", total_gib=total, fixed_gib=fixed, gib_per_sample=per_sample)
    for share in SHARES:
        batch = max(1, int((share * total - fixed) / per_sample))
        session.measure(f"{name} {share:.0%}", found.train, batch, 3, 5, needs_s=7)


if __name__ == "__main__":
    sweep(Session.from_json(sys.argv[1]), sys.argv[2])
