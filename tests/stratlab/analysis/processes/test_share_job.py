"""Shares of one Job in processes that may be killed at any moment: they say what one process says, and merge once."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from stratlab.analysis import run_analysis as analyze
from stratlab.analysis.measure import SHARES, RankShare
from stratlab.analysis.run_analysis import analyze_run
from stratlab.analysis.share_job import analyze_in_job
from tests.stratlab.simulated.small import build_gpu_trace, write_run

JOB = "7c1f-a"
CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove")
"""What a process does to the volume; opened files are told apart by their flags."""
KILLED = 137


pytestmark = pytest.mark.usefixtures("without_hta")


@pytest.fixture
def short(monkeypatch):
    """Few files, quickly made: it is about who writes them."""
    monkeypatch.setattr(analyze, "build_html", lambda *_: "page")
    monkeypatch.setattr(analyze, "build_markdown", lambda *_: "summary")
    monkeypatch.setattr(analyze, "write_tables", lambda folder, *_: (folder / "steps.csv").write_text("1"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("whole") / "run", {0: build_gpu_trace(0), 1: build_gpu_trace(1)})


@pytest.fixture
def run(whole, tmp_path):
    return copy(whole, tmp_path)


def copy(whole, folder):
    shutil.rmtree(folder / "run", ignore_errors=True)
    return Path(shutil.copytree(whole, folder / "run", copy_function=shutil.copy2))


def read_all(run):
    analysis = run / "analysis"
    return {
        str(path.relative_to(analysis)): path.read_bytes() for path in analysis.rglob("*") if path.is_file()
    }


def expect(whole, folder):
    run = copy(whole, folder)
    analyze_run(run, tracking_uri=None)
    return read_all(run)


def left(run):
    """Below the folder of the shares; nothing lies beside it."""
    assert [path.name for path in run.glob(".*") if path.name != SHARES] == []
    return sorted(str(path.relative_to(run / SHARES)) for path in (run / SHARES).rglob("*"))


def merged(job=JOB):
    """That somebody has merged, and no reading of a trace."""
    folder = f"job-{job}"
    return [folder, f"{folder}/merger", f"{folder}/merger/done", f"{folder}/merger/share"]


def start(run, index, kill_at=0, count=2):
    """One share in a process of its own, killed at its `kill_at`-th change of the volume. Returns its id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        if kill_at:
            sys.addaudithook(kill_at_change(str(run), kill_at))
        report = analyze_in_job(run, RankShare(index, count), JOB, tracking_uri=None)
        code = 0 if report is None else 10
    finally:
        os._exit(code)


def kill_at_change(below, number):
    seen = 0

    def look(event, arguments):
        nonlocal seen
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (writes or event in CHANGES) and str(arguments[0]).startswith(below):
            seen += 1
            if seen == number:
                os._exit(KILLED)

    return look


def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.usefixtures("short")
def test_killed_at_any_moment_and_started_again(whole, tmp_path):
    expected = expect(whole, tmp_path / "alone")
    analyze_in_job(begun := copy(whole, tmp_path / "begun"), RankShare(0, 2), JOB, tracking_uri=None)
    outcomes = []
    for number in range(1, 1000):  # the first ones, then every third
        number = number if number < 10 else 3 * number - 20
        run = copy(begun, tmp_path)
        if end(start(run, 1, kill_at=number)) != KILLED:
            break
        outcomes.append(end(start(run, 1)))
        assert read_all(run) == expected and left(run) == merged(), number
        said = []
        late = [
            analyze_in_job(run, RankShare(i, 2), JOB, tracking_uri=None, progress=said.append) for i in (0, 1)
        ]
        assert late == [None, json.loads(expected["report.json"])], number
        assert len(said) == 1 and left(run) == merged(), number
    assert len(outcomes) > 10 and {*outcomes} == {10}, outcomes
