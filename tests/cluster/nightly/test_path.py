"""What a user does, from `kubectl apply -k` to the report: four runs of two pods each, nothing started by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.lab import HELM3, Lab
from tests.cluster.path import Run, walk_path

pytestmark = pytest.mark.cluster

MPI = {"run.workload.api": "mpijob-v1"}
RUNS = {
    "restricted": [Run("ddp"), Run("fsdp", helm=HELM3), Run("zero2")],
    "baseline": [Run("ddp", "ddp-mpi", "baseline", MPI, resource="mpijobs.v1.kubeflow.org")],
}


@pytest.mark.parametrize("place", RUNS)
def test_from_install_to_uninstall(labs: dict[str, Lab], place: str, tmp_path: Path) -> None:
    walk_path(labs[place], RUNS[place], tmp_path / "report")
