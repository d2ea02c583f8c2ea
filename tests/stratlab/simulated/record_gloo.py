"""Records real traces: two gloo ranks of a tiny DDP training on the CPU, with the trainer's labels.

    python -m tests.stratlab.simulated.record_gloo FOLDER

A process of its own, so that torch stays out of the tests' process. Rank 1 is late: its data take 50 ms longer.
"""

import multiprocessing
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

FIRST_STEP, STEPS, WORLD_SIZE, DELAY_S = 10, 3, 2, 0.05
WARMUP = 2  # after the first step DDP rebuilds its buckets and broadcasts them


def train(rank, folder):
    """Records steps 10 to 12, each of two micro-batches."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)),
        bucket_cap_mb=0.1,
    )
    optimizer = torch.optim.AdamW(model.parameters())
    plan = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, profile_memory=True) as profiler:
        for step in range(FIRST_STEP - WARMUP, FIRST_STEP + STEPS):
            with record_function(f"## Training Step {step} ##"):
                train_step(rank, model, optimizer)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))
    dist.barrier()
    dist.destroy_process_group()


def train_step(rank, model, optimizer):
    """Gradients are reduced with the second micro-batch only."""
    for last in (False, True):
        with record_function("## Data Loading ##"):
            inputs, targets = torch.randn(64, 64), torch.randint(0, 10, (64,))
            time.sleep(DELAY_S if rank == 1 and last else 0)
        model.require_backward_grad_sync = last
        with record_function("## Forward Pass ##"):
            loss = functional.cross_entropy(model(inputs), targets)
        with record_function("## Backward Pass ##"):
            loss.backward()
    with record_function("## Optimizer Step ##"):
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, Path(sys.argv[1]))) for rank in range(WORLD_SIZE)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=60)
        process.kill()
    sys.exit(any(process.exitcode != 0 for process in ranks))
