"""One rank: settings -> mesh -> data -> model -> engine -> loop -> files. Reads like a table of contents."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer import evaluate_run, failures
from trainer.attempt import open_attempt
from trainer.checkpoint.store import Checkpoints
from trainer.config import Config, ConfigError
from trainer.data import open_data
from trainer.data.batches import Batch, Share, build_batch, evaluation_batches
from trainer.data.images import ImageData, Images
from trainer.data.order import SampleOrder
from trainer.data.residence import build_source, resolve_residence
from trainer.deepspeed_rules import missing_rank_variables
from trainer.engine import Engine
from trainer.evaluation import Evaluation, evaluate
from trainer.gpu import Meter
from trainer.hardware import World, read_world
from trainer.ledger import read_pod_name
from trainer.loop import train
from trainer.mesh import build_mesh, resolve_axes
from trainer.model_shapes import default_image_size
from trainer.models import build_model
from trainer.models.batch_norm import average_running_statistics
from trainer.node_rank import read_rank
from trainer.phases import Phases
from trainer.precision import resolve_precision
from trainer.profiler import StepProfiler
from trainer.progress import Progress
from trainer.provenance import hash_weights
from trainer.results import export_weights, write_results
from trainer.run_directory import write_json
from trainer.schedule import build_plan, profile_first_from
from trainer.strategies import build_engine, builds_empty
from trainer.tracking import Recorder

log = logging.getLogger("trainer")


def run(config: Config, world: World, launcher: str) -> None:
    """Trains, evaluates and writes the run directory; collective over all ranks.

    Args:
        launcher: identifies the process that started this rank, in attempts.jsonl.
    """
    precision = resolve_precision(config, world.device_type)
    dist.init_process_group(world.backend, timeout=timedelta(seconds=config.collective_timeout_s))
    axes = resolve_axes(config, world.size, world.local_size)
    mesh = build_mesh(axes, world.device_type)
    image_size = config.image_size or default_image_size(config)
    data = open_data(config, image_size)
    residence = resolve_residence(config.data_residence, data.train, world.device_type)
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
        "data_residence": residence,
        "precision": precision.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "flops_per_sample": model.flops_per_sample,
        "initial_weights_sha256": weights_sha256,
        "device_type": world.device_type,
        "device_name": world.device_name,
        "backend": world.backend,
    }
    attempt = open_attempt(config, world, resolved, launcher)
    folder = attempt.folder

    phases = Phases(world.device_type)
    engine = build_engine(config, mesh, model, phases, precision)
    source = build_source(data.train, residence, world.device)
    order = SampleOrder(config.seed, len(data.train))
    share = Share(world.rank, axes.dp)
    writes = world.rank == 0
    progress = Progress(plan.steps)
    meter = Meter(world)
    recorder = Recorder(
        *(folder.metrics if writes else None, attempt.number, config.log_every, progress.show, meter.read)
    )
    profile_first = profile_first_from(config, plan, attempt.from_step, attempt.traces_complete)
    profiler = StepProfiler(config, profile_first, phases, folder, world.rank)
    checkpoints = Checkpoints(config, plan.steps, world, axes, engine, recorder, attempt)
    checkpoints.load()
    for step in range(1, attempt.from_step + 1):  # the hash of the order covers the whole run
        order.batch(step, config.global_batch_size)
    if writes and engine.settings:
        write_json(folder.deepspeed, engine.settings)

    def next_batch(step: int) -> Batch:
        return build_batch(
            *(source, order, step, config.global_batch_size, config.micro_batch_size),
            *(share, world.device, config.augment, config.seed),
        )

    def validate(step: int) -> None:
        found = _evaluate(engine, data.validation, config, share, data, world)
        checkpoints.validation = {"step": step, "loss": found.loss, "accuracy_pct": found.accuracy_pct}
        recorder.record("eval", step, validation_loss=found.loss, validation_accuracy_pct=found.accuracy_pct)

    first_step = attempt.from_step + 1
    train(
        *(config, plan, first_step, engine, next_batch, phases, recorder, profiler),
        *(validate, checkpoints.after_step),
    )
    last = checkpoints.numbers() if writes else {}
    test = _evaluate(engine, data.test, config, share, data, world)
    export_weights(
        *(config, engine, model, checkpoints.best, plan.steps),
        *(_model_facts(data, image_size), folder, writes),
    )
    write_results(
        *(config, world, folder, resolved, engine, recorder),
        *(order.sha256, last, test, data.class_names),
    )
    if writes:
        log.info("done: test accuracy %.2f %%, %.1f s of training", test.accuracy_pct, last["train_time_s"])
    recorder.close()
    meter.close()
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


def _model_facts(data: ImageData, image_size: int) -> dict[str, Any]:
    names = data.class_names
    return {
        "image_size": image_size,
        "channels": data.channels,
        "num_labels": len(names),
        "class_names": names,
    }


def _evaluate(
    engine: Engine, images: Images, config: Config, share: Share, data: ImageData, world: World
) -> Evaluation:
    average_running_statistics(engine.module)
    batches = evaluation_batches(images, config.micro_batch_size, share, world.device)
    return evaluate(engine.evaluate, batches, len(data.class_names), world.device)


def main() -> int:
    """Runs this rank; the return value is the exit code of trainer/failures.py."""
    problems = missing_rank_variables(os.environ)
    rank = 0 if problems else read_rank(os.environ, read_pod_name(os.environ))
    os.environ["RANK"] = str(rank)  # read by torch and DeepSpeed as well
    level = logging.INFO if rank == 0 else logging.WARNING
    console = logging.StreamHandler(sys.stdout)
    console.setLevel(level)
    console.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[console], force=True)
    try:
        if problems:
            raise ConfigError(problems)
        world = read_world(os.environ)
        if world.device_type == "cuda":
            torch.cuda.set_device(world.local_rank)
        config = Config.from_env(os.environ)
        task = evaluate_run.run if config.mode == "evaluate" else run
        task(config, world, os.environ.get("STRATLAB_LAUNCHER", ""))
    except Exception as failure:
        code = failures.exit_code(failure)
        expected = code not in (failures.CRASHED, failures.PEER_LOST)
        log.error("rank %d: %s: %s", rank, failures.reason(code), failure, exc_info=not expected)
        logging.shutdown()
        os._exit(code)  # a process group that waits for a lost peer would hold this rank back
    return failures.DONE


if __name__ == "__main__":
    sys.exit(main())
