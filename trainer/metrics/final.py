"""Write the results of a finished run: the facts of its ranks, evaluation.json and summary.json.

The summary includes sums over the lines of metrics.jsonl of all attempts: energy, use of the GPUs, time to a target.
Rank 0 reads the lines once, at the end: only they hold the earlier attempts of a run that was restarted.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from stratlab_spec.run_directory import write_json
from stratlab_spec.schedule import TimedSteps, TrainedStep, find_timed_steps, read_step
from stratlab_spec.settings.config import Config
from stratlab_spec.step_parts import COMM_EXPOSED_PCT
from stratlab_spec.trace_events import read_exposed_pct
from trainer.distributed.world import gather_objects, processor_name
from trainer.engine import Engine
from trainer.measuring.hardware import MachineLoad, sum_up_load
from trainer.measuring.held_tensors import GIB
from trainer.measuring.memory import TrainingMemory, peak_host_memory_gib
from trainer.metrics.summary import build_summary, find_results
from trainer.metrics.tracking import Recorder
from trainer.run import Run
from trainer.tasks.evaluation import Evaluation

log = logging.getLogger("trainer")

OF_A_GPU = re.compile(r"rank(\d+)_gpu_(power_w|utilisation_pct|temperature_c)")
JOULES_PER_WH = 3600.0


class _Line(msgspec.Struct):
    """The fields read of every line; lines of kind system and eval are decoded whole."""

    t: float
    attempt: int
    step: int
    kind: str
    step_time_ms: float = 0.0


def build_course(
    lines: Iterable[bytes], world_sizes: dict[int, int], target: tuple[str, float] | None
) -> dict[str, Any]:
    """Return the course of a run; None for each number that is not known.

    Args:
        lines: whole ones, of metrics.jsonl.
        world_sizes: attempt -> number of its ranks; energy is unknown if a rank did not report its power.
        target: of `find_target`.

    Returns:
        train_energy_wh: power of all GPUs, summed over the ranks and the time from the first step of each attempt to
            its last line, including repeated steps.
        train_power_w: that energy over that time.
        not_finite_steps: steps of all attempts with a loss or gradient that was not finite.
        gpu_utilisation_pct: mean over ranks and time; gpu_temperature_c: of the hottest rank.
        epoch_time_s: mean over the whole epochs; train_accuracy_pct: of the last one.
        time_to_target_s: seconds of training until the first validation that reached the target.
    """
    decode = msgspec.json.Decoder(_Line).decode
    since: dict[int, float] = {}
    seconds = joules = used = 0.0
    hottest: list[float] = []
    reached: dict[int, float | None] = {}
    epochs: dict[int, dict[str, Any]] = {}
    not_finite: dict[int, int] = {}
    broken = 0
    for raw in lines:
        try:
            line = decode(raw)
        except msgspec.MsgspecError:  # a killed process or a full volume has cut it; the spool has ended it
            broken += 1
            continue
        since.setdefault(line.attempt, line.t - line.step_time_ms / 1e3)
        if line.kind not in ("eval", "event", "epoch", "system"):
            continue
        content = msgspec.json.decode(raw)
        if line.kind == "eval" and target:
            reached[line.step] = _read_target(content, *target)
        elif line.kind == "event" and is_number(count := content.get("not_finite_steps")):
            not_finite[line.attempt] = max(
                not_finite.get(line.attempt, 0), int(count)
            )  # of the attempt until here
        elif line.kind == "epoch":
            if isinstance(content.get("epoch"), int) and is_number(content.get("epoch_time_s")):
                epochs[content["epoch"]] = content
        elif line.kind == "system" and any((gpus := _read_gpus(content)).values()):
            # else the line belongs to a checkpoint, or to a CPU
            lasted, since[line.attempt] = line.t - since[line.attempt], line.t
            ranks = world_sizes.get(line.attempt, 0)
            seconds += lasted
            joules += lasted * _whole(sum, gpus["power_w"], ranks)
            used += lasted * _whole(sum, gpus["utilisation_pct"], ranks) / max(ranks, 1)
            hottest.append(_whole(max, gpus["temperature_c"], ranks))
    if broken:
        log.warning("metrics.jsonl: %d lines are incomplete and do not count", broken)
    course = {
        "train_energy_wh": joules / JOULES_PER_WH,
        "train_power_w": joules / seconds if seconds else math.nan,
        "gpu_utilisation_pct": used / seconds if seconds else math.nan,
        "gpu_temperature_c": _whole(max, hottest, len(hottest)),
    }
    times = (reached[step] for step in sorted(reached) if reached[step] is not None)
    return {
        **{name: value if seconds and math.isfinite(value) else None for name, value in course.items()},
        "not_finite_steps": sum(not_finite.values()),
        "epoch_time_s": sum(e["epoch_time_s"] for e in epochs.values()) / len(epochs) if epochs else None,
        "train_accuracy_pct": epochs[max(epochs)].get("epoch_train_accuracy_pct") if epochs else None,
        "time_to_target_s": next(times, None),
    }


def find_target(config: Config) -> tuple[str, float] | None:
    """Return (name in the lines of kind eval, value to reach), or None if no target is set."""
    if config.target_accuracy_pct:
        return "validation_accuracy_pct", config.target_accuracy_pct
    return ("validation_perplexity", config.target_perplexity) if config.target_perplexity else None


def _read_target(line: dict[str, Any], name: str, value: float) -> float | None:
    """Return seconds of training up to this validation if it reached the target."""
    found = line.get(name)
    if not is_number(found) or not (found >= value if name.endswith("accuracy_pct") else found <= value):
        return None
    return line.get("train_time_s")


def _read_gpus(line: dict[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"power_w": [], "utilisation_pct": [], "temperature_c": []}
    for name, value in line.items():
        if (match := OF_A_GPU.fullmatch(name)) and is_number(value):
            found[match[2]].append(value)
    return found


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a number; a bool is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(add: Any, values: list[float], ranks: int) -> float:
    """Return NaN unless every rank has reported a value: half of the power is not the power."""
    return float(add(values)) if values and len(values) == ranks else math.nan


SENT = ("reductions", "gathers", "exchanges")
"""Names in trainer.measuring.operators.DTYPES of the operators whose element types on the wire are recorded."""


def write_results(
    run: Run,
    resolved: dict[str, Any],
    engine: Engine,
    recorder: Recorder,
    memory: TrainingMemory,
    data_set_bytes: int,
    gpu: dict[str, float | None] | None,
    machine: MachineLoad,
    transport: dict[str, Any] | None,
    data_order_sha256: str,
    last: dict[str, Any],
    test: Evaluation,
) -> None:
    """Write every rank's facts, then on rank 0 evaluation.json and summary.json; collective.

    Args:
        data_set_bytes: its part in the memory of the computing device.
        gpu: of `Meter.describe`.
        machine: since before the first step.
        transport: of `observe_transport`.
    """
    config, world, folder = run.config, run.world, run.folder
    wire = recorder.wire
    timed = TimedSteps(())
    if run.writes:
        folder.release_reserve()
        timed = find_timed_steps(_read_steps(folder.metrics), world.device_type != "cpu")
    spans = gather_objects(timed.find_span_s())  # and every rank waits for the reserve
    facts = {
        "rank": world.rank,
        "local_rank": world.local_rank,
        "coordinates": run.axes.coordinates(world.rank),
        "host": world.host,
        "node": world.node or None,
        "processor": processor_name(),
        "gpu": gpu,
        "machine": machine.describe(next(filter(None, spans), None)),
        "transport": transport,
        "device_type": world.device_type,
        "device_name": world.device_name,
        **_describe_memory(run, engine, memory, data_set_bytes),
        "peak_host_memory_gib": peak_host_memory_gib(memory.counters),
        "state_memory_gib": engine.observed.memory_gib(),
        "dtypes": {
            **engine.observed.dtypes,
            **{name: sorted(wire.dtypes[name]) if wire else [] for name in SENT},
            "products": recorder.products.dtypes() if recorder.products else [],
        },
        "collectives_per_step": wire.operations if wire else None,
        "collectives_per_axis": wire.axes if wire else None,
        "wire_bytes_per_axis": wire.wire_bytes_per_axis if wire else None,
        "wire_bytes_per_step": wire.wire_bytes if wire else None,
        "data_order_sha256": data_order_sha256,
        "initial_weights_sha256": resolved["initial_weights_sha256"],
        "samples_seen": resolved["steps"] * config.global_batch_size // run.axes.dp,
        "done": True,
    }
    write_json(folder.rank_facts(world.rank), facts)
    ranks = gather_objects(facts)
    if not run.writes:
        return
    write_json(folder.evaluation, test.report("test"))
    with open(folder.metrics, "rb") as file:
        whole = (line for line in file if line.endswith(b"\n"))
        course = build_course(whole, folder.read_world_sizes(), find_target(config))
    course[COMM_EXPOSED_PCT] = read_exposed_pct(folder.manifest)
    course |= sum_up_load(ranks)
    summary = build_summary(config, resolved, ranks, timed, last | course, test)
    write_json(folder.summary, summary)
    recorder.record("result", resolved["steps"], **find_results(summary))


def _read_steps(path: Path) -> Iterator[TrainedStep]:
    with open(path, "rb") as file:
        for raw in file:
            if b'"train"' not in raw or not raw.endswith(b"\n"):
                continue
            try:
                step = read_step(msgspec.json.decode(raw))
            except msgspec.MsgspecError:  # `build_course` counts them
                continue
            if step:
                yield step


def _describe_memory(run: Run, engine: Engine, memory: TrainingMemory, data_set_bytes: int) -> dict[str, Any]:
    """Return the device's peaks without the data set, which no strategy changes; None on a CPU, which other programs
    share.
    """
    found = memory.describe(engine.observed, data_set_bytes, run.plan.micro_batches)
    data_set_gib, on_device = data_set_bytes / GIB, memory.counters.on_device
    return {
        "peak_memory_gib": found["peak_gib"] - data_set_gib if found and on_device else None,
        "peak_reserved_gib": found["reserved_gib"] - data_set_gib if found and on_device else None,
        "alloc_retries": found["alloc_retries"] if found else None,
        "data_set_memory_gib": data_set_gib,
        "training_memory": found,
    }
