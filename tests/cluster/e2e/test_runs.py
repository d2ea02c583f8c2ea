"""What `make e2e` shows: the path of a run, and a fault of it, for ddp, zero2 and nd.

The order saves time on two cores: all runs are installed at once, and the runs that are disturbed train while those
before them are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.faults import check_complete, restarts
from tests.cluster.lab import Lab
from tests.cluster.path import Run, check_comparison, check_mlflow, check_success, check_uninstall, install
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

# two stages of a pipeline, each on two devices: the smallest run with two axes
LLM: dict[str, Any] = {
    "run.nodes": 2,
    "run.processesPerNode": 2,
    "run.config.comparison": "llm",
    "run.config.model": "qwen_tiny",
    "run.config.seq_len": 64,
    "run.config.micro_batch_size": 2,
    "run.config.train_samples": 256,
    "run.config.steps": 20,
}


def judge_layout(summary: dict[str, Any]) -> str:
    """Whether both axes were there, and something was learnt."""
    assert (summary["pp"], summary["dp_shard"], summary["degenerate"]) == (2, 2, False)
    assert summary["test_perplexity"] < 200, "256 kinds of bytes"
    return f"{summary['layout']}, perplexity {summary['test_perplexity']:.1f}"


def llm(release: str = "", values: dict[str, Any] | None = None) -> Run:
    """A run of llm-2d, smaller than the example."""
    files = ("llm_tiny.yaml",)
    return Run(
        "llm-2d", release, values=LLM | (values or {}), files=files, processes=4, steps=20, judge=judge_layout
    )


RUNS = [Run("ddp"), Run("zero2"), llm()]
# Long enough for something to happen in the middle. How such a run is analysed is shown by the nightly tests.
DISTURBED = {"run.config.comparison": "faults", "run.analysis.enabled": "false"}
DIGITS = DISTURBED | {"run.config.epochs": 40}

# run by the pod's Python: as the kernel ends a process that takes too much memory
KILL_RANK = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"trainer.worker" in open(f"/proc/{pid}/cmdline", "rb").read().split(bytes(1)):
        print("killed", pid)
        os.kill(int(pid), signal.SIGKILL)
"""


def delete_pod(lab: Lab, release: str) -> None:
    """The second pod goes, as from a node that is drained."""
    lab.kubectl("delete", "pod", f"{release}-worker-1", "--wait=false")


def kill_rank(lab: Lab, release: str) -> None:
    """The second pod's rank is killed; the pod's launcher lives on and has to tell."""
    assert "killed" in lab.kubectl("exec", f"{release}-worker-1", "--", "python", "-c", KILL_RANK)


@dataclass(frozen=True)
class Fault:
    """What is done to a run in the middle of it: it starts again, and loses nothing but time."""

    run: Run
    cause: Callable[[Lab, str], None]


FAULTS = [
    Fault(Run("ddp", "lost-pod-ddp", values=DIGITS), delete_pod),
    Fault(Run("zero2", "killed-rank-zero2", values=DIGITS), kill_rank),
    Fault(llm("lost-pod-llm-2d", DISTURBED | {"run.config.steps": 100}), delete_pod),
]
each_run = pytest.mark.parametrize("each", RUNS, ids=lambda each: each.name)
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.run.name)


@each_run
def test_install(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm install"):
        install(lab, each)


@each_run
def test_a_run_succeeds_by_helm_install_alone(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: two pods, Succeeded, analysed") as notes:
        notes.append(check_success(lab, each))


@each_fault
def test_install_what_is_disturbed(lab: Lab, steps: Steps, fault: Fault) -> None:
    with steps.step(f"{fault.run.name}: helm install"):
        install(lab, fault.run)


@each_fault
def test_disturb(lab: Lab, steps: Steps, fault: Fault) -> None:
    with steps.step(f"{fault.run.name}: {fault.cause.__name__} in the middle"):
        lab.wait_for_step(fault.run.name, 10)
        fault.cause(lab, fault.run.name)


def test_mlflow_holds_metrics_and_reports(lab: Lab, steps: Steps) -> None:
    with steps.step("MLflow, asked through its Service, holds every metric and report"):
        check_mlflow(lab, RUNS)


@each_run
def test_helm_test(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm test"):
        lab.test(each.name)


def test_the_runs_are_compared_over_the_volume(lab: Lab, steps: Steps, tmp_path) -> None:
    with steps.step("stratlab compare --on-cluster") as notes:
        notes.append(check_comparison(lab, "e2e", ["ddp", "zero2"], tmp_path / "report"))


@each_run
def test_uninstall_leaves_the_results_and_nothing_else(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm uninstall leaves the results and nothing else"):
        check_uninstall(lab, each)


@each_fault
def test_a_disturbed_run_starts_again_and_succeeds(lab: Lab, steps: Steps, fault: Fault) -> None:
    with steps.step(f"{fault.run.name}: started again, Succeeded, nothing lost") as notes:
        attempts = check_complete(lab, fault.run.name, comparison="faults")
        assert attempts >= 2
        starts = restarts(lab, fault.run.name, comparison="faults")
        assert len(starts) == 2 and all(count >= 2 for count in starts.values()), starts
        notes.append(f"{attempts} attempts, starts per pod {starts}")
        lab.uninstall(fault.run.name)
