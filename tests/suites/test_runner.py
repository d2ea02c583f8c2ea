"""`python -m tests.suites` on three suites that are one line of Python each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.suites import __main__ as runner
from tests.suites.table import Suite

COUNT = "import sys; open({path!r}, 'a').write(' '.join(['run', *sys.argv[1:]]) + '\\n'); print('1 passed in 0.1s')"


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "reports"
    raw = folder / "raw"
    ran = str(tmp_path / "ran")
    write_facts = f"import pathlib; pathlib.Path({str(raw)!r}, 'facts.json').write_text('[1, 2]')"
    suites = (
        Suite("good", "it runs", ("{python}", "-c", COUNT.format(path=ran)), ("small",), 1),
        Suite("bad", "it fails", ("{python}", "-c", "raise SystemExit(4)"), None, 1),
        Suite("known", "it leaves facts", ("{python}", "-c", write_facts), (), 1, facts="facts.json"),
        Suite("absent", "it skips", ("{python}", "-c", "print('SKIPPED: no cluster {cluster}')"), (), 1),
    )
    raw.mkdir(parents=True)
    for name, value in {"SUITES": suites, "REPORTS": folder, "RAW": raw, "ROOT": tmp_path}.items():
        monkeypatch.setattr(runner, name, value)
    monkeypatch.setattr(runner, "has_changes", lambda: False)
    return folder


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(runner.app, arguments)
    return done.exit_code, done.output


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


def test_each_suite_leaves_its_result(reports: Path) -> None:
    code, output = call("run", "--cluster", "here")
    assert code == 1
    assert "bad failed: exit code 4" in output and "SKIPPED: absent skipped: no cluster here" in output
    results = {name: read(reports, name)["result"] for name in ("good", "bad", "known", "absent")}
    assert results == {"good": "passed", "bad": "failed", "known": "passed", "absent": "skipped"}
    good = read(reports, "good")
    assert good["tests"] == {"passed": 1} and len(good["commit"]) == 40 and good["versions"]["torch"]
    assert read(reports, "known")["facts"] == [1, 2]


def test_versions_are_those_of_what_was_tested(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = reports.parent / "leave.py"
    script.write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])")

    def suite(name: str, facts: str, content: str) -> Suite:
        words = ("{python}", str(script), str(reports / "raw" / facts), content)
        return Suite(name, "it leaves facts", words, (), 1, facts=facts)

    suites = (
        suite("other", "a.json", '{{"versions": {{"torch": "0.1"}}}}'),
        suite("staged", "b.jsonl", '{{"item": "one"}}\n{{"item": "end", "done": 3}}'),
    )
    monkeypatch.setattr(runner, "SUITES", suites)
    assert call("run")[0] == 0
    assert read(reports, "other")["versions"] == {"torch": "0.1"}
    assert read(reports, "staged")["facts"] == [{"item": "end", "done": 3}]


def test_what_has_passed_at_this_commit_is_not_run_again(reports: Path) -> None:
    ran = reports.parent / "ran"
    assert call("run", "good")[0] == 0
    assert "passed already at this commit" in call("run", "good")[1] and ran.read_text() == "run\n"
    assert call("run", "good", "--again")[0] == 0 and ran.read_text() == "run\nrun\n"


def test_a_failed_one_is(reports: Path) -> None:
    assert [call("run", "bad")[0] for _ in range(2)] == [1, 1]


def test_smallest_cases_leave_the_results_alone(reports: Path) -> None:
    code, output = call("run", "--smallest")
    assert code == 0 and "bad" not in output
    assert (reports.parent / "ran").read_text() == "run small\n"
    assert list(reports.glob("*.json")) == []
    assert read(reports / "raw" / "smallest", "good")["result"] == "passed"


def test_facts_of_an_earlier_run_are_not_this_one_s(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (reports / "raw" / "facts.json").write_text("[3]")
    silent = Suite("known", "it leaves none", ("{python}", "-c", ""), (), 1, facts="facts.json")
    monkeypatch.setattr(runner, "SUITES", (silent,))
    call("run", "known")
    assert read(reports, "known")["facts"] is None


def test_a_name_that_does_not_exist(reports: Path) -> None:
    code, output = call("run", "god")
    assert code == 2 and "SUITE=god: must be one of good, bad, known, absent" in output


def test_status_tells_result_and_age(reports: Path) -> None:
    call("run", "good", "bad")
    code, output = call("status")
    rows = {line.split("│")[1].strip(): line for line in output.splitlines() if line.startswith("│")}
    assert code == 0 and list(rows) == ["good", "bad", "known", "absent"]
    assert "passed" in rows["good"] and "│ 0 " in rows["good"]
    assert "failed: exit code 4" in rows["bad"] and "never run" in rows["known"]
