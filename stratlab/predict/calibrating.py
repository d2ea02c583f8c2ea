"""Calibrate a machine: its rates by a short program on all ranks, the rest from short training runs.

    torchrun: trainer.measuring.machine_rates ─▶ rates ± spread ┐
    trainer: small runs under two strategies  ─▶ median steps   ├─▶ fit_machine ─▶ machine.json
    finished runs (--from-runs)               ─▶ median steps   ┘

On several nodes the same line starts on each, with the variables of torch's launcher (PET_NNODES, PET_NODE_RANK,
PET_RDZV_ENDPOINT ...) and one folder for all; the node of rank 0 writes the file.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from stratlab import UserError
from stratlab.predict.machine_fit import MeasuredStep, fit_machine
from stratlab.trainer_program import explain_trainer
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.run_directory import RunDirectory, read_lines
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.kernels import CARDS
from stratlab_spec.step_time.measured_machine import (
    BETWEEN,
    COPY,
    CPU,
    GLOO,
    HOP,
    HOST,
    INSIDE,
    NCCL,
    PRODUCT,
    UNEXPLAINED_PCT,
    FittedScalar,
    MeasuredMachine,
    Origin,
)
from stratlab_spec.step_time.time_prediction import predict_step_time

MOST_S = 600
WARM_UP, STEPS = 8, 48
SETTINGS: Mapping[str, str] = {
    "model": "vit_tiny",
    "dataset": "digits",
    "image_size": "16",
    "micro_batch_size": "4",
    "profile_steps": "0",
    "checkpoint_minutes": "0",
    "evaluate_every": "1000000",
    "memory_forecast": "false",
    "steps": str(STEPS),
}
"""Of the small runs: the host bounds them on a GPU, and collectives' starts are a large part on several ranks."""
SHAPES_PCT = 5.3
"""Of a GPU's rate of products: mean error of one rate for all shapes, on an H200's published products."""
UNKNOWN_HOST = FittedScalar(1.0, 100.0)
UNKNOWN_HOP = FittedScalar(500.0, 250.0)
"""Before the first step: an H200's host; 0.1 to 2.5 ms on two cores, with one process on each and with two."""
LEAST_STEPS = 12
"""Of a finished run that refines a machine."""
UNPROFILED_PCT = 10.0
"""Standard error of a finished run's step: its data and models are others than those of the small runs."""


def calibrate(ranks: int, gpu: str, folder: Path, tell: Callable[[str], None]) -> MeasuredMachine | None:
    """Return the machine, or None on a node without rank 0.

    Args:
        ranks: processes on this node.
        gpu: name of the card; empty = a CPU.
        folder: gets what is measured; all nodes see it.

    Raises:
        UserError: no trainer, or one of its programs failed or took longer than MOST_S.
    """
    if absent := explain_trainer(sys.executable, os.environ):
        raise UserError(f"{absent} [SL-calibrate-no-trainer]")
    deadline = time.monotonic() + MOST_S
    nodes = int(os.environ.get("PET_NNODES", "1").partition(":")[0])
    rates = folder / "rates.json"
    tell(f"rates of {nodes} x {ranks} ranks: products, copies, all-reduces")
    meeting = [] if nodes > 1 else ["--standalone"]
    launcher = ["-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(ranks)]
    _run(
        [*launcher, "-m", "trainer.measuring.machine_rates", str(rates)],
        folder / "rates.log",
        ranks,
        deadline,
    )
    strategies = ("ddp", "fsdp") if ranks * nodes > 1 else ("single",)
    for strategy in strategies:
        tell(f"{STEPS} steps of a small model under {strategy}")
        given = {**SETTINGS, "strategy": strategy, "run": strategy, "comparison": "calibration"}
        given |= {"results": str(folder), "global_batch_size": str(4 * ranks * nodes)}
        words = [word for setting in given.items() for word in ("--set", "=".join(setting))]
        _run(["-m", "trainer", *words], folder / f"{strategy}.log", ranks, deadline)
    if os.environ.get("PET_NODE_RANK", "0") != "0":
        return None
    known = build_known(json.loads(rates.read_text()), gpu)
    found = [
        read_step(folder / "calibration" / strategy, WARM_UP, UNEXPLAINED_PCT) for strategy in strategies
    ]
    fitted = fit_machine(known, found)
    for one in found:
        tell(f"{one.name}: {one.measured_ms:.1f} ms measured, {one.predict_ms(fitted):.1f} ms predicted")
    steps = len(found) * (STEPS - WARM_UP)
    return replace(fitted, origin=fitted.origin._replace(steps=steps))


def _run(words: Sequence[str], log: Path, ranks: int, deadline: float) -> None:
    """Run a program of the launcher.

    Raises:
        UserError: it failed or took too long.
    """
    settings = [name for name in os.environ if name.startswith("TRAINER_")]
    env = {name: value for name, value in os.environ.items() if name not in settings}
    env |= {"PET_NPROC_PER_NODE": str(ranks)}
    if meeting := os.environ.get("PET_RDZV_ID"):
        env["PET_RDZV_ID"] = f"{meeting}-{log.stem}"  # no node joins the program before
    if ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torch's launcher sets it
    with (
        log.open("ab") as file,
        subprocess.Popen(
            [sys.executable, *words], env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        ) as running,
    ):
        try:
            code = running.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.terminate()
            raise UserError(
                f"calibration took longer than {MOST_S} s; see {log} [SL-calibrate-too-long]"
            ) from None
    if code:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
        raise UserError(
            f"{' '.join(words[:2])} ended with {code}: {' '.join(last)}; see {log} [SL-calibrate-failed]"
        )


def build_known(measured: Mapping[str, Any], gpu: str) -> MeasuredMachine:
    """Return the machine by its rates alone; the host is not known yet.

    Raises:
        UserError: `gpu` is not what was measured.
    """
    of_cpu = measured["device"] == "cpu"
    if of_cpu == bool(gpu and gpu != CPU):
        hint = "leave --gpu out" if of_cpu else f"--gpu NAME, one of {', '.join(CARDS)}"
        raise UserError(f"measured was {measured['hardware']}: {hint} [SL-calibrate-gpu]")
    rates = measured["rates"]
    scalars = {name: _summarize(rates[name]) for name in (PRODUCT, COPY)} | {HOST: UNKNOWN_HOST}
    if not of_cpu:
        rate, spread = scalars[PRODUCT]
        scalars[PRODUCT] = FittedScalar(rate, math.hypot(spread, SHAPES_PCT))
    nodes, of_node = measured["nodes"], measured["ranks_of_node"]
    if of_cpu and nodes * of_node > 1:
        scalars[HOP] = UNKNOWN_HOP
    elif rates[INSIDE]:
        scalars[INSIDE] = _summarize(rates[INSIDE])
    if rates[BETWEEN]:
        scalars[BETWEEN] = _summarize(rates[BETWEEN])
    origin = Origin(time.strftime("%Y-%m-%d"), measured["hardware"], nodes, 0)
    return MeasuredMachine(
        CPU if of_cpu else gpu, GLOO if of_cpu else NCCL, of_node, measured["memory_gib"], scalars, origin
    )


def _summarize(values: Sequence[float]) -> FittedScalar:
    """Return the median and the spread of repeats around it."""
    middle = median(values)
    return FittedScalar(middle, 100 * 1.48 * median(abs(value - middle) for value in values) / middle)


def read_step(folder: Path, warm_up: int, error_pct: float) -> MeasuredStep:
    """Return the median step of a finished run, without the profiled ones and those after them.

    Raises:
        NotRecorded: it cannot be predicted, or has too few steps.
        OSError, KeyError, ValueError: it is no finished run's folder.
    """
    own = RunDirectory(folder.parent.parent, folder.parent.name, folder.name)
    content = json.loads(own.config.read_text())
    resolved = content["resolved"]
    config = Config(**list_given(content["config"]))
    ranks, of_node = resolved["world_size"], resolved["processes_per_node"]
    profiled = int(resolved.get("profile_first_step") or 0)
    rows = [row for row in read_lines(own.metrics) if row.get("kind") == "train"]
    times = [
        row["step_time_ms"]
        for row in rows
        if row["step"] > warm_up and not (profiled and row["step"] >= profiled)
    ]
    if len(times) < LEAST_STEPS:
        raise NotRecorded(f"{len(times)} steps before the profile, at least {LEAST_STEPS} needed")

    def predict_ms(machine: MeasuredMachine) -> float:
        return predict_step_time(config, ranks, of_node, machine.card, machine.host, machine.links).step_ms

    return MeasuredStep(folder.name, predict_ms, median(times), error_pct)


def list_given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that differ from their defaults: others may be no knobs of its strategy."""
    fields = Config.model_fields
    return {
        name: value
        for name, value in settings.items()
        if name in fields and value is not None and value != fields[name].default
    }


def refine(known: MeasuredMachine, folders: Iterable[Path], tell: Callable[[str], None]) -> MeasuredMachine:
    """Return the machine after these finished runs; those that do not fit it are named and left out.

    Raises:
        UserError: no run can be used.
    """
    found = []
    for folder in folders:
        try:
            resolved = json.loads((folder / "config.json").read_text())["resolved"]
            ranks, of_node = resolved["world_size"], resolved["processes_per_node"]
            backend = resolved["backend"]
            if backend != known.backend:
                raise NotRecorded(f"backend {backend}, this machine's is {known.backend}")
            if lacks := known.lacks(ranks, of_node):
                raise NotRecorded(lacks)
            one = read_step(folder, WARM_UP, UNPROFILED_PCT)
            one.predict_ms(known)
        except (NotRecorded, OSError, KeyError, ValueError) as failure:
            tell(f"{folder.name}: left out: {failure}")
            continue
        found.append(one)
    if not found:
        raise UserError("--from-runs: no finished run that a time is known for [SL-calibrate-no-runs]")
    fitted = fit_machine(known, found)
    for one in found:
        before, after = (100 * (one.predict_ms(each) / one.measured_ms - 1) for each in (known, fitted))
        tell(f"{one.name}: {one.measured_ms:.1f} ms, predicted {before:+.0f} % before, {after:+.0f} % after")
    return replace(fitted, origin=known.origin._replace(steps=known.origin.steps + len(found)))


@contextmanager
def open_folder(out: Path, nodes: int) -> Iterator[Path]:
    """Yield a folder for what is measured: on several nodes beside the file, else a temporary one."""
    if nodes > 1:
        folder = out.absolute().parent / f".{out.name}.measured"
        folder.mkdir(exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="stratlab-calibrate-") as name:
        yield Path(name)
