"""`python -m tests.suites` on suites that are one line of shell each."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.suites import __main__ as runner
from tests.suites.table import Suite


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
