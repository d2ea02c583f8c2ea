"""The runs that are disturbed: one for every strategy that is named, and one of the other kind of job."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from tests.cluster.path import Run

COMPARISON = time.strftime("disturbed-%m%d-%H%M%S")
"""Another one in each session: with STRATLAB_E2E_KEEP the folders of the last one are still there."""
ALL: dict[str, Any] = {
    "run.config.comparison": COMPARISON,
    "run.config.profile_steps": 0,
    "run.analysis.enabled": "false",
}
# of the small network: long enough for seven faults, which took 1,840 steps of ddp
DIGITS: dict[str, Any] = ALL | {"run.config.epochs": 150, "run.config.checkpoint_every": 200}
# of which four processes on two cores make some ten in a second
LLM: dict[str, Any] = ALL | {
    "run.nodes": 2,
    "run.processesPerNode": 2,
    "run.config.model": "qwen_tiny",
    "run.config.seq_len": 64,
    "run.config.micro_batch_size": 2,
    "run.config.train_samples": 256,
    "run.config.steps": 800,
    "run.config.checkpoint_every": 50,
}
SHORT_DIGITS = {"run.config.epochs": 30, "run.config.checkpoint_every": 50}
SHORT_LLM = {"run.config.steps": 150, "run.config.checkpoint_every": 20}
MEMORY_GIB = {1: 2, 2: 3}
"""Processes of a pod -> its limit."""


@dataclass(frozen=True)
class Strategy:
    """What is disturbed.

    Attributes:
        name: in the table.
        short: settings of a short run.
        run: left alone; the others are this one under other names.
    """

    name: str
    run: Run
    short: dict[str, Any]

    @property
    def checkpoint_every(self) -> int:
        return int(self.run.values["run.config.checkpoint_every"])

    def named(self, what: str, **values: Any) -> Run:
        """The same run as `<what>-<strategy>`, with further values."""
        return replace(self.run, release=f"{what}-{self.name}", values=self.run.values | values)

    @property
    def whole(self) -> Run:
        """That nobody disturbs."""
        return self.named("whole")

    @property
    def long(self) -> Run:
        """That suffers one fault after the other; its shared memory may be larger than what the container may use."""
        limit = MEMORY_GIB[int(self.run.values.get("run.processesPerNode", 1))]
        sizes = {"run.resources.limits.memory": f"{limit}Gi", "run.sharedMemory.sizeLimit": f"{2 * limit}Gi"}
        return self.named("long", **sizes)

    def full(self, claim: str) -> Run:
        """A short one on a volume that fills up."""
        return self.named("full", **self.short, **{"run.results.claim": claim})


def digits(chart: str, epochs: int) -> Strategy:
    """Each of so many epochs as its steps are slow."""
    return Strategy(chart, Run(chart, values=DIGITS | {"run.config.epochs": epochs}), SHORT_DIGITS)


STRATEGIES = (
    digits("ddp", 150),
    digits("zero2", 120),
    digits("fsdp", 90),
    Strategy("nd", Run("llm-2d", values=LLM, files=("llm_tiny.yaml",), processes=4), SHORT_LLM),
    Strategy(
        "mpijob",
        Run(
            "ddp", place="baseline", values=DIGITS | {"run.workload.api": "mpijob-v1"},
            resource="mpijobs.v1.kubeflow.org",
        ),
        SHORT_DIGITS,
    ),
)  # fmt: skip
