"""The promises of docs/stops.md on a device: out of memory, the ladder, SIGTERM, kill -9, checkpoints.

out of memory    ends with 10, names the holders of memory and settings to try; predicted before anything is loaded.
ladder           the losses of a run that began on its last rung.
stopped, killed  resumes with the losses of an undisturbed run.
saves            how long a step waits for its checkpoint, against `torch.distributed.checkpoint.save`.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.gpu.models import Settings, build_models
from benchmarks.gpu.own_run import (
    COMPARISON,
    PROGRAM,
    compare_losses,
    folder_of,
    prepare_start,
    read_run,
    train,
)
from benchmarks.gpu.processes import NestedProcesses, read_tail
from benchmarks.gpu.session import ROOT, Session
from stratlab_spec import exit_codes as failures
from stratlab_spec.run_directory import RunDirectory, read_lines

TOO_MANY = 512
"""Images of ViT-H at once, in bf16: some 180 GiB."""
TOO_MANY_FP32 = 2048
"""Of ViT-B, for the ladder: in bf16 a step that is repeated is not the same, so in 16 bits equal runs part too."""
DISTURBED = 37
"""The step at which a run is disturbed: between its first checkpoint and its second."""
SMALL = (
    {"MODEL": "vit_tiny", "DATASET": "synthetic", "TRAIN_SAMPLES": "512", "PRECISION": "fp32"}
    | {"GLOBAL_BATCH_SIZE": "32", "MICRO_BATCH_SIZE": "16", "STEPS": "60", "CHECKPOINT_EVERY": "20"}
    | {"PROFILE_STEPS": "0", "ALLOW_FAULTS": "true", "LOG_EVERY": "1"}
)
STRATEGIES = ("single", "ddp", "fsdp", "zero1", "zero2", "zero3")
LONGEST_S = 120.0
AT_ONCE = 4
PARTS, SAVES = 48, 2


def run(session: Session) -> None:
    """Run by value; the short runs in parallel, because their times are not used."""
    strategies = ("fsdp",) if session.tiny else STRATEGIES
    with ThreadPoolExecutor(AT_ONCE) as threads:
        jobs = [threads.submit(_run_disturbed, session, strategy) for strategy in strategies]
        jobs.append(threads.submit(_run_not_finite, session))
        for job in jobs:
            job.result()
    if session.is_cuda:  # a CPU does not run out of memory: the kernel ends the process
        _run_out_of_memory(session)
        _climb(session)
    _save(session)


def _run_disturbed(session: Session, strategy: str) -> None:
    """Run one undisturbed run, one that is stopped, one that is killed; both of these resume."""
    if not session.has_time(60):
        return session.skip(f"{strategy} stopped", 60)
    settings = SMALL | {"STRATEGY": strategy}
    whole = _train(session, f"{strategy} undisturbed", settings)
    _stop(session, strategy, settings)
    _go_on(session, f"{strategy} stopped", settings, whole)
    killed = settings | {"FAULT": f"kill@{DISTURBED}"}
    _train(session, f"{strategy} killed", killed, ends_with=128 + signal.SIGKILL)
    _go_on(session, f"{strategy} killed", killed, whole)


def _open(session: Session, name: str) -> RunDirectory:
    folder = folder_of(session, f"stops-{name}")
    return RunDirectory(folder.parents[1], COMPARISON, folder.name)


def _train(session: Session, name: str, settings: Settings, **how: Any) -> dict[str, Any]:
    facts = train(session, f"stops-{name}", settings, seconds=session.within(LONGEST_S), **how)
    facts.pop("falls", None)
    session.record(name, facts.pop("status"), **facts)
    return facts


def _go_on(session: Session, name: str, settings: Settings, whole: Mapping[str, Any]) -> None:
    """Run the second attempt; its losses, with the first attempt's, have to equal the undisturbed run's."""
    facts = train(session, f"stops-{name}", settings, seconds=session.within(LONGEST_S), goes_on=True)
    facts.pop("falls", None)
    lines = read_lines(_open(session, name).metrics)
    newest = {line["step"]: line for line in lines if line.get("kind") == "train"}
    steps = [newest[step] for step in sorted(newest)]
    facts |= {
        "losses": [line.get("loss") for line in steps],
        "grad_norms": [line.get("grad_norm") for line in steps],
    }
    facts |= compare_losses(facts, dict(whole)) if whole.get("losses") else {"loss_error": float("nan")}
    facts["steps_lost"] = sum(line.get("kind") == "train" for line in lines) - len(newest)
    session.record(f"{name}, goes on", facts.pop("status"), **facts)


def _stop(session: Session, strategy: str, settings: Settings) -> None:
    """Send SIGTERM to the launcher once a step is written; it has to end with 143 after a checkpoint."""
    start = prepare_start(session, f"stops-{strategy} stopped", settings)
    processes, began, stopped_s = NestedProcesses(), time.monotonic(), float("nan")
    code: int | None = None
    try:
        process = processes.start(PROGRAM, start.env, start.log, folder=str(ROOT))
        while process.poll() is None and time.monotonic() - began < LONGEST_S:
            if any(line.get("kind") == "train" for line in read_lines(start.folder / "metrics.jsonl")):
                told = time.monotonic()
                process.send_signal(signal.SIGTERM)
                code = process.wait(LONGEST_S)
                stopped_s = time.monotonic() - told
                break
            time.sleep(0.02)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        processes.stop(4.0)
    facts = {"exit": code, "seconds_to_stop": stopped_s, **read_run(start.folder)}
    if code == failures.TERMINATED:
        return session.record(f"{strategy} stopped", **facts)
    facts["error"], facts["log"] = f"ended with {code}, not {failures.TERMINATED}", read_tail(start.log)
    session.record(f"{strategy} stopped", "failed", **facts)


def _run_not_finite(session: Session) -> None:
    settings = SMALL | {"STRATEGY": "ddp", "FAULT": f"nan@{DISTURBED}"}
    _train(session, "not finite", settings, ends_with=failures.NOT_FINITE)


def _ask_for_too_much(session: Session, model: str, images: int) -> Settings:
    sizes = {"GLOBAL_BATCH_SIZE": str(images), "MICRO_BATCH_SIZE": str(images), "PROFILE_STEPS": "0"}
    steps = {"STRATEGY": "single", "STEPS": "4", "TRAIN_SAMPLES": str(2 * images)}
    return build_models(session)[model].settings | sizes | steps


def _run_out_of_memory(session: Session) -> None:
    """Run more images than fit: the device reports it, and before it the forecast."""
    asked = _ask_for_too_much(session, "vit_huge", TOO_MANY)
    found_out = asked | {"MEMORY_FORECAST": "false"}
    for name, settings in (("out of memory", found_out), ("out of memory, foreseen", asked)):
        if not session.has_time(30):
            session.skip(name, 30)
            continue
        seconds = session.within(LONGEST_S)
        code = failures.OUT_OF_MEMORY
        facts = train(session, f"stops-{name}", settings, seconds=seconds, ends_with=code)
        folder = _open(session, name)
        told = folder.out_of_memory(0)
        facts["told"] = json.loads(told.read_text()) if told.is_file() else None
        ended = read_lines(folder.attempts)
        facts["reason"] = ended[-1] if ended else None
        session.record(name, facts.pop("status"), **facts)


def _climb(session: Session) -> None:
    """Run the same with the ladder: it ends with 0, with the losses of a run that began on its last rung."""
    if not session.has_time(90):
        return session.skip("ladder", 90)
    asked = _ask_for_too_much(session, "vit_base", TOO_MANY_FP32) | {"PRECISION": "fp32"}
    climbs = asked | {"MEMORY_FORECAST": "false", "OOM_FALLBACK": "true"}
    facts = train(session, "stops-ladder", climbs, seconds=session.within(LONGEST_S))
    folder = _open(session, "ladder")
    rungs = json.loads(folder.rungs.read_text()) if folder.rungs.is_file() else []
    session.record("ladder", facts.pop("status"), rungs=rungs, **facts)
    if not rungs:
        return
    reached = {name.upper(): str(value) for rung in rungs for name, value in rung["settings"].items()}
    alone = train(session, "stops-last rung", asked | reached, seconds=session.within(LONGEST_S))
    alone |= compare_losses(alone, facts)
    session.record("begun on the last rung", alone.pop("status"), **alone)


def _save(session: Session) -> None:
    """Save ViT-B's state after every 60th step of its run, and as many bytes by torch's blocking save.

    A checkpoint is written before the next one is due. Otherwise the next one waits for it, and that wait would not
    be its own stall.
    """
    if not session.has_time(60):
        return session.skip("saves", 60)
    settings = build_models(session)["vit_base"].settings | {"STRATEGY": "fsdp", "PROFILE_STEPS": "0"}
    settings |= {"CHECKPOINT_KEEP": "1", "STEPS": "250", "CHECKPOINT_EVERY": "60"}
    if session.tiny:
        settings |= {"STEPS": "10", "CHECKPOINT_EVERY": "3"}
    facts = train(session, "stops-saves", settings, seconds=session.within(LONGEST_S))
    written = read_lines(_open(session, "saves").metrics)
    lines = [line for line in written if "checkpoint_stall_ms" in line]
    facts["saves"] = [{key: line[key] for key in line if key.startswith("checkpoint")} for line in lines]
    session.record("saves", facts.pop("status"), **facts)
    if lines:
        gib = float(lines[0]["checkpoint_gib"])
        session.measure("blocking save", measure_saves, session, gib, needs_s=10)


def measure_saves(session: Session, gib: float) -> dict[str, Any]:
    """Return milliseconds of each of two saves, one process."""
    numbers = int(gib * 2**30 / 4 / PARTS)
    state = {f"part{i}": torch.zeros(numbers, device=session.device) for i in range(PARTS)}
    folder, taken = session.work_folder / "blocking", []
    for i in range(SAVES):
        if session.is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        dcp.save(state, checkpoint_id=folder / str(i))
        taken.append((time.perf_counter() - began) * 1e3)
        shutil.rmtree(folder / str(i))
    return {"gib": gib, "save_ms": taken, "by": "torch.distributed.checkpoint.save, without fsync"}
