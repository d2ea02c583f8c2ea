"""One run of the project's own program, `python -m trainer`, by its environment variables; its numbers."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.processes import read_tail, run_command
from benchmarks.gpu.session import ROOT, Session
from stratlab_spec import exit_codes as failures
from stratlab_spec.run_directory import read_lines

COMPARISON = "gpu"
PROGRAM = (sys.executable, "-m", "trainer")
FOREIGN = ("TRAINER_", "PET_", "MLFLOW_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "STRATLAB_LAUNCHER")
OPERATIONS = Path(__file__).parent / "operations"
"""Memory forecasts of the runs, counted by `python -m benchmarks.gpu.foreseen`."""
SUMMARY_FIELDS = """
samples_per_s tokens_per_s useful_tokens_per_s mfu_pct mfu_literature_pct mfu_useful_pct step_time_ms_p50
step_time_ms_p95 data_ms_p50 forward_ms_p50 backward_ms_p50 optimizer_ms_p50 measured_steps peak_memory_gib
peak_reserved_gib peak_host_memory_gib parameter_memory_gib gradient_memory_gib optimizer_memory_gib precision
backend device_name parameters train_time_s test_loss flops_per_sample initial_weights_sha256
wire_bytes_per_step skipped_steps alloc_retries forecast_memory_gib forecast_memory_error_pct
forecast_memory_deviates forecast_step_ms forecast_step_error_pct forecast_step_deviates
"""
KEPT = tuple(SUMMARY_FIELDS.split())
"""Fields taken from a run's summary."""
ENDS = 3
"""Losses that are averaged at both ends, to see whether they fall."""


def folder_of(session: Session, name: str) -> Path:
    """Return the run directory of a run."""
    return session.work_folder / "results" / COMPARISON / file_name(name)


def file_name(name: str) -> str:
    """Return `vit_base:single+compile` as a run is called."""
    return re.sub(r"[^a-z0-9_]", "-", name)


@dataclass(frozen=True)
class Start:
    """The arguments of a run's process."""

    folder: Path
    log: Path
    env: dict[str, str]


def prepare_start(
    session: Session, name: str, settings: Mapping[str, str], *, goes_on: bool = False
) -> Start:
    """Clear the run's place, unless it is to continue there, and copy its memory forecasts.

    Args:
        settings: without TRAINER_.
    """
    folder = folder_of(session, name)
    log = session.work_folder / "logs" / f"{file_name(name)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if not goes_on:
        shutil.rmtree(folder, ignore_errors=True)
        log.unlink(missing_ok=True)
    shutil.copytree(OPERATIONS, folder.parents[1] / "_operations", dirs_exist_ok=True)
    where = {"RUN": folder.name, "RESULTS": str(folder.parents[1]), "COMPARISON": COMPARISON}
    asked = where | {"EVALUATE_EVERY": "100000", "LOG_EVERY": "5"} | dict(settings)
    env = build_environment() | {f"TRAINER_{key}": value for key, value in asked.items()}
    return Start(folder, log, env)


def train(
    session: Session,
    name: str,
    settings: Mapping[str, str],
    *,
    seconds: float,
    command: Sequence[str] = (),
    goes_on: bool = False,
    ends_with: int = 0,
) -> dict[str, Any]:
    """Run it to its end, or until the time is over.

    Args:
        settings: without TRAINER_.
        command: instead of `python -m trainer`.
        goes_on: resume the run of this name.
        ends_with: the expected exit code, if it is not 0.

    Returns:
        facts, with `status`; a failed run has `error` and the end of its log.
    """
    start = prepare_start(session, name, settings, goes_on=goes_on)
    code, wall_s = run_command(command or PROGRAM, env=start.env, log=start.log, seconds=seconds, folder=ROOT)
    facts = {"exit": code, "wall_s": wall_s, "settings": dict(settings), **read_run(start.folder)}
    if code == ends_with and (ends_with or "measured_steps" in facts):
        return {"status": "done", **facts}
    if code == failures.OUT_OF_MEMORY:
        return {"status": "out_of_memory", **facts, "error": failures.reason(code)}
    why = "killed: out of time" if code is None else failures.reason(code)
    return {"status": "failed", **facts, "error": why, "log": read_tail(start.log)}


def build_environment() -> dict[str, str]:
    """Return the environment of a run, without variables of a launcher around this process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    env["TOKENIZERS_PARALLELISM"] = "false"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:  # else torch's launcher hands out a name that cannot be resolved
        env["PET_LOCAL_ADDR"] = "127.0.0.1"
    return env


def read_run(folder: Path) -> dict[str, Any]:
    """Return the facts of a run directory, also of an interrupted run."""
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line.get("kind") == "train"]
    facts: dict[str, Any] = {
        "losses": [line.get("loss") for line in lines],
        "grad_norms": [line.get("grad_norm") for line in lines],
        "step_ms": [line.get("step_time_ms") for line in lines],
    }
    ranks = [json.loads(path.read_text()) for path in (folder / "ranks").glob("rank*.json")]
    memory = [rank["training_memory"] for rank in ranks if rank.get("training_memory")]
    fullest = max(memory, key=lambda rank: float(rank["peak_gib"]), default={})
    facts |= {"outside_gib": fullest.get("outside_gib"), "peak_phase": fullest.get("peak_phase")}
    summary = folder / "summary.json"
    if not summary.is_file():
        return facts
    found = json.loads(summary.read_text())
    facts |= {name: found.get(name) for name in KEPT}
    return facts | judge_losses(facts["losses"])


def judge_losses(losses: Sequence[Any]) -> dict[str, bool]:
    """Return whether every loss is a finite number, and whether the last ones are lower than the first."""
    numbers = [loss for loss in losses if isinstance(loss, int | float) and math.isfinite(loss)]
    finite = bool(losses) and len(numbers) == len(losses)
    enough = len(numbers) >= 2 * ENDS
    falls = enough and statistics.mean(numbers[-ENDS:]) < statistics.mean(numbers[:ENDS])
    return {"finite": finite, "falls": falls}


def compare_losses(run: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """Return largest relative differences of losses and gradient norms; `nan` if they cannot be compared."""
    found = {}
    for name, key in (("loss_error", "losses"), ("norm_error", "grad_norms")):
        ours, theirs = run[key], alone[key]
        numbers = [value for value in (*ours, *theirs) if isinstance(value, int | float)]
        whole = bool(theirs) and len(ours) == len(theirs) and len(numbers) == 2 * len(theirs)
        errors = (abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)) if whole else ()
        found[name] = max(errors, default=float("nan"))
    return found
