"""The faults that a run survives, and what each has cost, read from metrics.jsonl, attempts.jsonl and MLflow's points.

Times of faults are those of the machine that injects them, times of steps those of the node: where the two clocks
differ, seconds to recover are wrong by as much.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.cluster.lab import KUBECTL, MOUNT, Lab, run, wait_until
from tests.cluster.path import Run
from tests.faults.matrix import Fault

OPERATOR = ("-n", "kubeflow")

# Fills /dev/shm, whose pages are the container's, until the kernel has ended a process: the largest, which is a rank.
# It stops there: what goes on to fill, while the memory of the first is not free yet, has the launcher ended too.
FILL = """
import os, time
root = "/sys/fs/cgroup/"
old = os.path.exists(root + "memory/memory.oom_control")
def count():
    lines = open(root + ("memory/memory.oom_control" if old else "memory.events")).read().splitlines()
    return int(dict(line.split() for line in lines)["oom_kill"])
before = count()
try:
    with open("/dev/shm/fill", "wb", buffering=0) as file:
        while count() == before:
            file.write(bytes(1 << 20))
finally:
    os.unlink("/dev/shm/fill")
"""


@dataclass(frozen=True)
class Deed:
    """One fault.

    Attributes:
        apply: injects it and waits until the run can go on; returns since when that is so, None: at once.
        restarts: whether the pods end by it and others take over.
        told: whether they are told before: then nothing is lost, else the steps since the last checkpoint.
    """

    fault: Fault
    apply: Callable[[Lab, Run], float | None]
    restarts: bool = True
    told: bool = True


def delete_pod(index: int) -> Callable[[Lab, Run], None]:
    def apply(lab: Lab, each: Run) -> None:
        lab.kubectl("delete", "pod", f"{each.name}-worker-{index}", "--wait=false")

    return apply


def evict(lab: Lab, each: Run) -> None:
    """As a node is drained: by the API for evictions, which asks the disruption budgets."""
    pod = {"name": f"{each.name}-worker-1", "namespace": lab.namespace}
    request = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": pod}
    path = f"/api/v1/namespaces/{lab.namespace}/pods/{pod['name']}/eviction"
    run([KUBECTL, "create", "--raw", path, "-f", "-"], text=json.dumps(request))


def suspend_and_resume(lab: Lab, each: Run) -> float:
    lab.helm("upgrade", each.name, each.chart, {**each.values, "run.suspend": "true"}, files=each.files)
    wait_until(lambda: not lab.pods(each.name), "no pods", 150)
    assert lab.conditions(f"{each.resource}/{each.name}").get("Suspended") == "True"
    began = time.time()
    lab.helm("upgrade", each.name, each.chart, each.values, files=each.files)
    return began


def restart_operator(lab: Lab, each: Run) -> None:
    selector = run([KUBECTL, *OPERATOR, "get", "deployment/training-operator", "-o", "json"]).stdout
    labels = json.loads(selector)["spec"]["selector"]["matchLabels"]
    chosen = ",".join(f"{name}={value}" for name, value in labels.items())
    run([KUBECTL, *OPERATOR, "delete", "pod", "-l", chosen])
    run([KUBECTL, *OPERATOR, "rollout", "status", "deployment/training-operator", "--timeout=240s"])


def lose_mlflow(lab: Lab, each: Run) -> None:
    lab.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=mlflow", "--wait=false")
    lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=240s")


def exhaust_memory(lab: Lab, each: Run) -> None:
    command = ["exec", f"{each.name}-worker-1", "--", "python", "-c", FILL]
    lab.kubectl(*command, check=False)  # the container may end below it


def read_progress(lab: Lab, each: Run) -> tuple[int, int]:
    """(attempt, step) of the last line of metrics.jsonl, asked of a pod of the run; (0, 0): nobody answers."""
    path = f"{MOUNT}/{each.folder}/metrics.jsonl"
    for index in (0, 1):
        text = lab.kubectl("exec", f"{each.name}-worker-{index}", "--", "tail", "-n", 2, path, check=False)
        for line in reversed(text.splitlines(keepends=True)):
            if line.endswith("\n"):
                found = json.loads(line)
                return found["attempt"], found["step"]
    return 0, 0


def wait_for_steps(lab: Lab, each: Run, attempt: int, steps: int) -> None:
    """Until an attempt from this one on has made so many steps while we look; fails where the run has ended."""
    first: dict[int, int] = {}

    def goes_on() -> bool:
        conditions = lab.conditions(f"{each.resource}/{each.name}")
        over = [name for name in ("Succeeded", "Failed") if conditions.get(name) == "True"]
        assert not over, f"{each.name} is over ({over[0]}) before attempt {attempt} has made {steps} steps"
        now, step = read_progress(lab, each)
        return now >= attempt and step >= first.setdefault(now, step) + steps

    lab.wait_for(each.name, goes_on, f"{steps} steps of attempt {attempt} of {each.name}")


def deed(number: int, what: str, injected: str, must: str, apply: Any, **options: bool) -> Deed:
    return Deed(Fault(f"K{number}", what, injected, must, ()), apply, **options)


UNNOTICED = "the run does not notice"
DEEDS = (
    deed(1, "the second worker is deleted", "kubectl delete pod", "143 and a checkpoint, goes on", delete_pod(1)),
    deed(2, "the first worker is deleted, rank 0 and rendezvous", "kubectl delete pod", "as K1", delete_pod(0)),
    deed(3, "a worker is evicted", "the API for evictions", "as K1", evict),
    deed(
        4, "the run is suspended and resumed", "helm upgrade, seconds count from the resumption", "as K1",
        suspend_and_resume,
    ),
    deed(5, "the operator is restarted", "its pod is deleted", UNNOTICED, restart_operator, restarts=False),
    deed(
        6, "MLflow's pod is lost", "its pod is deleted", f"{UNNOTICED}, every point arrives", lose_mlflow,
        restarts=False,
    ),
    deed(
        7, "the container's memory does not suffice", "its shared memory is filled above the limit",
        "137 with limit and use, goes on from the last checkpoint", exhaust_memory, told=False,
    ),
)  # fmt: skip


LONGEST_S = 120.0
"""From a fault to the next step: facts F4 and F5, on two cores."""
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Blow:
    """One fault that a run has suffered.

    Attributes:
        began: when it was injected, in seconds since 1970.
        ready: from when on the run could go on: behind a suspension later than `began`.
        restarts: whether the pods end by it and others take over.
        most_lost: steps that may have to be done again.
    """

    fault: Fault
    began: float
    ready: float
    restarts: bool
    most_lost: int = 0


@dataclass
class Cost:
    """Figures by the names of tests.faults.matrix.FIGURES, and what is wrong with them."""

    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def demand(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def count_points(self, found: Mapping[str, int]) -> None:
        """Of the whole run: none may be lost or doubled."""
        for name in ("points_lost", "points_doubled"):
            self.figures[name] = found[name]
            self.demand(not found[name], f"{name}: {found[name]}")


def measure_blows(blows: Sequence[Blow], lines: Lines, starts: Lines) -> list[Cost]:
    """Seconds to recover and steps lost of each.

    Args:
        blows: in the order of time.
        lines: of metrics.jsonl.
        starts: the lines `started` of attempts.jsonl.
    """
    ends = [*(blow.began for blow in blows[1:]), float("inf")]
    trained = [line for line in lines if line["kind"] == "train"]
    return [_measure(blow, end, trained, starts) for blow, end in zip(blows, ends, strict=True)]


def _measure(blow: Blow, end: float, trained: Lines, starts: Lines) -> Cost:
    cost = Cost()
    before = [start for start in starts if start["t"] <= blow.began]
    later = [start for start in starts if blow.began < start["t"] < end]
    if not before:
        cost.problems.append("early: it came before the first attempt")
        return cost
    cost.demand(bool(later) or not blow.restarts, "attempts: none came after it")
    cost.demand(not later or blow.restarts, f"attempts: {len(later)} after it, and the pods had not to end")
    attempt = before[-1]["attempt"]
    steps = [line for line in trained if blow.ready < line["t"] < end]
    if blow.restarts:
        steps = [line for line in steps if line["attempt"] > attempt]
    cost.demand(bool(steps), "steps: none came after it")
    if steps:
        cost.figures["seconds_to_recover"] = round(min(line["t"] for line in steps) - blow.ready, 1)
        cost.demand(cost.figures["seconds_to_recover"] <= LONGEST_S, f"late: more than {LONGEST_S:.0f} s")
    lost = cost.figures["steps_lost"] = _count_lost([before[-1], *later], trained)
    cost.demand(lost <= blow.most_lost, f"lost: {lost} steps, at most {blow.most_lost} are allowed")
    return cost


def _count_lost(starts: Lines, trained: Lines) -> int:
    """Steps that an attempt had made and the next one made again."""
    lost = 0
    for start, following in pairwise(starts):
        steps = [line["step"] for line in trained if line["attempt"] == start["attempt"]]
        lost += max(0, max(steps, default=start["from_step"]) - following["from_step"])
    return lost


def write_row(strategy: str, fault: Fault, cost: Cost) -> dict[str, Any]:
    return {
        "fault": f"{fault.number} {strategy}", "what": fault.what, "injected": fault.injected, "must": fault.must,
        "stand_in": fault.stand_in, "passed": not cost.problems, "tests": 1,
        "seconds": cost.figures.get("seconds_to_recover", 0.0),
        "figures": cost.figures, "problems": cost.problems,
    }  # fmt: skip
