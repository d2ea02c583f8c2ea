"""One rank: settings -> mesh -> data -> model -> engine -> loop -> files. Reads like a table of contents."""

from __future__ import annotations

from trainer.launch.stop import end_with_launcher

if __name__ == "__main__":
    end_with_launcher()  # before the slow imports

import faulthandler
import logging
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import NotFinite, Stopped
from stratlab_spec.memory.fit import as_laid_out
from stratlab_spec.memory.prediction import FORECAST, forecast_memory
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import count_batch_norm_samples
from stratlab_spec.plan import confirm_plans, confirm_samples, read_plan
from stratlab_spec.registry import INITIAL_WEIGHTS, describe_starting_weights
from stratlab_spec.run_directory import RUNGS, read_own_rungs, write_json
from stratlab_spec.schedule import profile_first_from
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import describe_quantized, missing_rank_variables, resolve_knobs
from stratlab_spec.settings.rules import snapshot_problems
from stratlab_spec.settings.wording import SpellingFormatter
from stratlab_spec.step_time.step_forecast import STEP_FORECAST, describe_forecast, forecast_step_time
from trainer.checkpoint.attempt import export_weights, open_attempt
from trainer.checkpoint.store import Checkpoints
from trainer.data.batches import Share
from trainer.distributed.consensus import Agreement, listen, open_disk_group
from trainer.distributed.nccl_transport import hide_log
from trainer.distributed.world import (
    World,
    apply_whole_fp32,
    gather_objects,
    open_process_group,
    read_world,
    resolve_precision,
    uses_tf32,
)
from trainer.evaluation.distributed import evaluate_run
from trainer.fault_injection import plant_faults
from trainer.hang_detection.heartbeat import STEP, Pulse, open_pulse
from trainer.hang_detection.watchdog_thread import WatchdogThread
from trainer.launch.ledger import read_pod_name
from trainer.launch.rendezvous import leave_mark, read_rank
from trainer.launch.torchrun import refuse
from trainer.loop import train
from trainer.measuring.hardware import MachineLoad, Meter
from trainer.measuring.held_tensors import Census
from trainer.measuring.links import observe_transport
from trainer.measuring.memory import TrainingMemory, open_counters
from trainer.measuring.phases import Phases
from trainer.measuring.profiler import StepProfiler
from trainer.metrics.final import write_results
from trainer.metrics.progress import ProgressLog
from trainer.metrics.tracking import Recorder
from trainer.metrics.training_failures import Guard, Holders, explain_out_of_memory
from trainer.run import Run, build_run
from trainer.strategies import build_engine, builds_empty
from trainer.tasks import Task, open_task

log = logging.getLogger("trainer")


def train_run(config: Config, world: World, launcher: str, pulse: Pulse) -> None:
    """Train, evaluate and write the run directory; collective over all ranks.

    Args:
        launcher: identifies the process that started this rank, in attempts.jsonl.
        pulse: the rank's heartbeat.
    """
    if problems := snapshot_problems(config, gpu=world.device_type == "cuda"):  # a GPU that torch cannot use
        raise ConfigError(problems)
    apply_whole_fp32()
    precision = resolve_precision(config, world.device_type)
    plan = read_plan(config, world.size, os.environ)
    on_cpu = world.device_type == "cpu"
    watchdog = WatchdogThread(pulse, config.collective_timeout_s, samples_forward=on_cpu)
    watchdog.start()
    nccl_log = hide_log(os.environ) if world.backend == "nccl" and world.size > 1 else None
    open_process_group(world, config.collective_timeout_s)
    plan = confirm_plans(gather_objects(plan))
    task = open_task(config, Share(plan.axes.dp_rank(world.rank), plan.axes.dp), world.device)
    confirm_samples(plan, task.train_samples)
    run = build_run(config, world, plan, precision, pulse=pulse)
    model = task.build_model(builds_empty(config, world.rank))
    model.teacher = task.build_teacher(precision, pulse, run.axes.computes_loss(world.rank))
    resolved = describe_resolved(run, task, model)
    if rungs := read_own_rungs(os.environ):
        resolved[RUNGS] = rungs
    asked = as_laid_out(config, plan.layout)
    if forecast := forecast_memory(asked, world.size, world.local_size, rules=world.device_type):
        resolved[FORECAST] = forecast.as_dict()
    device_name = resolved["device_name"]
    resolved[STEP_FORECAST] = forecast_step_time(asked, world.size, world.local_size, device_name)
    if run.writes and world.device_type == "cuda":
        log.info("foreseen: a step takes %s", describe_forecast(resolved[STEP_FORECAST]))
    disk = open_disk_group(config.collective_timeout_s)
    attempt = open_attempt(run, resolved, launcher, disk)

    phases = Phases(world.device_type)
    watchdog.phase = phases.name_open
    engine = build_engine(run, model, phases)
    if model.teacher:
        engine.observed.add("teacher", model.teacher.tensors())
    counters = open_counters(world)
    census = None
    if forecast and counters.on_device:
        census = Census(engine.observed, world.device_type, _logit_widths(run, task))
    memory = TrainingMemory(counters, phases, attempt.from_step + 1, run.plan.steps, census)
    meter, machine = Meter(world, memory), MachineLoad(local_rank=world.local_rank)

    def read_system() -> list[float]:
        machine.sample()
        return meter.read()

    recorder = Recorder(
        run.folder.metrics if run.writes else None,
        attempt.number,
        config.log_every,
        on_flush=ProgressLog(run.plan.steps).show,
        read_system=read_system,
        world_axis=run.axes.world_axis,
        epoch_samples=task.train_samples,
        guard=Guard(config.on_not_finite, precision.scales_loss, world.node),
        nodes=attempt.nodes,
        waited_share=watchdog.waited_share if on_cpu else None,
        step_measures=model.step_measures,
    )
    profile_first = profile_first_from(config, run.plan, attempt.from_step, attempt.traces_complete)
    profiler = StepProfiler(run, profile_first, phases)
    agreement = Agreement(config.collective_timeout_s, attempt.from_step)
    checkpoints = Checkpoints(run, engine, recorder, attempt, disk)
    checkpoints.load()
    task.start(attempt.from_step)
    if run.writes and engine.settings:
        write_json(run.folder.deepspeed, engine.settings)

    holders = Holders(
        memory.counters,
        engine.observed,
        engine.module,
        data_set=lambda: task.held_bytes,
        phase=phases.name_open,
        step=lambda: pulse.words[STEP],
    )

    def validate(step: int) -> None:
        found = task.evaluate(engine, "validation", agreement.end_batch).measures()
        checkpoints.validation = {"step": step, **found}
        values = {f"validation_{name}": value for name, value in found.items()}
        recorder.record("eval", step, **values, train_time_s=checkpoints.train_time_s())

    transport: dict[str, Any] | None = None

    def save(step: int) -> None:
        nonlocal transport
        if nccl_log and step == attempt.from_step + 1:
            transport, slow = observe_transport(world, nccl_log, disk)
            for sentence in slow if run.writes else []:
                log.warning("%s", sentence)
                recorder.record("event", step, name="transport", text=sentence)
        checkpoints.after_step(step, agreement.save_agreed)
        if checkpoints.is_wanted():
            agreement.want_save()

    listen(agreement)
    try:
        if checkpoints.owes_validation():
            validate(attempt.from_step)
            checkpoints.after_step(attempt.from_step)
        with explain_out_of_memory(run, holders):
            train(
                run,
                attempt.from_step + 1,
                engine,
                next_batch=plant_faults(run, attempt.number, task.next_batch),
                phases=phases,
                memory=memory,
                recorder=recorder,
                profiler=profiler,
                agreement=agreement,
                validate=validate,
                after_step=save,
            )
        last = checkpoints.numbers() | recorder.describe_straggler() if run.writes else {}
        test = task.evaluate(engine, "test", agreement.end_batch)  # while the last checkpoint is written
        agreement.ask_now()
    except Stopped:
        checkpoints.commit_now(agreement.step)
        agreement.leave()
        raise
    except NotFinite:
        checkpoints.finish()  # of an earlier step: the last good state
        raise
    checkpoints.finish()
    if checkpoints.is_kept:
        export_weights(run, engine, model, checkpoints.best, task.model_facts if run.writes else {})
    write_results(
        run,
        resolved,
        engine,
        recorder,
        memory,
        data_set_bytes=task.held_bytes,
        gpu=meter.describe(),
        machine=machine,
        transport=transport,
        data_order_sha256=task.order_sha256,
        last=last,
        test=test,
    )
    if run.writes:
        checkpoints.retire()
        measured = ", ".join(f"{name} {value:.4g}" for name, value in test.measures().items())
        log.info("done: test %s, %.1f s of training", measured, last["train_time_s"])
    recorder.close()
    meter.close()
    dist.barrier()  # the job counts as succeeded when the first pod ends: all wait until the files exist
    engine.close()
    watchdog.stop()
    if dist.is_initialized():
        dist.destroy_process_group()


def describe_resolved(run: Run, task: Task, model: nn.Module) -> dict[str, Any]:
    """Return the resolved settings, for `resolved` in config.json; collective."""
    config, world, plan = run.config, run.world, run.plan
    batch_norm_samples = None if config.is_text else count_batch_norm_samples(config, run.axes.dp)
    return {
        "world_size": world.size,
        "nodes": world.nodes,
        "processes_per_node": world.local_size,
        "axes": run.axes.as_dict(),
        **({"layout": plan.layout.as_dict()} if plan.layout else {}),
        "grad_accum_steps": plan.micro_batches,
        **({} if batch_norm_samples is None else {"batch_norm_samples": batch_norm_samples}),
        "knobs": resolve_knobs(config, run.axes.pp, shards=run.axes.shards),
        "steps": plan.steps,
        "evaluate_every": plan.evaluate_every,
        "profile_first_step": plan.profile_first,
        **task.facts,
        "precision": run.precision.name,
        "tf32": uses_tf32(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        **task.cost(model),
        **task.teacher_facts,
        **({"attention": _describe_attention(run)} if config.is_text else {}),
        **({"quantized": _describe_zeropp(run, model)} if config.strategy == "zeropp" else {}),
        INITIAL_WEIGHTS: describe_starting_weights(config),
        "initial_weights_sha256": task.hash_weights(model, run.pulse),
        "device_type": world.device_type,
        "device_name": world.device_name,
        "backend": world.backend,
    }


def _logit_widths(run: Run, task: Task) -> set[int]:
    """Return how many classes, or words, a row of logits has on this rank: all, or its part of them."""
    classes = read_shape(run.config).vocab if run.config.is_text else int(task.facts["num_labels"])
    return {classes, -(-classes // run.axes.tp)}


def _describe_attention(run: Run) -> str:
    from trainer.models.packing import describe_attention

    shape, world = read_shape(run.config), run.world
    return describe_attention(run.config, shape, world.device, run.precision.products_dtype, run.axes.cp)


def _describe_zeropp(run: Run, model: nn.Module) -> dict[str, dict[str, Any]]:
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    parts = run.config.zeropp.split(",")
    return describe_quantized(parts, sizes, run.axes.dp_shard, run.config.persistent_elements)


def main() -> int:
    """Run this rank; the return value is the exit code of stratlab_spec/exit_codes.py."""
    leave_mark(os.environ)  # all pods have met
    faulthandler.enable()  # a signal from inside a library (SIGSEGV, SIGABRT) leaves the Python stack in the log
    problems = missing_rank_variables(os.environ)
    rank = 0 if problems else read_rank(os.environ, read_pod_name(os.environ))
    os.environ["RANK"] = str(rank)  # read by torch and DeepSpeed as well
    level = logging.INFO if rank == 0 else logging.WARNING
    console = logging.StreamHandler(sys.stdout)
    console.setLevel(level)
    console.setFormatter(SpellingFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[console], force=True)
    try:
        if problems:
            raise ConfigError(problems)
        config = Config.from_env(os.environ)
        world = read_world(os.environ)
        if world.device_type == "cuda":
            torch.cuda.set_device(world.local_rank)
        elif config.accelerator:  # torch decides, even if devices were visible from outside
            refuse(
                config.accelerator,
                world.local_size,
                f"torch {torch.__version__} cannot use any [SL-torch-no-accelerator]",
            )
        work = evaluate_run if config.mode == "evaluate" else train_run
        pulse = open_pulse(os.environ, world.local_rank, world.rank)
        work(config, world, os.environ.get("STRATLAB_LAUNCHER", ""), pulse)
    except Exception as failure:
        code = failures.exit_code(failure)
        stack = not failures.is_told_in_a_sentence(failure)
        log.error("rank %d: %s: %s", rank, failures.reason(code), failure, exc_info=stack)
        with suppress(OSError):
            get_error_handler().record_exception(failure)  # the launcher's last sentence
        leave(code)  # a process group that waits for a lost peer would hold this rank back
    return failures.DONE


def leave(code: int) -> NoReturn:
    """End the rank without the interpreter's own shutdown, after all its output is written.

    In that shutdown a rank that had finished its work once ended with SIGSEGV ("terminate called without an active
    exception": threads of libraries that were not joined; torch 2.13, gloo, fsdp).
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
