"""A PyTorchJob in a queue of Kueue: admitted, preempted by a run of a higher priority, resumed from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.lab import Lab, wait_until
from tests.cluster.operators.kueue import PRIORITY, QUEUED, find_admission, use_queue, wait_for_eviction
from tests.cluster.operators.test_operators import MPIJOB, SMALL, TRAINJOB
from tests.cluster.path import Run, check_comparison, check_success
from tests.cluster.resuming import Fault, check_resumed, wait_for_checkpoint

pytestmark = pytest.mark.cluster

PYTORCHJOB = Run("ddp", "whole-pytorchjob", values=SMALL)
SHORT = {"run.config.epochs": 2, "run.config.comparison": "urgent", "run.analysis.enabled": "false"}


@pytest.fixture(scope="module", autouse=True)
def queue(lab: Lab) -> Iterator[None]:
    with use_queue(lab):
        yield


@pytest.mark.parametrize("kind", [PYTORCHJOB, TRAINJOB, MPIJOB], ids=lambda kind: kind.name.partition("-")[2])
def test_a_run_is_preempted_and_resumed(lab: Lab, kind: Run, tmp_path: Path) -> None:
    api = kind.name.partition("-")[2]
    values = kind.values | QUEUED | {"run.config.comparison": f"queued-{api}"}
    low = replace(kind, release=f"low-{api}", values=values)
    whole = replace(kind, release=f"alone-{api}", values=values | {"run.analysis.enabled": "false"})
    urgent = replace(kind, release=f"urgent-{api}", values=values | SHORT | PRIORITY)
    lab.install(low.name, low.chart, low.values)
    wait_for_checkpoint(lab, low)
    lab.install(urgent.name, urgent.chart, urgent.values)
    wait_for_eviction(lab, low.name)
    assert lab.conditions(f"{low.resource}/{low.name}").get("Suspended") == "True"
    lab.watch(urgent.name)
    wait_until(lambda: find_admission(lab, low.name).get("Admitted") == "True", "admitted again")
    check_success(lab, low)
    lab.uninstall(urgent.name)
    lab.install(whole.name, whole.chart, whole.values)
    lab.watch(whole.name)
    check_resumed(lab, Fault(low, whole))
    names = [whole.name, low.name]
    check_comparison(lab, f"queued-{api}", names, tmp_path / "report")
    for each in (low, whole):
        lab.uninstall(each.name)
