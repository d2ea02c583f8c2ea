"""Where the network decides: five strategies on two nodes with five rates between them, predicted and measured.

    python -m experiments.network                 # result/ beside this file; 15 minutes on two cores; needs root
    python -m experiments.network --small         # fewer repeats: 6 minutes

    calibrate at ONE rate (stratlab calibrate on both nodes) ─▶ machine.json ─▶ predictions of all cells
    train at all rates                                       ─▶ medians       ─▶ verdict, table, picture

The machine is calibrated with another, smaller model, and before anything is measured. At another rate its bandwidth
between nodes is in proportion. Exit code 1: a miss, which the table names; 2: there can be no nodes here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.network.judging import Cell, Foretold, Verdict, judge
from experiments.network.measuring import (
    RANKS_OF_NODE,
    SETTINGS,
    STRATEGIES,
    Plan,
    build_environment,
    limit,
    measure,
    start,
)
from experiments.network.two_nodes import find_lack, two_nodes
from stratlab.machine import Interrupted, signals_raise
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.measured_machine import BETWEEN, MeasuredMachine, read_machine
from stratlab_spec.step_time.step_forecast import find_measured_band
from stratlab_spec.step_time.time_prediction import predict_step_time

RATES_MBIT = (50.0, 150.0, 400.0, 1000.0, 3000.0)
CALIBRATED_MBIT = 400.0
FULL, SMALL = Plan(RATES_MBIT, 2, 3, 2), Plan(RATES_MBIT, 2, 3, 1)
KEEP = Path(__file__).parent / "result"
CALIBRATION_S = 600
NODES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.network", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--small", action="store_true", help="fewer repeats")
    parser.add_argument("--out", type=Path, default=Path("experiments-results/network"), help="gets the runs")
    parser.add_argument("--keep", type=Path, default=KEEP, help="gets the result")
    asked = parser.parse_args(arguments)
    if lack := find_lack("tc"):
        print(f"experiments.network: {lack}", file=sys.stderr)
        return 2
    folder = asked.out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with signals_raise():
            return run_all(SMALL if asked.small else FULL, folder, asked.keep)
    except Interrupted as stop:
        print(f"{stop}: stopped; {asked.keep} stays as it was", file=sys.stderr)
        return stop.code


def run_all(plan: Plan, folder: Path, target: Path) -> int:
    """Calibrate, predict, measure, judge and keep; return the exit code."""
    machine = calibrate(folder)
    predicted = {rate: {name: foretell(machine, name, rate) for name in STRATEGIES} for rate in RATES_MBIT}
    measured = measure(plan, folder)
    cells = [
        Cell(rate, predicted[rate], {name: by_rate[rate] for name, by_rate in measured.items()})
        for rate in RATES_MBIT
    ]
    verdict = judge(cells, lambda name, rate: predict_ms(at_rate(machine, rate), name))
    keep(verdict, machine, target)
    print((target / "table.txt").read_text())
    return int(bool(verdict.list_misses()))


def calibrate(folder: Path) -> MeasuredMachine:
    """Run `stratlab calibrate` on both nodes, with the link at CALIBRATED_MBIT.

    Raises:
        RuntimeError: it failed; with its last words.
    """
    file, log = folder / "machine.json", folder / "calibrate.log"
    with two_nodes(folder, build_environment()) as nodes:
        limit(nodes, CALIBRATED_MBIT)
        words = ("-m", "stratlab", "calibrate", "--out", str(file), "--ranks", str(RANKS_OF_NODE))
        codes = [process.wait(CALIBRATION_S) for process in start(nodes, "calibrate", log, *words)]
    if any(codes):
        raise RuntimeError(f"stratlab calibrate: {log.read_text()[-400:]}")
    return read_machine(file)


def at_rate(machine: MeasuredMachine, rate_mbit: float) -> MeasuredMachine:
    """Return the machine with another network, of which it reaches the same share."""
    return machine.move(BETWEEN, rate_mbit / CALIBRATED_MBIT)


def build_config(strategy: str) -> Config:
    """Return the settings of a measured run."""
    given = {**SETTINGS, **STRATEGIES[strategy], "strategy": strategy, "run": strategy}
    return Config.from_env({f"TRAINER_{name.upper()}": value for name, value in given.items()})


def predict_ms(machine: MeasuredMachine, strategy: str) -> float:
    """Return the step of a strategy on both nodes."""
    ranks = NODES * RANKS_OF_NODE
    config = build_config(strategy)
    return predict_step_time(config, ranks, RANKS_OF_NODE, machine.card, machine.host, machine.links).step_ms


def foretell(machine: MeasuredMachine, strategy: str, rate_mbit: float) -> Foretold:
    """Return the step at a rate, with its band."""
    moved = at_rate(machine, rate_mbit)
    ms = predict_ms(moved, strategy)
    low, high = find_measured_band(build_config(strategy), NODES * RANKS_OF_NODE, RANKS_OF_NODE, moved)
    return Foretold(ms, ms * (1 + low / 100), ms * (1 + high / 100))


def keep(verdict: Verdict, machine: MeasuredMachine, target: Path) -> None:
    """Write table.txt, result.json and machine.json; `make schema` draws docs/pictures/network.svg."""
    target.mkdir(parents=True, exist_ok=True)
    machine.write(target / "machine.json")
    (target / "table.txt").write_text("\n".join([*list_lines(verdict, machine), ""]))
    (target / "result.json").write_text(json.dumps(describe(verdict), indent=1) + "\n")


def list_lines(verdict: Verdict, machine: MeasuredMachine) -> Iterator[str]:
    """Yield the table: per rate and strategy predicted ms, band, measured median and range."""
    date, hardware, _, steps = machine.origin
    yield f"gloo on a CPU, which says nothing of GPUs: {NODES} nodes x {RANKS_OF_NODE} ranks, {hardware}, {date}"
    yield f"calibrated at {CALIBRATED_MBIT:g} Mbit/s with a smaller model ({steps} steps); ms per step"
    yield ""
    yield f"{'Mbit/s':>6}  {'strategy':8} {'predicted':>9} {'90 % band':>13} {'measured':>8} {'repeats':>13}"
    for cell in verdict.cells:
        for name, one in sorted(cell.predicted.items(), key=lambda row: row[1].ms):
            values = cell.measured[name]
            marks = "  predicted winner" * (name == cell.foretold and cell.decided)
            marks += "  measured winner" * (name == cell.winner)
            marks += "" if name in cell.inside else "  outside the band"
            band = f"{one.low_ms:.0f} to {one.high_ms:.0f}"
            seen = f"{min(values):.0f} to {max(values):.0f}"
            yield (
                f"{cell.rate_mbit:6g}  {name:8} {one.ms:9.0f} {band:>13} {median(values):8.0f} {seen:>13}{marks}"
            )
    yield ""
    decided = [cell for cell in verdict.cells if cell.decided]
    right = [cell for cell in decided if cell.foretold == cell.winner]
    inside = sum(len(cell.inside) for cell in verdict.cells)
    every = sum(len(cell.predicted) for cell in verdict.cells)
    yield f"decided: {len(decided)} of {len(verdict.cells)} cells, right: {len(right)}"
    yield f"inside the band: {inside} of {every} medians"
    for word, flip in (("predicted", verdict.predicted_flip), ("measured", verdict.measured_flip)):
        told = f"{flip.slow} below, {flip.fast} above {flip.rate_mbit:.0f} Mbit/s" if flip else "none"
        yield f"flip {word}: {told}"
    if factor := verdict.flip_factor:
        yield f"factor between them: {factor:.2f}"
    yield from (f"missed: {miss}" for miss in verdict.list_misses())


def describe(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict for a file."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": done.stdout.strip(),
        "backend": "gloo",
        "predicted_flip": verdict.predicted_flip,
        "measured_flip": verdict.measured_flip,
        "cells": [
            {
                "mbit_per_s": cell.rate_mbit,
                "decided": cell.decided,
                "steps": {
                    name: {
                        "predicted_ms": [round(value, 1) for value in one],
                        "measured_ms": [round(value, 1) for value in cell.measured[name]],
                    }
                    for name, one in cell.predicted.items()
                },
            }
            for cell in verdict.cells
        ],
        "misses": verdict.list_misses(),
    }


if __name__ == "__main__":
    sys.exit(main())
