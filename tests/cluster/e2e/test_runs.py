"""What `make e2e` shows: the path of a run, and one that goes on from its checkpoint, for ddp, zero2 and nd."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.path import (
    PIPELINE,
    Run,
    check_comparison,
    check_mlflow,
    check_success,
    check_uninstall,
    install,
)
from tests.cluster.resuming import CHECKPOINTS, Fault, check_resumed, disturb, restarts

pytestmark = pytest.mark.cluster

LLM = PIPELINE | {"run.config.comparison": "llm", "run.config.steps": 60, "run.config.checkpoint_every": 10}


def judge_layout(summary: dict[str, Any]) -> None:
    """Whether both axes were there, and something was learnt."""
    assert (summary["pp"], summary["dp_shard"], summary["degenerate"]) == (2, 2, False)
    assert summary["test_perplexity"] < 200, "256 kinds of bytes"


def llm(release: str = "", values: dict[str, Any] | None = None) -> Run:
    given: Any = {"values": LLM | (values or {}), "files": ("llm_tiny.yaml",), "judge": judge_layout}
    return Run("llm-2d", release, processes=4, steps=60, **given)


RUNS = [Run("ddp", values=CHECKPOINTS), Run("zero2", values=CHECKPOINTS), llm()]
# How such a run is analysed is shown by the nightly tests.
DISTURBED = {"run.config.comparison": "faults", "run.analysis.enabled": "false"}
FAULTS = [
    Fault(Run("ddp", "lost-pod-ddp", values=CHECKPOINTS | DISTURBED), RUNS[0]),
    Fault(Run("zero2", "lost-pod-zero2", values=CHECKPOINTS | DISTURBED), RUNS[1]),
    Fault(llm("lost-pod-llm-2d", DISTURBED), RUNS[2]),
]
each_run = pytest.mark.parametrize("each", RUNS, ids=lambda each: each.name)
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.run.name)


@each_run
def test_install(lab: Lab, each: Run) -> None:
    install(lab, each)


@each_run
def test_a_run_succeeds_by_helm_install_alone(lab: Lab, each: Run) -> None:
    check_success(lab, each)


@each_fault
def test_disturb(lab: Lab, fault: Fault) -> None:
    """One after the other: what is started beside the others may have ended before its turn comes."""
    disturb(lab, fault)


def test_mlflow_holds_metrics_and_reports(lab: Lab) -> None:
    check_mlflow(lab, RUNS)


@each_run
def test_helm_test(lab: Lab, each: Run) -> None:
    lab.test(each.name)


def test_the_runs_are_compared_over_the_volume(lab: Lab, tmp_path: Path) -> None:
    check_comparison(lab, "e2e", ["ddp", "zero2"], tmp_path / "report")


@each_run
def test_uninstall_leaves_the_results_and_nothing_else(lab: Lab, each: Run) -> None:
    check_uninstall(lab, each)


@each_fault
def test_a_disturbed_run_goes_on_and_ends_as_if_nothing_had_been(lab: Lab, fault: Fault) -> None:
    check_resumed(lab, fault)
    starts = restarts(lab, fault.run)
    assert len(starts) == 2 and all(count >= 2 for count in starts.values()), starts
    lab.uninstall(fault.run.name)
