"""One rank: settings -> mesh -> data -> model -> engine -> loop -> files. Reads like a table of contents."""

from __future__ import annotations

import logging
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer import failures
from trainer.config import Config
from trainer.data import open_data
from trainer.data.batches import Batch, Share, build_batch, evaluation_batches
from trainer.data.images import ImageData, Images
from trainer.data.order import SampleOrder
from trainer.engine import Engine
from trainer.evaluate import Evaluation, evaluate
from trainer.hardware import World, peak_device_memory_gib, peak_host_memory_gib, read_world
from trainer.loop import train
from trainer.mesh import build_mesh, resolve_axes
from trainer.model_shapes import default_image_size
from trainer.models import build_model
from trainer.phases import Phases
from trainer.precision import resolve_precision
from trainer.profiler import StepProfiler
from trainer.progress import Progress
from trainer.provenance import describe_run, hash_weights
from trainer.run_directory import RunDirectory, write_json
from trainer.schedule import build_plan
from trainer.strategies import build_engine, builds_empty
from trainer.summary import build_summary
from trainer.tracking import Recorder

log = logging.getLogger("trainer")


def run(config: Config, world: World, launcher: str) -> None:
    """Trains, evaluates and writes the run directory; collective over all ranks.

    Args:
        launcher: identifies the process that started this rank, in attempts.jsonl.
    """
    precision = resolve_precision(config, world.device_type)
    dist.init_process_group(world.backend, timeout=timedelta(seconds=config.collective_timeout_s))
    axes = resolve_axes(config, world.size)
    mesh = build_mesh(axes, world.device_type)
    image_size = config.image_size or default_image_size(config)
    data = open_data(config, image_size)
    plan = build_plan(config, len(data.train))
    model = build_model(
        config,
        image_size=image_size,
        channels=data.channels,
        num_labels=len(data.class_names),
        empty=builds_empty(config, world.rank),
    )
    weights_sha256 = _broadcast(hash_weights(model) if world.rank == 0 else None)
    resolved = {
        "world_size": world.size,
        "nodes": world.nodes,
        "processes_per_node": world.local_size,
        "axes": axes.as_dict(),
        "grad_accum_steps": config.global_batch_size // (config.micro_batch_size * axes.dp),
        "steps": plan.steps,
        "evaluate_every": plan.evaluate_every,
        "profile_first_step": plan.profile_first,
        **_data_facts(data, image_size),
        "precision": precision.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "flops_per_sample": model.flops_per_sample,
        "initial_weights_sha256": weights_sha256,
        "device_type": world.device_type,
        "device_name": world.device_name,
        "backend": world.backend,
    }
    folder, attempt = _open_folder(config, world, resolved, launcher)

    phases = Phases(world.device_type)
    engine = build_engine(config, mesh, model, phases, precision)
    order = SampleOrder(config.seed, len(data.train))
    share = Share(world.rank, axes.dp)
    writes = world.rank == 0
    progress = Progress(plan.steps)
    recorder = Recorder(folder.metrics if writes else None, attempt, config.log_every, progress.show)
    profiler = StepProfiler(config, plan.profile_first, phases, folder, world.rank)
    validation: list[Evaluation] = []

    def next_batch(step: int) -> Batch:
        return build_batch(
            data.train, order, step, config.global_batch_size, config.micro_batch_size, share, world.device
        )

    def validate(step: int) -> None:
        found = _evaluate(engine, data.validation, config, share, data, world)
        validation[:] = [found]
        recorder.record("eval", step, validation_loss=found.loss, validation_accuracy_pct=found.accuracy_pct)
        recorder.record(
            "system",
            step,
            peak_host_memory_gib=peak_host_memory_gib(),
            peak_memory_gib=peak_device_memory_gib(world),
        )

    began = time.monotonic()
    train(config, plan, engine, next_batch, phases, recorder, profiler, validate)
    train_time_s = time.monotonic() - began
    test = _evaluate(engine, data.test, config, share, data, world)

    facts = {
        "rank": world.rank,
        "local_rank": world.local_rank,
        "host": world.host,
        "device_type": world.device_type,
        "device_name": world.device_name,
        "peak_memory_gib": peak_device_memory_gib(world),
        "peak_host_memory_gib": peak_host_memory_gib(),
        "state_memory_gib": engine.observed.memory_gib(),
        "dtypes": engine.observed.dtypes,
        "data_order_sha256": order.sha256,
        "initial_weights_sha256": weights_sha256,
        "samples_seen": plan.steps * config.global_batch_size // axes.dp,
        "done": True,
    }
    write_json(folder.rank_facts(world.rank), facts)
    ranks: list[Any] = [None] * world.size
    dist.all_gather_object(ranks, facts)
    if writes:
        last = {
            "train_loss": recorder.last["loss"],
            "validation_loss": validation[-1].loss,
            "validation_accuracy_pct": validation[-1].accuracy_pct,
            "skipped_steps": recorder.skipped_steps,
            "train_time_s": train_time_s,
        }
        write_json(folder.evaluation, test.report("test", data.class_names))
        summary = build_summary(config, resolved, ranks, recorder.measured, recorder.samples, last, test)
        write_json(folder.summary, summary)
        log.info("done: test accuracy %.2f %%, %.1f s of training", test.accuracy_pct, train_time_s)
    recorder.close()
    dist.barrier()  # the job counts as succeeded when the first pod ends: nobody leaves before the files are there
    engine.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _broadcast(value: Any) -> Any:
    """Rank 0's value, on every rank; collective."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def _data_facts(data: ImageData, image_size: int) -> dict[str, Any]:
    return {
        "train_samples": len(data.train),
        "validation_samples": len(data.validation),
        "test_samples": len(data.test),
        "num_labels": len(data.class_names),
        "image_size": image_size,
        "image_channels": data.channels,
        "data_sha256": data.sha256,
    }


def _evaluate(
    engine: Engine, images: Images, config: Config, share: Share, data: ImageData, world: World
) -> Evaluation:
    batches = evaluation_batches(images, config.micro_batch_size, share, world.device)
    return evaluate(engine, batches, len(data.class_names), world.device)


def _open_folder(
    config: Config, world: World, resolved: dict[str, Any], launcher: str
) -> tuple[RunDirectory, int]:
    """Rank 0 makes the run directory and starts an attempt; every rank then logs into it."""
    folder = RunDirectory(config.results, config.comparison, config.run)
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, world.host)
    attempt = [0]
    if world.rank == 0:
        folder.create()
        attempt = [1 + max((line["attempt"] for line in folder.read_attempts()), default=0)]
        if attempt[0] == 1:
            write_json(folder.config, describe_run(config, resolved, hosts))
        folder.append_attempt("started", attempt[0], launcher, from_step=0, host=world.host)
    dist.broadcast_object_list(attempt)
    handler = logging.FileHandler(folder.rank_log(world.rank))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    log.info(
        "%s: attempt %d, rank %d of %d on %s, %s",
        *(config.run, attempt[0], world.rank, world.size, world.device_name, world.backend),
    )
    return folder, attempt[0]


def main() -> int:
    """Runs this rank; the return value is the exit code of trainer/failures.py."""
    rank = int(os.environ["RANK"])
    level = logging.INFO if rank == 0 else logging.WARNING
    console = logging.StreamHandler(sys.stdout)
    console.setLevel(level)
    console.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[console], force=True)
    try:
        world = read_world(os.environ)
        if world.device_type == "cuda":
            torch.cuda.set_device(world.local_rank)
        run(Config.from_env(os.environ), world, os.environ.get("STRATLAB_LAUNCHER", ""))
    except Exception as failure:
        code = failures.exit_code(failure)
        expected = code not in (failures.CRASHED, failures.PEER_LOST)
        log.error("rank %d: %s: %s", rank, failures.reason(code), failure, exc_info=not expected)
        logging.shutdown()
        os._exit(code)  # a process group that waits for a lost peer would hold this rank back
    return failures.DONE


if __name__ == "__main__":
    sys.exit(main())
