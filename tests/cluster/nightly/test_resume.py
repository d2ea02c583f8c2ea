"""A pod is lost, a rank is killed: every strategy goes on from its checkpoint, under both kinds of job."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.path import Run, install
from tests.cluster.resuming import CHECKPOINTS, Fault, check_resumed, delete_pod, disturb, kill_rank

pytestmark = pytest.mark.cluster

VALUES: dict[str, Any] = CHECKPOINTS | {"run.config.comparison": "resume", "run.analysis.enabled": "false"}
# hpz keeps a copy per node, so that a node needs two processes
PER_NODE = {"run.processesPerNode": 2, "run.config.micro_batch_size": 16}
MPI: dict[str, Any] = {"place": "baseline", "resource": "mpijobs.v1.kubeflow.org"}


def pair(chart: str, cause: Any = delete_pod, name: str = "", values: Any = None, **options: Any) -> Fault:
    """The run that is disturbed, and the same run that is left alone."""
    name = name or chart
    whole = Run(chart, f"whole-{name}", values=VALUES | (values or {}), **options)
    return Fault(replace(whole, release=f"lost-{name}"), whole, cause)


FAULTS = [
    pair("fsdp"),
    pair("zero1"),
    pair("zero2", kill_rank, "rank-zero2"),
    pair("zero3"),
    pair("zeropp", values=PER_NODE, processes=4),
    pair("ddp", name="mpi", values={"run.workload.api": "mpijob-v1"}, **MPI),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.run.name)
def test_a_disturbed_run_ends_as_if_nothing_had_been(labs: dict[str, Lab], fault: Fault) -> None:
    lab = labs[fault.run.place]
    disturb(lab, fault)
    install(lab, fault.whole)
    lab.watch(fault.whole.name)
    check_resumed(lab, fault)
    for run in (fault.run, fault.whole):
        lab.uninstall(run.name)
