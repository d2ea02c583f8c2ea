"""`mode: evaluate` in the pods: evaluate the test split on all ranks and write evaluation.json."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from stratlab_spec.run_directory import RunDirectory, write_json
from stratlab_spec.settings.config import Config
from trainer.checkpoint.attempt import RankLog
from trainer.data.batches import Share
from trainer.data.files import evaluated
from trainer.distributed.world import World, apply_whole_fp32, open_process_group
from trainer.hang_detection.heartbeat import Pulse
from trainer.hang_detection.rank_zero_task import do_alone
from trainer.hang_detection.watchdog_thread import WatchdogThread
from trainer.measuring.memory import peak_device_memory_gib, peak_host_memory_gib
from trainer.metrics.summary import FROM_CONFIG
from trainer.metrics.tracking import Recorder
from trainer.run import describe_run
from trainer.tasks import open_task

log = logging.getLogger("trainer")
RESOLVED = ("world_size", "nodes", "backend", "device_type", "device_name", "precision", "parameters")
"""Resolved facts that a summary repeats."""


def evaluate_run(config: Config, world: World, launcher: str, pulse: Pulse) -> None:
    """Evaluate exported weights; collective.

    In the folder of a trained run, summary and attempts stay unchanged; only evaluation.json is written.
    """
    config = evaluated(config)
    apply_whole_fp32()
    watchdog = WatchdogThread(pulse, config.collective_timeout_s)
    watchdog.start()
    open_process_group(world, config.collective_timeout_s)
    folder = RunDirectory(config.results, config.comparison, config.run)
    task = open_task(config, Share(world.rank, world.size), world.device)
    resolved: dict[str, Any] = {
        "world_size": world.size,
        "nodes": world.nodes,
        "processes_per_node": world.local_size,
        "axes": {},
        **task.facts,
        "device_type": world.device_type,
        "device_name": world.device_name,
        "backend": world.backend,
    }
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, world.host)
    attempt = do_alone(
        "opening the attempt",
        lambda: _open(config, folder, resolved, hosts, launcher),
        pulse,
        config.collective_timeout_s,
    )
    if attempt:
        logging.getLogger().addHandler(RankLog(folder.rank_log(world.rank)))
    log.info("%s: test split under the weights in %s", config.run, config.model_path)
    found, facts = task.judge()
    if attempt:
        seen = {
            "rank": world.rank,
            "host": world.host,
            "device_type": world.device_type,
            "device_name": world.device_name,
            "peak_memory_gib": peak_device_memory_gib(world),
            "peak_host_memory_gib": peak_host_memory_gib(),
            "done": True,
        }
        write_json(folder.rank_facts(world.rank), seen)
    dist.barrier()
    if world.rank == 0:
        measures = {f"test_{name}": value for name, value in found.measures().items()}
        write_json(folder.evaluation, found.report("test") | {"weights": config.model_path})
        if attempt:
            recorder = Recorder(folder.metrics, attempt, config.log_every)
            recorder.record("eval", 0, **measures)
            recorder.close()
            summary = {
                **{name: getattr(config, name) for name in (*FROM_CONFIG, "mode")},
                "model": config.model_name,
                "dataset": config.dataset_name,
                **{name: (resolved | facts)[name] for name in RESOLVED},
                **measures,
            }
            write_json(folder.summary, summary)
        text = ", ".join(f"{name} {value:.4g}" for name, value in found.measures().items())
        log.info("test %s of %d samples", text, found.samples)
    dist.barrier()
    watchdog.stop()
    dist.destroy_process_group()


def _open(
    config: Config, folder: RunDirectory, resolved: dict[str, Any], hosts: list[Any], launcher: str
) -> int | None:
    """Return the attempt's number; None in the folder of a trained run."""
    folder.create()
    if not folder.config.exists():
        write_json(folder.config, describe_run(config, resolved, hosts))
    elif not any(line.get("mode") == "evaluate" for line in folder.read_attempts()):
        return None
    number = 1 + max((line["attempt"] for line in folder.read_attempts()), default=0)
    facts = {"from_step": 0, "world_size": len(hosts), "mode": "evaluate", "host": hosts[0]}
    folder.append_attempt("started", number, launcher, **facts)
    return number
