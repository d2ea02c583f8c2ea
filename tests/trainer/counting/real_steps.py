"""The same two steps on real tensors, as the CPU allocator's own record has them (torch.profiler, memory events)."""

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from stratlab_spec.models.model_specs import default_image_size
from stratlab_spec.models.pictures import find_pictures
from stratlab_spec.settings.config import Config
from tests.trainer.runs import run_of
from trainer import strategies
from trainer.data.batches import Batch
from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.memory_estimation.fake_cluster import alone
from trainer.memory_estimation.steps import build_micro_batch, count
from trainer.memory_estimation.timeline import Count
from trainer.models import build_model
from trainer.models.decoder_build import build_decoder

QWEN = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 micro_batch_size=2"
# rows enough that what kernels take inside, which no operator shows, is below the tolerance: some 10 to 50 kB
VIT = "model=vit_tiny dataset=digits image_size=32 micro_batch_size=64 global_batch_size=64"
SECOND = "the second step"
TOLERANCE = 0.002


@dataclass
class Recorded:
    peak: int
    """The most in the second step."""
    between: int
    """Before it."""


def make_config(text: str) -> Config:
    named = dict(setting.split("=", 1) for setting in f"run=x {text}".split())
    return Config.from_env({f"TRAINER_{name.upper()}": value for name, value in named.items()})


def count_it(text: str, ranks: int = 8, rank: int = 0) -> Count:
    """What one rank of a run with these settings would hold, by CUDA's rules."""
    config = make_config(text)
    return count(config, ranks, rank, find_pictures(config))


def compare(text: str, ranks: int = 1, rank: int = 0, fake_group: bool = False) -> None:
    """Asserts that the instrument, with a CPU's rules, counts what the allocator records, within 0.2 %."""
    config = make_config(text)
    counted = count(config, ranks, rank, find_pictures(config), cuda=False, block_bytes=1)
    recorded = record(config, ranks, rank, fake_group)
    for name, found, real in (
        ("peak", counted.peak.total, recorded.peak),
        ("between", counted.between.total, recorded.between),
    ):
        assert abs(found - real) <= TOLERANCE * real, f"{name}: {found} bytes counted, {real} recorded"


def compare_over_gloo(text: str) -> None:
    """One of three records must be equal: of a busy machine one can show too much, and what gloo's thread frees last
    is unseen."""
    from tests.ranks import run_ranks

    for attempt in range(3):
        try:
            return run_ranks(lambda: compare(text), 1)
        except AssertionError as different:
            if attempt == 2 or " recorded" not in str(different):
                raise


def record(config: Config, ranks: int, rank: int, fake_group: bool) -> Recorded:
    """Runs the engine for real, over gloo or over the group that moves nothing."""
    with ExitStack() as stack:
        if fake_group:
            stack.enter_context(alone(config, ranks, rank, ranks))
        else:
            dist.init_process_group("gloo")
            stack.callback(dist.destroy_process_group)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            run_steps(config).close()
    events = recorded.profiler.kineto_results.events()
    (start,) = [event.start_ns() for event in events if event.name() == SECOND]
    memory = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    totals = list(accumulate(size for _, size in memory))
    before = sum(when < start for when, _ in memory)
    return Recorded(max(totals[before - 1 :]), totals[before - 1])


def run_steps(config: Config, per_node: int = 0) -> Engine:
    """Two steps of a new engine, in the process group that is there; the engine, still open."""
    pictures = find_pictures(config)
    run = run_of(config, per_node=per_node)
    if config.is_text:
        model = build_decoder(config, empty=config.strategy == "nd")
    else:
        edge = config.image_size or default_image_size(config)
        model = build_model(config, image_size=edge, channels=pictures.channels, num_labels=pictures.labels)
    engine = strategies.build_engine(run, model, Phases("cpu"))
    del model
    micro_batches = config.global_batch_size // (config.micro_batch_size * run.axes.dp)
    for label in ("the first step", SECOND):
        with record_function(label):
            micro = [build_micro_batch(config, pictures) for _ in range(micro_batches)]
            torch.manual_seed(0)
            engine.train_step(Batch(micro, config.global_batch_size, config.global_batch_size), config.lr)
            del micro
    return engine
