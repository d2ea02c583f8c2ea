"""CPU seconds of each test and of all that it starts: what it may take, what it took, and where they went.

A test of the fast tier or of `make test` that takes more than its limit is listed after the run; one that takes three
times its limit fails. DEARER names those that may take more, with the reason. Not counted: a program forked from the
warmed process (programs.py) whose environment lacks the test's name, as a pod of a rehearsal.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.session import session_folder
from tests.tiers import CHANGE, FAST, TIERS, tier_of

LIMIT_S, LIMIT_WITH_RANKS_S = 2.0, 10.0
"""CPU seconds of a test in one process; of one that starts ranks, programs, a browser or a server."""
FAILS_FROM = 3
DEARER: dict[str, tuple[float, str]] = {
    "tests/parity/test_parity.py": (40.0, "all cases of a number of ranks are trained in one fork"),
    "tests/parity_llm/test_parity_llm.py": (50.0, "the same for decoders"),
    "tests/rehearsals/test_comparison.py": (
        20.0,
        "the first test makes the comparison that all tests of the file read",
    ),
    "tests/trainer/models/longer/test_compiled.py": (4.0, "it compiles"),
    "tests/trainer/counting/test_memory_profile.py::test_nothing_is_left": (8.0, "a program imports torch"),
    "tests/trainer/counting/longer/test_recorded": (6.0, "each counts a whole step of an engine"),
    "tests/mutants/longer/test_mutants.py::test_pytest_itself": (4.0, "it starts pytest"),
    "tests/trainer/parallel/ranks/test_compiled.py": (
        60.0,
        "torch compiles with an empty cache on a new machine",
    ),
    "tests/trainer/parallel/ranks/test_nd_engine.py": (25.0, "took 21 s on a new machine"),
    "tests/trainer/ranks/test_text_worker.py": (25.0, "a whole run of a language model, and the same alone"),
    "tests/trainer/ranks/test_launcher.py": (20.0, "programs start cold"),
    "tests/trainer/ranks/test_evaluate.py": (20.0, "a run, and an evaluation of what it exported"),
    "tests/trainer/ranks/test_wire.py": (20.0, "took 15 s on a new machine"),
    "tests/trainer/parallel/ranks/test_fully_shard.py": (
        20.0,
        "the first of the file starts what all use",
    ),
    "tests/trainer/strategies/ranks/test_state.py": (15.0, "a run, and the same run stopped and resumed"),
    "tests/stratlab/machine/processes/test_interruption.py": (15.0, "it starts an MLflow server"),
}
"""Start of a test's node id -> CPU seconds that it may take, and why."""
SHOWN = 12
"""Folders in the table of seconds."""


def charge(seconds: float, test: str) -> None:
    """Book CPU seconds of a process that is no descendant of the test's own process."""
    with (session_folder() / "cpu-seconds").open("a") as book:
        book.write(f"{test}\t{seconds:.3f}\n")


def running_test() -> str:
    """Return the node id of the test that is running, as processes inherit it; empty outside of a test."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def find_limit(nodeid: str) -> float | None:
    """Return the CPU seconds that a test may take; None where its tier has no limit."""
    for start, (seconds, _) in DEARER.items():
        if nodeid.startswith(start):
            return seconds
    path = PurePath(nodeid.partition("::")[0]).relative_to("tests")
    tier = tier_of(path)
    if tier not in (FAST, CHANGE):
        return None
    return LIMIT_S if tier is FAST or "longer" in path.parts else LIMIT_WITH_RANKS_S


class Budget:
    """The plugin: measures in each worker, lists in the process that was called."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._began_s = _own_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        report: Any = yield
        if report.when != "teardown":
            return report
        limit_s = find_limit(item.nodeid)
        spent_s = _own_seconds() - self._began_s + _read_charges(item.nodeid)
        report.user_properties.append(("cpu_s", round(spent_s, 3)))
        if limit_s is not None and spent_s > FAILS_FROM * limit_s and report.passed:
            report.outcome = "failed"
            report.longrepr = f"{spent_s:.1f} CPU seconds, {limit_s:g} are allowed (tests/budget.py)"
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        spent = {
            report.nodeid: dict(report.user_properties)["cpu_s"]
            for reports in terminalreporter.stats.values()
            for report in reports
            if "cpu_s" in dict(getattr(report, "user_properties", []))
        }
        if spent:
            _write_folders(terminalreporter, spent)
        over = {
            nodeid: seconds
            for nodeid, seconds in spent.items()
            if (limit_s := find_limit(nodeid)) is not None and seconds > limit_s
        }
        if over:
            terminalreporter.section("tests over their CPU seconds (tests/budget.py)")
            for nodeid, seconds in sorted(over.items(), key=lambda item: -item[1]):
                terminalreporter.write_line(f"{seconds:7.1f} of {find_limit(nodeid):g} s  {nodeid}")


def _own_seconds() -> float:
    """Of this process and of its descendants that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _read_charges(nodeid: str) -> float:
    book = session_folder() / "cpu-seconds"
    lines = book.read_text().splitlines() if book.exists() else []
    return sum(float(line.rpartition("\t")[2]) for line in lines if line.rpartition("\t")[0] == nodeid)


def _write_folders(terminalreporter: Any, spent: dict[str, float]) -> None:
    seconds: Counter[tuple[str, str]] = Counter()
    tests: Counter[tuple[str, str]] = Counter()
    for nodeid, spent_s in spent.items():
        path = Path(nodeid.partition("::")[0]).relative_to("tests")
        key = (tier_of(path).name, path.parent.as_posix())
        seconds[key] += spent_s
        tests[key] += 1
    terminalreporter.section("CPU seconds of tests and what they start, by folder")
    for (tier, folder), spent_s in seconds.most_common(SHOWN):
        terminalreporter.write_line(
            f"{spent_s:7.0f} s {tests[tier, folder]:5} tests  {tier:8} tests/{folder}"
        )
    for tier in TIERS:
        in_all = sum(value for (name, _), value in seconds.items() if name == tier.name)
        count = sum(value for (name, _), value in tests.items() if name == tier.name)
        if count:
            terminalreporter.write_line(f"{in_all:7.0f} s {count:5} tests  {tier.name:8} in all")
