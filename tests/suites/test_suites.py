"""The nightly suites: their runner on one line of shell each, how a command is judged, the table of faults."""

import ast
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.matrix import FAULTS, Fault
from tests.faults.outcome import Outcome, judge_fault
from tests.suites import __main__ as runner
from tests.suites.result import judge
from tests.suites.table import ROOT, Suite

FAULT = Fault("F99", "x", "y", "z", ("a/test_b.py::test_c", "d"))
OTHER = Outcome("d/test_e.py::test_f", True, 1.0)


def test_there_is_one_row_of_each_number_and_every_test_that_it_names_exists() -> None:
    assert [fault.number for fault in FAULTS] == [f"F{number}" for number in range(1, 31)]
    for test in (test for fault in FAULTS for test in fault.tests):
        path, _, name = test.partition("::")
        place = ROOT / "tests" / path
        assert place.exists(), test
        body = ast.parse(place.read_text()).body if name else []
        functions = [each.name for each in body if isinstance(each, ast.FunctionDef)]
        assert name.partition("[")[0] in functions or not name, test


def test_a_row_passes_only_where_everything_ran_and_passed() -> None:
    for outcomes, problems in (
        ([Outcome("a/test_b.py::test_c[x]", True, 1.0), OTHER], 0),
        ([Outcome("a/test_b.py::test_c", True, 1.0)], 1),
        ([Outcome("a/test_b.py::test_cc", True, 1.0), OTHER], 1),
        ([Outcome("a/test_b.py::test_c", False, 1.0), OTHER], 1),
    ):
        row = judge_fault(FAULT, outcomes)
        assert (row["passed"], len(row["problems"])) == (not problems, problems), outcomes


@pytest.mark.parametrize(
    ("code", "output", "result", "tests"),
    [
        (0, "3 passed, 1 skipped in 2.0s\n", "passed", {"passed": 3, "skipped": 1}),
        (1, "SKIPPED: one\n1 failed, 2 passed in 2.0s\n", "failed", {"failed": 1, "passed": 2}),
        (0, "2 skipped in 0.1s\n", "failed", {"skipped": 2}),  # no test ran
        (0, "counting\nall within 1 %\n", "passed", {}),
        (0, "SKIPPED: nothing builds images\n", "skipped", {}),
    ],
)
def test_a_command_is_judged_by_its_code_and_its_closing_line(
    code: int, output: str, result: str, tests: dict[str, int]
) -> None:
    found, reason, counted = judge(code, output)
    assert (found, counted) == (result, tests) and bool(reason) == (result != "passed")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


def commit(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", name)


def suite(name: str, script: str, facts: str = "", smallest: tuple[str, ...] | None = ("small",)) -> Suite:
    return Suite(name, "it runs", ("sh", "-c", script, "sh"), smallest, 1, facts=facts)


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    raw = tmp_path / "reports" / "raw"
    raw.mkdir(parents=True)
    versions = '{{"versions": {{"torch": "0.1"}}}}'
    staged = r'{{"item": "one"}}\n{{"item": "end"}}\n'
    suites = (
        suite("good", f"echo run $1 >> {tmp_path}/ran; echo '1 passed in 0.1s'"),
        suite("bad", "exit 4", smallest=None),
        suite("known", f"sleep 0.05; echo '{versions}' > {raw}/facts.json", "facts.json"),
        suite("staged", f"sleep 0.05; printf '{staged}' > {raw}/b.jsonl", "b.jsonl"),
        suite("silent", "true", "old.json"),
        suite("absent", "echo 'SKIPPED: no cluster {cluster}'"),
    )
    (raw / "old.json").write_text("[3]")
    for name, value in {"SUITES": suites, "REPORTS": raw.parent, "RAW": raw, "ROOT": tmp_path}.items():
        monkeypatch.setattr(runner, name, value)
    monkeypatch.setattr(runner, "has_changes", lambda: False)
    return raw.parent


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(runner.app, arguments)
    return done.exit_code, done.output


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


def test_each_suite_leaves_its_result(reports: Path) -> None:
    """Versions are those of what was tested; facts of an earlier run are not this one's."""
    code, output = call("run", "--cluster", "here")
    assert code == 1 and "no cluster here" in output
    found = {path.stem: read(reports, path.stem) for path in reports.glob("*.json")}
    results = {"bad": "failed", "absent": "skipped"} | dict.fromkeys(
        ("good", "known", "staged", "silent"), "passed"
    )
    assert {name: each["result"] for name, each in found.items()} == results
    assert found["good"]["tests"] == {"passed": 1} and len(found["good"]["commit"]) == 40
    assert found["good"]["versions"]["torch"] != "0.1" == found["known"]["versions"]["torch"]
    assert found["staged"]["facts"] == [{"item": "end"}] and found["silent"]["facts"] is None
    assert (reports / "raw" / "good.log").read_text() == "1 passed in 0.1s\n"


def test_when_it_is_stopped_everything_that_it_started_ends(tmp_path: Path) -> None:
    log, before = tmp_path / "suite.log", signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not (log.exists() and log.read_text().strip()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run_command(["sh", "-c", "sh -c 'echo $$; exec sleep 60'; true"], log)
    finally:
        signal.signal(signal.SIGINT, before)  # a shell's background has it ignored
    child, deadline = Path(f"/proc/{int(log.read_text())}"), time.monotonic() + 10
    while child.exists() and "Z" not in (child / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "its child still runs"
        time.sleep(0.05)
