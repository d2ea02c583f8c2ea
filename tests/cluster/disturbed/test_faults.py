"""Every fault of the table, for every strategy and an MPIJob: what it costs, and that the run ends as if undisturbed.

Per strategy: a run that nobody disturbs, the same run that suffers all faults that a run survives one after the other,
and a short one whose volume fills up.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.disturbed.deeds import DEEDS, FULL, Deed, read_progress, wait_for_steps
from tests.cluster.disturbed.record import Record
from tests.cluster.disturbed.runs import STRATEGIES, Strategy
from tests.cluster.disturbed.small_volume import SmallVolume, small_volume
from tests.cluster.figures import Blow, Cost, measure_blows, share_points, write_row
from tests.cluster.lab import CLAIM, MOUNT, Lab, wait_until
from tests.cluster.path import Run, install
from tests.cluster.resuming import compare_ends, read_summary, wait_for_checkpoint
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

BETWEEN = 20
"""Steps of an attempt before the next fault."""
# Points of metrics.jsonl that MLflow does not have, and the other way round: their times
COUNT = """
import json, sys
from collections import Counter
from pathlib import Path
from mlflow.tracking import MlflowClient
from stratlab.run_directory.record import read_run
from stratlab.verify.mlflow_points import read_points
folder = Path(sys.argv[1])
record = json.loads((folder / "mlflow.json").read_text())
client, asked = MlflowClient(record["tracking_uri"]), read_points(read_run(folder).metrics)
lost, doubled, total = [], [], 0
for key, points in asked.items():
    held = Counter((m.step, m.timestamp, float(m.value)) for m in client.get_metric_history(record["run_id"], key))
    total += len(points)
    lost += [point[1] / 1000 for point in (Counter(points) - held).elements()]
    doubled += [point[1] / 1000 for point in (held - Counter(points)).elements()]
print(json.dumps({"points": total, "lost": lost, "doubled": doubled}))
"""


@pytest.fixture(scope="module")
def record() -> Record:
    return Record()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_run_survives_one_fault_after_the_other(
    labs: dict[str, Lab], steps: Steps, record: Record, strategy: Strategy
) -> None:
    lab, whole, long = labs[strategy.run.place], strategy.whole, strategy.long
    with steps.step(f"{whole.name}: left alone, Succeeded"), installed(lab, whole):
        began = time.monotonic()
        check_end(lab, whole)
        facts: dict[str, Any] = {"strategy": strategy.name, "whole_s": round(time.monotonic() - began, 1)}
    blows: list[Blow] = []
    try:
        with installed(lab, long):
            wait_for_steps(lab, long, 1, BETWEEN)
            for deed in DEEDS:
                with steps.step(f"{long.name}: {deed.fault.what}"):
                    blows.append(strike(lab, long, deed, strategy.checkpoint_every))
            with steps.step(f"{long.name}: Succeeded, the undisturbed losses, every point once") as notes:
                check_end(lab, long)
                costs, found = measure_run(lab, whole, long, blows)
                notes.append(json.dumps(found))
    except AssertionError as failed:
        costs, found = blame(len(blows), str(failed)), {}
    rows = [write_row(strategy.name, deed.fault, cost) for deed, cost in zip(DEEDS, costs, strict=True)]
    record.add(rows, facts | found)
    problems = [f"{row['fault']}: {problem}" for row in rows for problem in row["problems"]]
    assert not problems, "\n".join(problems)


def blame(survived: int, why: str) -> list[Cost]:
    """Of a run that has not come to its end: nothing is measured, and the fault behind those survived is the cause."""
    problems = ["the run did not come to its end"] * survived + [why] + ["not reached"] * len(DEEDS)
    return [Cost(problems=[problem]) for problem in problems[: len(DEEDS)]]


@contextmanager
def installed(lab: Lab, each: Run) -> Iterator[None]:
    """A release that is gone afterwards, so that it does not train beside those that follow."""
    install(lab, each)
    try:
        yield
    finally:
        lab.uninstall(each.name)


def strike(lab: Lab, each: Run, deed: Deed, checkpoint_every: int) -> Blow:
    """Injects a fault, and waits until the run has gone on for some steps."""
    if not deed.told:
        wait_for_checkpoint(lab, each)
    attempt, _ = read_progress(lab, each)
    assert attempt, f"no pod of {each.name} answers\n{lab.describe(each.name)}"
    began = time.time()
    ready = deed.apply(lab, each)
    wait_for_steps(lab, each, attempt + 1 if deed.restarts else attempt, BETWEEN)
    return Blow(deed.fault, began, ready or began, deed.restarts, 0 if deed.told else checkpoint_every)


def check_end(lab: Lab, each: Run) -> None:
    done = lab.watch(each.name, timeout_s=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:] + lab.describe(each.name)
    assert lab.conditions(f"{each.resource}/{each.name}").get("Succeeded") == "True"


def measure_run(lab: Lab, whole: Run, long: Run, blows: list[Blow]) -> tuple[list[Cost], dict[str, Any]]:
    """What each fault has cost; what is known of the run as a whole."""
    lines = lab.read_lines(f"{long.folder}/metrics.jsonl")
    starts = [line for line in lab.read_lines(f"{long.folder}/attempts.jsonl") if line["event"] == "started"]
    costs = measure_blows(blows, lines, starts)
    points = count_points(lab, long)
    share_points(costs, blows, points["lost"], points["doubled"])
    ledger = lab.read_lines(f"{long.folder}/pods/{long.name}-worker-1.jsonl")
    for deed, cost in zip(DEEDS, costs, strict=True):
        if not deed.told and not any(names_limit_and_use(line) for line in ledger):
            cost.problems.append("no pod has said limit and use")
    try:
        difference = compare_ends(
            starts, lines, read_summary(lab, long),
            lab.read_lines(f"{whole.folder}/metrics.jsonl"), read_summary(lab, whole),
        )  # fmt: skip
    except AssertionError as wrong:
        difference = None
        for cost in costs:
            cost.problems.append(f"the run as a whole: {wrong}")
    lab.test(long.name)
    facts = {"attempts": len(starts), "points": points["points"], "largest_loss_difference": difference}
    return costs, facts | {"steps": max(line["step"] for line in lines)}


def count_points(lab: Lab, each: Run) -> dict[str, Any]:
    """{"points": of metrics.jsonl, "lost" and "doubled": times of those that MLflow lacks, or has besides}."""
    claim = each.values.get("run.results.claim", CLAIM)
    command = ("python", "-c", COUNT, f"{MOUNT}/{each.folder}")
    return dict(json.loads(lab.on_volume(*command, component="test", claim=claim).splitlines()[-1]))


def names_limit_and_use(line: dict[str, Any]) -> bool:
    """Whether a pod's last line says of the kernel's killer what a user needs."""
    return line.get("exit_code") == 137 and all(x in line.get("text", "") for x in ("are allowed", "it used"))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_volume_that_is_full_costs_no_older_checkpoint(
    labs: dict[str, Lab], steps: Steps, record: Record, strategy: Strategy
) -> None:
    lab = labs[strategy.run.place]
    with small_volume(lab, f"small-{strategy.name}") as volume:
        run = strategy.full(volume.name)
        with steps.step(f"{run.name}: {FULL.what}") as notes:
            try:
                cost, facts = fill_and_go_on(lab, volume, run)
            except AssertionError as failed:
                cost, facts = Cost(problems=[str(failed)]), {}
            record.add(
                [write_row(strategy.name, FULL, cost)],
                {"strategy": strategy.name, "fault": FULL.number} | facts,
            )
            notes.append(json.dumps(facts))
            assert not cost.problems, "\n".join(cost.problems)


def fill_and_go_on(lab: Lab, volume: SmallVolume, run: Run) -> tuple[Cost, dict[str, Any]]:
    """Behind a checkpoint the volume is filled: 13; with space again the run goes on. What it has cost."""
    cost = Cost()
    with installed(lab, run):
        wait_for_checkpoint(lab, run)
        began = time.time()
        volume.fill()
        wait_until(
            lambda: lab.conditions(f"{run.resource}/{run.name}").get("Failed") == "True", "Failed", 240
        )
        cost.figures["seconds_to_recover"] = round(time.time() - began, 1)
        done, said = lab.watch(run.name), lab.logs(run.name)
    if done.returncode != 13:
        cost.problems.append(f"ended with {done.returncode} instead of 13: {done.stdout[-1000:]}")
    if "is left out, training goes on" not in said:
        cost.problems.append("the first checkpoint that did not fit was not left out with a warning")
    there = volume.check_checkpoints(run.folder)
    if not there:
        cost.problems.append("no checkpoint is left")
    cost.problems += [f"{name}: {wrong}" for name, wrong in there.items() if wrong]
    volume.free()
    with installed(lab, run):
        check_end(lab, run)
        points = count_points(lab, run)
    starts = [
        line for line in volume.read_lines(f"{run.folder}/attempts.jsonl") if line["event"] == "started"
    ]
    written = volume.read_lines(f"{run.folder}/metrics.jsonl")
    if len(starts) != 2 or not starts[-1]["from_step"]:
        cost.problems.append(f"it did not go on from a checkpoint: {starts}")
    # at least so far, by what was said of progress and of checkpoints: the last lines of metrics.jsonl found no place
    reached = max((int(step) for step in re.findall(r"\bstep (\d+)", said)), default=0)
    reached = max([reached, *(line["step"] for line in written if line["attempt"] == 1)])
    cost.figures["steps_lost"] = max(0, reached - starts[-1]["from_step"])
    cost.figures |= {f"points_{kind}": len(points[kind]) for kind in ("lost", "doubled")}
    if points["lost"] or points["doubled"]:
        cost.problems.append(f"points lost or doubled in MLflow: {cost.figures}")
    return cost, {"checkpoints_whole": len(there), "went_on_from": starts[-1]["from_step"]}
