"""What a finished run leaves: the facts of its ranks, evaluation.json, summary.json, and its weights."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from trainer.engine import Engine
from trainer.layout.world import processor_name
from trainer.measuring.exposed import read_exposed_pct
from trainer.measuring.machine_load import sum_up_load
from trainer.measuring.memory_counters import GIB, peak_host_memory_gib
from trainer.measuring.training_memory import TrainingMemory
from trainer.outcome.course import find_target, read_course
from trainer.outcome.summary import build_summary, find_results
from trainer.outcome.tracking import Recorder
from trainer.record.run_directory import write_json
from trainer.run import Run
from trainer.tasks.measures import Evaluation

log = logging.getLogger("trainer")

SENT = ("reductions", "gathers", "exchanges")
"""Of what goes over the wire the element types are told, by these names of trainer.measuring.wire.DTYPES."""


def write_results(
    run: Run,
    resolved: dict[str, Any],
    engine: Engine,
    recorder: Recorder,
    memory: TrainingMemory,
    data_set_bytes: int,
    gpu: dict[str, float | None] | None,
    machine: dict[str, float | None],
    data_order_sha256: str,
    last: dict[str, Any],
    test: Evaluation,
) -> None:
    """Every rank's facts, then on rank 0 evaluation.json and summary.json; collective.

    Args:
        data_set_bytes: of it in the memory of the device that computes.
        gpu: of `Meter.describe`.
        machine: of `MachineLoad.describe`.
    """
    config, world, folder = run.config, run.world, run.folder
    facts = {
        "rank": world.rank,
        "local_rank": world.local_rank,
        "coordinates": run.axes.coordinates(world.rank),
        "host": world.host,
        "node": world.node or None,
        "processor": processor_name(),
        "gpu": gpu,
        "machine": machine,
        "device_type": world.device_type,
        "device_name": world.device_name,
        **_describe_memory(run, engine, memory, data_set_bytes),
        "peak_host_memory_gib": peak_host_memory_gib(memory.counters),
        "state_memory_gib": engine.observed.memory_gib(),
        "dtypes": {
            **engine.observed.dtypes,
            **{name: sorted(recorder.wire.dtypes[name]) if recorder.wire else [] for name in SENT},
            "products": recorder.products.dtypes() if recorder.products else [],
        },
        "collectives_per_step": recorder.wire.operations if recorder.wire else None,
        "collectives_per_axis": recorder.wire.axes if recorder.wire else None,
        "wire_bytes_per_axis": recorder.wire.wire_bytes_per_axis if recorder.wire else None,
        "wire_bytes_per_step": recorder.wire.wire_bytes if recorder.wire else None,
        "data_order_sha256": data_order_sha256,
        "initial_weights_sha256": resolved["initial_weights_sha256"],
        "samples_seen": resolved["steps"] * config.global_batch_size // run.axes.dp,
        "done": True,
    }
    if run.writes:
        folder.release_reserve()
    dist.barrier()
    write_json(folder.rank_facts(world.rank), facts)
    ranks: list[Any] = [None] * world.size
    dist.all_gather_object(ranks, facts)
    if not run.writes:
        return
    write_json(folder.evaluation, test.report("test"))
    course = read_course(folder.metrics, folder.read_world_sizes(), find_target(config))
    course["comm_exposed_pct"] = read_exposed_pct(folder.manifest)
    course |= sum_up_load(ranks)
    summary = build_summary(config, resolved, ranks, recorder.measured, recorder.work, last | course, test)
    write_json(folder.summary, summary)
    recorder.record("result", resolved["steps"], **find_results(summary))


def _describe_memory(run: Run, engine: Engine, memory: TrainingMemory, data_set_bytes: int) -> dict[str, Any]:
    """Peaks of a device without the data set, which is no strategy's; None on a CPU, whose memory has other tenants."""
    micro_batches = run.config.global_batch_size // (run.config.micro_batch_size * run.axes.dp)
    found = memory.describe(engine.observed, data_set_bytes, micro_batches)
    data_set_gib, counted = data_set_bytes / GIB, found is not None and memory.counters.on_device
    peaks = {
        "peak_memory_gib": found["peak_gib"] - data_set_gib if found and counted else None,
        "peak_reserved_gib": found["reserved_gib"] - data_set_gib if found and counted else None,
        "alloc_retries": found["alloc_retries"] if found else None,
    }
    return {**peaks, "data_set_memory_gib": data_set_gib, "training_memory": found}
