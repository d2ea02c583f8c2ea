"""One rank: settings -> mesh -> data -> model -> engine -> loop -> files. Reads like a table of contents."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from trainer import failures
from trainer.checkpoint.attempt import open_attempt
from trainer.checkpoint.final_weights import export_weights
from trainer.checkpoint.store import Checkpoints
from trainer.data.batches import Share
from trainer.evaluation.in_pods import run as evaluate
from trainer.hardware import World, read_world
from trainer.launch.ledger import read_pod_name
from trainer.launch.node_rank import read_rank
from trainer.launch.peers import leave_mark
from trainer.launch.visibility import refuse
from trainer.layout.mesh import build_mesh, mesh_names, resolve_axes
from trainer.layout.resolve import resolve_layout
from trainer.loop import train
from trainer.measuring.gpu import Meter
from trainer.measuring.phases import Phases
from trainer.measuring.profiler import StepProfiler
from trainer.outcome.final import write_results
from trainer.outcome.progress import Progress
from trainer.outcome.tracking import Recorder
from trainer.record.run_directory import write_json
from trainer.settings.config import Config, ConfigError
from trainer.settings.deepspeed_rules import missing_rank_variables
from trainer.settings.precision import apply_whole_fp32, resolve_precision, uses_tf32
from trainer.settings.schedule import build_plan, profile_first_from
from trainer.shapes.decoder_json import read_shape
from trainer.strategies import build_engine, builds_empty
from trainer.tasks import open_task

log = logging.getLogger("trainer")


def run(config: Config, world: World, launcher: str) -> None:
    """Trains, evaluates and writes the run directory; collective over all ranks.

    Args:
        launcher: identifies the process that started this rank, in attempts.jsonl.
    """
    apply_whole_fp32()
    precision = resolve_precision(config, world.device_type)
    dist.init_process_group(world.backend, timeout=timedelta(seconds=config.collective_timeout_s))
    axes = resolve_axes(config, world.size, world.local_size)
    mesh = build_mesh(axes, world.device_type, mesh_names(config))
    task = open_task(config, Share(axes.dp_rank(world.rank), axes.dp), world.device)
    plan = build_plan(config, task.train_samples)
    model = task.build_model(builds_empty(config, world.rank))
    weights_sha256 = task.hash_weights(model)
    resolved = {
        "world_size": world.size,
        "nodes": world.nodes,
        "processes_per_node": world.local_size,
        "axes": axes.as_dict(),
        **_describe_layout(config, world.size),
        "grad_accum_steps": config.global_batch_size // (config.micro_batch_size * axes.dp),
        "steps": plan.steps,
        "evaluate_every": plan.evaluate_every,
        "profile_first_step": plan.profile_first,
        **task.facts,
        "precision": precision.name,
        "tf32": uses_tf32(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        **task.cost(model),
        "initial_weights_sha256": weights_sha256,
        "device_type": world.device_type,
        "device_name": world.device_name,
        "backend": world.backend,
    }
    attempt = open_attempt(config, world, resolved, launcher)
    folder = attempt.folder

    phases = Phases(world.device_type)
    engine = build_engine(config, mesh, model, phases, precision)
    writes = world.rank == 0
    progress = Progress(plan.steps)
    meter = Meter(world)
    recorder = Recorder(
        *(
            folder.metrics if writes else None,
            attempt.number,
            config.log_every,
            progress.show,
            meter.read,
            axes.world_axis,
            task.train_samples,
        )
    )
    profile_first = profile_first_from(config, plan, attempt.from_step, attempt.traces_complete)
    profiler = StepProfiler(config, profile_first, phases, folder, world.rank)
    checkpoints = Checkpoints(config, plan.steps, world, axes, engine, recorder, attempt)
    checkpoints.load()
    task.start(attempt.from_step)
    if writes and engine.settings:
        write_json(folder.deepspeed, engine.settings)

    def validate(step: int) -> None:
        found = task.evaluate(engine, "validation").measures()
        checkpoints.validation = {"step": step, **found}
        values = {f"validation_{name}": value for name, value in found.items()}
        recorder.record("eval", step, **values, train_time_s=checkpoints.train_time_s())

    first_step = attempt.from_step + 1
    train(
        *(config, plan, first_step, engine, task.next_batch, phases, recorder, profiler),
        *(validate, checkpoints.after_step),
    )
    last = checkpoints.numbers() if writes else {}
    test = task.evaluate(engine, "test")
    export_weights(
        *(config, engine, model, checkpoints.best, plan.steps),
        *(task.model_facts if writes else {}, folder, writes),
    )
    write_results(
        *(config, world, axes, folder, resolved, engine, recorder, meter.describe()),
        *(task.order_sha256, last, test),
    )
    if writes:
        measured = ", ".join(f"{name} {value:.4g}" for name, value in test.measures().items())
        log.info("done: test %s, %.1f s of training", measured, last["train_time_s"])
    recorder.close()
    meter.close()
    dist.barrier()  # the job counts as succeeded when the first pod ends: nobody leaves before the files are there
    engine.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _describe_layout(config: Config, world_size: int) -> dict[str, Any]:
    if config.strategy != "nd":
        return {}
    return {"layout": resolve_layout(config, world_size, read_shape(config)).as_dict()}


def main() -> int:
    """Runs this rank; the return value is the exit code of trainer/failures.py."""
    leave_mark(os.environ)  # all pods have met
    faulthandler.enable()  # a signal from inside a library (SIGSEGV, SIGABRT) leaves the Python stack in the log
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
        config = Config.from_env(os.environ)
        world = read_world(os.environ)
        if world.device_type == "cuda":
            torch.cuda.set_device(world.local_rank)
        elif config.accelerator:  # whatever could be seen from outside, torch has the last word
            refuse(config.accelerator, world.local_size, f"torch {torch.__version__} finds none it can use")
        task = evaluate if config.mode == "evaluate" else run
        task(config, world, os.environ.get("STRATLAB_LAUNCHER", ""))
    except Exception as failure:
        code = failures.exit_code(failure)
        expected = code not in (failures.CRASHED, failures.PEER_LOST)
        log.error("rank %d: %s: %s", rank, failures.reason(code), failure, exc_info=not expected)
        with suppress(OSError):
            get_error_handler().record_exception(failure)  # the launcher's last sentence
        logging.shutdown()
        os._exit(code)  # a process group that waits for a lost peer would hold this rank back
    return failures.DONE


if __name__ == "__main__":
    sys.exit(main())
