"""A run with checkpoints is disturbed in the middle: it goes on, and ends like one that nobody disturbed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.lab import MOUNT, Lab
from tests.cluster.path import Run, install

CHECKPOINTS = {"run.config.epochs": 20, "run.config.checkpoint_every": 50}
"""400 steps of the small network: long enough to be disturbed behind a checkpoint."""
EQUAL = 1e-6
"""Largest relative difference of losses: nothing on one kind of processor, rounding where nodes differ."""
SAME = ("steps", "initial_weights_sha256", "data_order_sha256", "dtype_parameters", "dtype_optimizer")
ENDING = ("train_loss", "validation_loss", "test_loss")

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
    lab.kubectl("delete", "pod", lab.pod_of(release, 1), "--wait=false")


def kill_rank(lab: Lab, release: str) -> None:
    """The second pod's rank is killed; the pod's launcher lives on and has to tell."""
    assert "killed" in lab.kubectl("exec", lab.pod_of(release, 1), "--", "python", "-c", KILL_RANK)


@dataclass(frozen=True)
class Fault:
    """What is done to a run, and the run of the same settings that nobody disturbs."""

    run: Run
    whole: Run
    cause: Callable[[Lab, str], None] = delete_pod


def disturb(lab: Lab, fault: Fault) -> None:
    """Installs the run, and disturbs it behind a checkpoint."""
    install(lab, fault.run)
    wait_for_checkpoint(lab, fault.run)
    fault.cause(lab, fault.run.name)


def wait_for_checkpoint(lab: Lab, each: Run) -> None:
    """Until the first pod of a run sees a checkpoint that is committed."""
    look = ["ls", f"{MOUNT}/{each.folder}/checkpoints"]

    def committed() -> bool:
        failed = lab.conditions(f"{each.resource}/{each.name}").get("Failed")
        assert failed != "True", f"{each.name} has failed before its first checkpoint"
        # there is no folder before the first one
        names = lab.kubectl("exec", lab.pod_of(each.name, 0), "--", *look, check=False).split()
        return any(name.startswith("step_") for name in names)

    lab.wait_for(each.name, committed, f"a checkpoint of {each.name}")


def restarts(lab: Lab, each: Run) -> dict[str, int]:
    """{pod: how often it was started}, from the ledgers on the volume."""
    listing = lab.on_volume("grep", "-c", '"started"', "-r", f"{MOUNT}/{each.folder}/pods")
    return {line.rsplit("/", 1)[1].split(".")[0]: int(line.rsplit(":", 1)[1]) for line in listing.split()}


def check_resumed(lab: Lab, fault: Fault) -> None:
    """Succeeded; the last attempt began behind a checkpoint; every loss is the undisturbed run's."""
    lab.watch(fault.run.name)
    compare_runs(lab, fault.run, fault.whole, lab.read_starts(fault.run.folder))
    lab.test(fault.run.name)


def compare_runs(lab: Lab, each: Run, whole: Run, starts: list[dict[str, Any]]) -> float:
    """As `compare_ends`, of what the two runs have left on the volume."""
    lines, whole_lines = (lab.read_lines(f"{run.folder}/metrics.jsonl") for run in (each, whole))
    summary, whole_summary = (lab.read(f"{run.folder}/summary.json") for run in (each, whole))
    return compare_ends(starts, lines, summary, whole_lines, whole_summary)


def compare_ends(
    starts: list[dict[str, Any]],
    lines: list[dict[str, Any]],
    summary: dict[str, Any],
    whole_lines: list[dict[str, Any]],
    whole_summary: dict[str, Any],
) -> float:
    """Largest relative difference of any loss of a run that was disturbed from those of one that was not."""
    assert len(starts) >= 2, "it was never started again"
    first, last = starts[0], starts[-1]
    assert first["from_step"] == 0 < last["from_step"], f"it did not go on from a checkpoint: {starts}"
    steps = [x["step"] for x in lines if x["kind"] == "train" and x["attempt"] == last["attempt"]]
    assert steps == list(range(last["from_step"] + 1, summary["steps"] + 1)), f"the last attempt has {steps}"
    undisturbed = {x["step"]: x["loss"] for x in whole_lines if x["kind"] == "train"}
    assert list(undisturbed) == list(range(1, summary["steps"] + 1))
    for name in SAME:
        assert summary[name] == whole_summary[name], name
    pairs = [(x["loss"], undisturbed[x["step"]]) for x in lines if x["kind"] == "train"]
    pairs += [(summary[name], whole_summary[name]) for name in ENDING]
    difference = max(abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in pairs)
    assert difference <= EQUAL, f"losses differ by {difference:.2g}"
    return difference
