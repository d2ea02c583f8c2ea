"""Every fault of the table, for every strategy and an MPIJob: what it costs, and that the run ends as if undisturbed.

Per strategy: a run that nobody disturbs, and the same run that suffers all faults that a run survives one after the
other. A full volume: tests/trainer/ranks/slow/test_worker.py. The rows lie in reports/raw/cluster-faults.json,
which `make nightly` keeps.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.run_directory import write_json
from tests.cluster.disturbed.deeds import (
    DEEDS,
    Blow,
    Cost,
    Deed,
    measure_blows,
    read_progress,
    wait_for_steps,
    write_row,
)
from tests.cluster.lab import MOUNT, ROOT, Lab
from tests.cluster.path import PIPELINE, Run, install
from tests.cluster.resuming import compare_runs, wait_for_checkpoint
from tests.faults.outcome import write_table

pytestmark = pytest.mark.cluster

FOUND = ROOT / "reports" / "raw" / "cluster-faults.json"
TABLE = ROOT / "reports" / "cluster-faults.md"
BETWEEN = 20
"""Steps of an attempt before the next fault."""
ALL: dict[str, Any] = {
    # another one in each session: with STRATLAB_E2E_KEEP the folders of the last one are still there
    "run.config.comparison": time.strftime("disturbed-%m%d-%H%M%S"),
    "run.config.profile_steps": 0,
    "run.analysis.enabled": "false",
}
# of which four processes on two cores make some ten in a second
LLM = PIPELINE | ALL | {"run.config.steps": 800, "run.config.checkpoint_every": 50}
MEMORY_GIB = {1: 2, 2: 3}
"""Processes of a pod -> its limit."""
# Points of metrics.jsonl that MLflow does not have, and the other way round
COUNT = """
import json, sys
from collections import Counter
from pathlib import Path
from mlflow.tracking import MlflowClient
from stratlab.run_directory.record import read_run
from stratlab.verify import read_points
folder = Path(sys.argv[1])
record = json.loads((folder / "mlflow.json").read_text())
client, asked = MlflowClient(record["tracking_uri"]), read_points(read_run(folder).metrics)
found = {"points": 0, "points_lost": 0, "points_doubled": 0}
for key, points in asked.items():
    held = Counter((m.step, m.timestamp, float(m.value)) for m in client.get_metric_history(record["run_id"], key))
    found["points"] += len(points)
    found["points_lost"] += sum((Counter(points) - held).values())
    found["points_doubled"] += sum((held - Counter(points)).values())
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Strategy:
    name: str
    run: Run

    def named(self, what: str, **values: Any) -> Run:
        return replace(self.run, release=f"{what}-{self.name}", values=self.run.values | values)

    @property
    def whole(self) -> Run:
        return self.named("whole")

    @property
    def long(self) -> Run:
        """That suffers one fault after the other; its shared memory may be larger than what the container may use."""
        limit = MEMORY_GIB[int(self.run.values.get("run.processesPerNode", 1))]
        sizes = {"run.resources.limits.memory": f"{limit}Gi", "run.sharedMemory.sizeLimit": f"{2 * limit}Gi"}
        return self.named("long", **sizes)


def digits(name: str, epochs: int, **options: Any) -> Strategy:
    """The small network, each of so many epochs as its steps are slow: long enough for seven faults."""
    api = options.pop("api", "pytorchjob")
    values = {"run.config.epochs": epochs, "run.config.checkpoint_every": 200, "run.workload.api": api}
    return Strategy(name, Run(options.pop("chart", name), values=ALL | values, **options))


MPI: dict[str, Any] = {"chart": "ddp", "place": "baseline", "resource": "mpijobs.v1.kubeflow.org"}
STRATEGIES = (
    digits("ddp", 150),
    digits("zero2", 120),
    digits("fsdp", 90),
    Strategy("nd", Run("llm-2d", values=LLM, files=("llm_tiny.yaml",), processes=4)),
    digits("mpijob", 150, api="mpijob-v1", **MPI),
)
EXPECTED = len(STRATEGIES) * len(DEEDS)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)


class Record:
    """Rows and facts of one session, written after each strategy; the table is that of all of them."""

    def __init__(self, found: Path = FOUND, table: Path = TABLE, expected: int = EXPECTED) -> None:
        self._found, self._table, self._expected = found, table, expected
        self.rows: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []

    def add(self, rows: list[dict[str, Any]], run: dict[str, Any]) -> None:
        """Rows of a strategy, and what is known of its run; fails where one names a problem."""
        self.rows += rows
        self.runs.append(run)
        self._found.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._found, {"faults": self.rows, "runs": self.runs})
        if len(self.rows) == self._expected:
            self._table.write_text(write_table(self.rows))
        assert all(row["passed"] for row in rows), write_table(rows)


@pytest.fixture(scope="module")
def record() -> Record:
    return Record()


@each_strategy
def test_a_run_survives_one_fault_after_the_other(labs, record, strategy):
    lab, whole, long = labs[strategy.run.place], strategy.whole, strategy.long
    with installed(lab, whole):
        began = time.monotonic()
        check_end(lab, whole)
        facts: dict[str, Any] = {"strategy": strategy.name, "whole_s": round(time.monotonic() - began, 1)}
    blows: list[Blow] = []
    try:
        with installed(lab, long):
            wait_for_steps(lab, long, 1, BETWEEN)
            for deed in DEEDS:
                blows.append(strike(lab, long, deed))
            check_end(lab, long)
            costs, found = measure_run(lab, whole, long, blows)
    except AssertionError as failed:
        costs, found = blame(len(blows), str(failed)), {}
    rows = [write_row(strategy.name, deed.fault, cost) for deed, cost in zip(DEEDS, costs, strict=True)]
    record.add(rows, facts | found)


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


def strike(lab: Lab, each: Run, deed: Deed) -> Blow:
    """Injects a fault, and waits until the run has gone on for some steps."""
    if not deed.told:
        wait_for_checkpoint(lab, each)
    attempt, _ = read_progress(lab, each)
    assert attempt, f"no pod of {each.name} answers\n{lab.describe(each.name)}"
    began = time.time()
    ready = deed.apply(lab, each)
    wait_for_steps(lab, each, attempt + 1 if deed.restarts else attempt, BETWEEN)
    most_lost = 0 if deed.told else int(each.values["run.config.checkpoint_every"])
    return Blow(deed.fault, began, ready or began, deed.restarts, most_lost)


def check_end(lab: Lab, each: Run) -> None:
    lab.watch(each.name, timeout_s=900)
    assert lab.conditions(f"{each.resource}/{each.name}").get("Succeeded") == "True"


def measure_run(lab: Lab, whole: Run, long: Run, blows: list[Blow]) -> tuple[list[Cost], dict[str, Any]]:
    """What each fault has cost; what is known of the run as a whole, which holds or not for all of them."""
    lines, starts = lab.read_lines(f"{long.folder}/metrics.jsonl"), lab.read_starts(long.folder)
    costs, points = measure_blows(blows, lines, starts), count_points(lab, long)
    ledger = lab.read_lines(f"{long.folder}/pods/{long.name}-worker-1.jsonl")
    killed = [line.get("text", "") for line in ledger if line.get("exit_code") == 137]
    for deed, cost in zip(DEEDS, costs, strict=True):  # a limit of the container's and what it used at most
        cost.demand(
            deed.told or any(text.count(" GiB") == 2 for text in killed), "no pod tells limit and use"
        )
    try:
        difference, wrong = compare_runs(lab, long, whole, starts), ""
    except AssertionError as differs:
        difference, wrong = -1.0, str(differs)
    for cost in costs:
        cost.count_points(points)
        cost.demand(not wrong, f"the run as a whole: {wrong}")
    lab.test(long.name)
    facts = {"attempts": len(starts), "points": points["points"], "largest_loss_difference": difference}
    return costs, facts | {"steps": max(line["step"] for line in lines)}


def count_points(lab: Lab, each: Run) -> dict[str, int]:
    """How many metrics.jsonl has; how many MLflow lacks, or has besides."""
    command = ("python", "-c", COUNT, f"{MOUNT}/{each.folder}")
    return dict(json.loads(lab.on_volume(*command, component="test").splitlines()[-1]))
