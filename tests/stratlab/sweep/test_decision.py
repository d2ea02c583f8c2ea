"""What to do with a release, from what is remembered and what is seen."""

from __future__ import annotations

import pytest

from stratlab.sweep.decision import Seen, decide
from stratlab.sweep.state import Entry
from tests.codes import find_codes

GONE = Seen()
RUNS = Seen("deployed", "A", has_workload=True)
WITHOUT = Seen("deployed", "A")
HALF = Seen("pending-install", "A")
UNSAID = Seen("pending-install", "A", has_workload=True)  # helm was killed after its last object
GOING = Seen("uninstalling", "A", has_workload=True)
OTHER = Seen("deployed", "B", has_workload=True)
INSTALLING, RUNNING = Entry("installing", "A"), Entry("running", "A")
SUCCEEDED, FAILED = Entry("succeeded", "A"), Entry("failed", "A", "oom")


@pytest.mark.parametrize(
    ("entry", "seen", "step", "with_retry"),
    [
        (None, GONE, "install", "install"),
        (None, RUNS, "join", "join"),
        (None, WITHOUT, "reinstall", "reinstall"),
        (None, HALF, "reinstall", "reinstall"),
        (None, UNSAID, "join", "join"),
        (None, GOING, "reinstall", "reinstall"),
        (RUNNING, OTHER, "refuse", "refuse"),
        (INSTALLING, GONE, "install", "install"),
        (SUCCEEDED, OTHER, "skip", "skip"),
        (FAILED, GONE, "skip", "install"),
        (FAILED, RUNS, "skip", "reinstall"),
    ],
)
def test_next_step(entry: Entry | None, seen: Seen, step: str, with_retry: str) -> None:
    assert decide(entry, seen, "A", retry_failed=False).step == step
    assert decide(entry, seen, "A", retry_failed=True).step == with_retry


def test_other_settings_under_the_same_name_are_refused() -> None:
    for entry, seen, code in (
        (SUCCEEDED, GONE, "SL-run-other-settings"),
        (RUNNING, RUNS, "SL-run-other-settings"),
        (None, RUNS, "SL-release-other-settings"),
    ):
        decision = decide(entry, seen, "C", retry_failed=True)
        assert (decision.step, find_codes(decision.reason)) == ("refuse", [code])
