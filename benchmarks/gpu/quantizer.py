"""ZeRO++'s quantised parts: DeepSpeed's CUDA kernel against its formula, and both parts between two ranks.

    python -m benchmarks.gpu.quantizer cuda     torchrun starts it: a reduction in 4 bits between two ranks

Without a GPU there is no kernel: the formula replaces it, and the figures do not describe the kernel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.gloo import MODELS, TWO_RANKS
from benchmarks.gpu.own_run import build_environment, compare_losses, train
from benchmarks.gpu.processes import read_tail, run_command
from benchmarks.gpu.quantizer_formula import StandInQuantizer
from benchmarks.gpu.session import ROOT, NotHere, Session
from trainer.engines.quantization import QuantizedReduction, Quantizer, dequantize, load_quantizer, quantize

SIZES = (1 << 20, 2048)
SCALES = (1.0, 2.0**-40, 3e4)
ELEMENTS, HALF, MEAN = 8192, 8, 1.5
"""Of the reduction: whole numbers that 4 bits hold exactly; ranks send one and two times them."""
MARK = "REDUCED "


def run(session: Session) -> None:
    """Check the kernel, then both parts between ranks."""
    if not session.measure("kernel", build_kernel, session, needs_s=30):
        return
    session.measure("numbers", compare_numbers, session)
    session.measure("qgz, two ranks", reduce_between_ranks, session, needs_s=15)
    if session.is_cuda:
        session.measure("qwz, two ranks", train_between_ranks, session, needs_s=45)


def load_kernel(device: str) -> Quantizer:
    """Return DeepSpeed's kernel, compiled now if the image lacks it; on a CPU the formula."""
    return load_quantizer() if device == "cuda" else StandInQuantizer()


def build_kernel(session: Session) -> dict[str, Any]:
    """Return seconds until it can be called."""
    began = time.perf_counter()
    return {"kernel": type(load_kernel(session.device)).__name__, "build_s": time.perf_counter() - began}


def compare_numbers(session: Session) -> dict[str, Any]:
    """Return the share of numbers that differ from the formula's, and the difference of values over a block's
    largest.
    """
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    for size in SIZES:
        for scale in SCALES:
            values = torch.randn(size, device=session.device) * scale
            for bits in (8, 4):
                kernel = quantize(load_kernel(session.device), values, bits)
                formula = quantize(StandInQuantizer(), values, bits)
                found[f"{bits} bits, {size} x {scale:g}"] = {
                    "numbers_differ": float((kernel[0] != formula[0]).float().mean()),
                    "scales_differ": _relative(kernel[1], formula[1]),
                    "value_error": _relative(dequantize(*kernel, bits), values),
                    "formula_error": _relative(dequantize(*formula, bits), values),
                }
    judged = ("numbers_differ", "scales_differ")
    return {**{name: max(case[name] for case in found.values()) for name in judged}, "cases": found}


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def reduce_between_ranks(session: Session) -> dict[str, Any]:
    """Reduce between two ranks, one per node, with gradients that 4 bits hold exactly: the mean has to be exact."""
    log = session.work_folder / "logs" / "quantized-reduction.log"
    log.unlink(missing_ok=True)
    command = [*TWO_RANKS[:-1], "benchmarks.gpu.quantizer", session.device]
    env = build_environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    code, wall_s = run_command(command, env=env, log=log, seconds=session.within(60), folder=ROOT)
    said = [json.loads(line.removeprefix(MARK)) for line in read_tail(log, 100) if line.startswith(MARK)]
    if code != 0 or len(said) != 2:
        raise RuntimeError(f"ended with {code}: {read_tail(log, 6)}")
    off = max(each["off"] for each in said)
    return {"exact": all(each["exact"] for each in said), "largest_difference": off, "wall_s": wall_s}


def train_between_ranks(session: Session) -> dict[str, Any]:
    """Train with weights gathered in 8 bits between two ranks, and compare a small model's losses with one process."""
    settings = MODELS["qwen"] | {"STRATEGY": "single"}
    alone = train(session, "quantizer-single", settings, seconds=session.within(60))
    if alone["status"] != "done":
        raise NotHere(f"one process failed: {alone.get('error')}")
    settings = MODELS["qwen"] | {"STRATEGY": "zeropp", "ZEROPP": "qwz"}
    both = train(session, "quantizer-qwz", settings, seconds=session.within(90), command=TWO_RANKS)
    if both["status"] != "done":
        raise RuntimeError(f"{both.get('error')}: {both.get('log')}")
    return {"losses": both["losses"], "losses_alone": alone["losses"], **compare_losses(both, alone)}


def main(device: str) -> None:
    """Run one of two ranks."""
    dist.init_process_group("gloo")
    rank, order = dist.get_rank(), torch.arange(ELEMENTS, device=device)
    values = (order * 7919 % 10007 % (2 * HALF) - HALF).float()
    reduction = QuantizedReduction(lambda *given: [], load_kernel(device), rank, per_node=1)
    (found,) = reduction([SimpleNamespace(ds_numel=ELEMENTS, grad=values * (rank + 1))], torch.float32)
    half = ELEMENTS // 2
    off = float((found - MEAN * values[half * rank :][:half]).abs().max())
    sys.stdout.write(MARK + json.dumps({"rank": rank, "exact": off == 0.0, "off": off}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
