"""The runs under the operators that people run today, and the two that each run is disturbed as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.cluster.lab import Lab
from tests.cluster.path import Run
from tests.cluster.resuming import CHECKPOINTS, Fault, delete_pod, kill_rank

COMPARISON = "operators"
# little enough for two runs beside the operators on a machine with two CPUs
SMALL: dict[str, Any] = CHECKPOINTS | {
    "run.resources.requests.cpu": "50m",
    "run.config.comparison": COMPARISON,
}
UNSEEN = {"run.analysis.enabled": "false", "run.config.comparison": "disturbed"}

TRAINJOB = Run(
    "ddp", "whole-trainjob", values=SMALL | {"run.workload.api": "trainjob"},
    resource="trainjobs.v1alpha1.trainer.kubeflow.org", success="Complete", role="node-0",
)  # fmt: skip
MPIJOB = Run(
    "ddp", "whole-mpijob", values=SMALL | {"run.workload.api": "mpijob-v2beta1"},
    resource="mpijobs.v2beta1.kubeflow.org",
)  # fmt: skip
RUNS = [TRAINJOB, MPIJOB]


def disturb(whole: Run, cause: Callable[[Lab, str], None]) -> Fault:
    """The same run under another name, without an analysis."""
    api = whole.values["run.workload.api"]
    name = f"{cause.__name__.replace('_', '-')}-{api.partition('-')[0]}"
    return Fault(replace(whole, release=name, values=whole.values | UNSEEN), whole, cause)


FAULTS = [disturb(whole, cause) for whole in RUNS for cause in (kill_rank, delete_pod)]
