"""What to do with a release, for every pair of what is remembered and what is seen."""

from __future__ import annotations

import pytest

from stratlab.sweep.decision import Seen, decide
from stratlab.sweep.state import Entry

GONE = Seen()
RUNS = Seen("deployed", "A", has_workload=True)
WITHOUT = Seen("deployed", "A")
HALF = Seen("pending-install", "A")
UNSAID = Seen("pending-install", "A", has_workload=True)  # helm was killed after its last object
GOING = Seen("uninstalling", "A", has_workload=True)
BROKEN = Seen("failed", "A")
OTHER = Seen("deployed", "B", has_workload=True)

INSTALLING, RUNNING = Entry("installing", "A"), Entry("running", "A")
SUCCEEDED, FAILED = Entry("succeeded", "A"), Entry("failed", "A", "oom")


@pytest.mark.parametrize(
    ("entry", "seen", "step"),
    [
        (None, GONE, "install"),
        (None, RUNS, "join"),
        (None, WITHOUT, "reinstall"),
        (None, HALF, "reinstall"),
        (None, UNSAID, "join"),
        (None, GOING, "reinstall"),
        (None, BROKEN, "reinstall"),
        (None, OTHER, "refuse"),
        (INSTALLING, GONE, "install"),
        (INSTALLING, RUNS, "join"),
        (INSTALLING, HALF, "reinstall"),
        (INSTALLING, UNSAID, "join"),
        (RUNNING, RUNS, "join"),
        (RUNNING, GONE, "install"),
        (RUNNING, WITHOUT, "reinstall"),
        (RUNNING, OTHER, "refuse"),
        *((SUCCEEDED, seen, "skip") for seen in (GONE, RUNS, WITHOUT, HALF, OTHER)),
        *((FAILED, seen, "skip") for seen in (GONE, RUNS, WITHOUT, HALF)),
    ],
)
def test_next_step(entry: Entry | None, seen: Seen, step: str) -> None:
    assert decide(entry, seen, "A", retry_failed=False).step == step


@pytest.mark.parametrize(("seen", "step"), [(GONE, "install"), (RUNS, "reinstall"), (OTHER, "refuse")])
def test_a_failed_run_gets_another_chance_when_asked_for(seen: Seen, step: str) -> None:
    assert decide(FAILED, seen, "A", retry_failed=True).step == step
    assert decide(SUCCEEDED, seen, "A", retry_failed=True).step == "skip"


@pytest.mark.parametrize("entry", [INSTALLING, RUNNING, SUCCEEDED, FAILED])
def test_other_settings_under_the_same_name_are_refused(entry: Entry) -> None:
    for seen in (GONE, RUNS):
        decision = decide(entry, seen, "C", retry_failed=True)
        assert decision.step == "refuse" and "other settings" in decision.reason
