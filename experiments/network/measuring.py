"""Step times of strategies on two nodes whose link changes its rate while they train.

    one run of a strategy:   warm-up │ 50 │ 150 │ 400 │ 1000 │ 3000 │ 50 │ 150 │ ...      Mbit/s, rounds of all rates
    all strategies in turn, as often as asked; the steps of one rate and round give one repeat: their median

So the repeats of a rate are interleaved with those of the others, and a busy minute of the machine spoils no rate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.network.two_nodes import Node, two_nodes, wait_until

WARM_UP = 4
"""Steps before the first rate."""
SETTINGS: Mapping[str, str] = {
    "model": "vit_tiny",
    "dataset": "digits",
    "image_size": "16",
    "model_patch": "4",
    "model_hidden": "256",
    "model_layers": "4",
    "model_heads": "4",
    "global_batch_size": "16",
    "micro_batch_size": "4",
    "profile_steps": "0",
    "checkpoint_minutes": "0",
    "evaluate_every": "1000000",
    "memory_forecast": "false",
    "log_every": "1",
}
STRATEGIES: Mapping[str, Mapping[str, str]] = {
    "ddp": {},
    "fsdp": {},
    "hsdp": {"dp_replicate": "2", "dp_shard": "2"},
    "zero3": {"persistent_elements": "1000"},
    "zeropp": {"persistent_elements": "1000"},
}
RANKS_OF_NODE = 2
END_S, STEP_S = 120, 90
"""Longest wait for an end, and for a step."""


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    rates_mbit: Sequence[float]
    rounds: int
    """Of all rates, in one run."""
    steps: int
    """Of a rate in a round; the first one is left out, for its rate changes meanwhile."""
    runs: int
    """Of each strategy."""

    @property
    def all_steps(self) -> int:
        return WARM_UP + self.rounds * len(self.rates_mbit) * self.steps


def measure(plan: Plan, folder: Path) -> dict[str, dict[float, list[float]]]:
    """Return strategy -> rate -> milliseconds of a step, a median for each round of each run."""
    found: dict[str, dict[float, list[float]]] = {
        strategy: {rate: [] for rate in plan.rates_mbit} for strategy in STRATEGIES
    }
    folder.mkdir(parents=True, exist_ok=True)
    environment = build_environment()
    for number in range(plan.runs):
        for strategy in STRATEGIES:
            with two_nodes(folder, environment) as nodes:
                began = time.monotonic()
                rows = run(plan, strategy, f"{strategy}-{number}", nodes, folder)
            for rate, values in rows.items():
                found[strategy][rate] += values
            told = "  ".join(f"{rate:.0f}: {median(values):.0f} ms" for rate, values in rows.items())
            print(f"{strategy:8} {time.monotonic() - began:4.0f} s  {told}", flush=True)
    return found


def build_environment() -> dict[str, str]:
    """Return the variables of processes on a node: one thread each, this program's packages."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}


def start(
    nodes: Sequence[Node], name: str, log: Path, *words: str, **env: str
) -> list[subprocess.Popen[bytes]]:
    """Start a program of torch's launcher on both nodes."""
    begun = []
    for number, node in enumerate(nodes):
        meeting = {
            "PET_NNODES": str(len(nodes)),
            "PET_NPROC_PER_NODE": str(RANKS_OF_NODE),
            "PET_NODE_RANK": str(number),
            "PET_MAX_RESTARTS": "0",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_CONF": "read_timeout=15",
            "PET_RDZV_ID": name,
            "PET_RDZV_ENDPOINT": f"{nodes[0].name}:29400",
            "GLOO_SOCKET_IFNAME": node.link,
            "HOSTNAME": node.name,
        }
        begun.append(node.start(sys.executable, *words, log=log, **meeting, **env))
    return begun


def run(
    plan: Plan, strategy: str, name: str, nodes: Sequence[Node], folder: Path
) -> dict[float, list[float]]:
    """Train and change the rate meanwhile; return rate -> the rounds' medians in ms.

    Raises:
        AssertionError: the run makes no progress.
    """
    given = {**SETTINGS, **STRATEGIES[strategy], "strategy": strategy, "run": name, "comparison": "network"}
    given |= {"results": str(folder / "runs"), "steps": str(plan.all_steps)}
    metrics = folder / "runs" / "network" / name / "metrics.jsonl"
    sets = [word for setting in given.items() for word in ("--set", "=".join(setting))]
    order = [rate for _ in range(plan.rounds) for rate in plan.rates_mbit]
    limit(nodes, max(plan.rates_mbit))
    processes = start(nodes, name, folder / f"{name}.log", "-m", "trainer", *sets)
    found: dict[float, list[float]] = {rate: [] for rate in plan.rates_mbit}
    try:
        _wait_for(metrics, WARM_UP, processes, END_S)
        for place, rate in enumerate(order):
            limit(nodes, rate)
            after = WARM_UP + place * plan.steps
            rows = _wait_for(metrics, after + plan.steps, processes, STEP_S * plan.steps)
            times = [row["step_time_ms"] for row in rows[after + 1 : after + plan.steps]]
            found[rate].append(median(times))
        limit(nodes, max(plan.rates_mbit))
        for process in processes:
            process.wait(END_S)
    finally:
        for process in processes:
            process.kill()
    return found


def limit(nodes: Sequence[Node], rate: float) -> None:
    for node in nodes:
        node.limit(rate)


def _wait_for(
    metrics: Path, steps: int, processes: Sequence[subprocess.Popen[bytes]], seconds: float
) -> list[dict[str, Any]]:
    """Return the rows of the steps, as soon as there are so many."""
    rows: list[dict[str, Any]] = []

    def enough() -> bool:
        nonlocal rows
        assert not any(process.poll() for process in processes), f"{metrics.parent.name}: a node has failed"
        if metrics.exists():
            whole = [line for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
            rows = [row for row in map(json.loads, whole) if row["kind"] == "train"]
        return len(rows) >= steps

    wait_until(enough, f"{steps} steps in {metrics}", seconds, 0.02)
    return rows
