"""Pods as processes: at the same time, to their end, and whose exit code is the run's."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratlab.machine import build_machine_env
from stratlab.pod_commands import Command, Pod
from stratlab.processes import Processes
from stratlab.rehearsal import LocalPodEnd, deciding_end, run_pods
from tests.codes import find_codes
from tests.stratlab.raised import raised


def pod(name: str, *scripts: str) -> Pod:
    commands = tuple(Command("c", ("python", "-c", script), {"NAME": name}, None) for script in scripts)
    return Pod(name, name, commands, ())


def run(pods: Sequence[Pod], tmp_path: Path, after_failure_s: float = 30.0) -> list[LocalPodEnd]:
    logs = {each.name: tmp_path / f"{each.name}.log" for each in pods}
    processes = Processes()
    try:
        env = build_machine_env(os.environ)
        return run_pods(pods, processes, env, logs, lambda: None, after_failure_s=after_failure_s)
    finally:
        assert not processes.members()


def test_init_containers_run_before_the_container_and_share_its_log(tmp_path: Path) -> None:
    """And end the pod when they fail."""
    good = pod("a", "print('first')", "import os; print('then', os.environ['NAME'])")
    ends = run([good, pod("b", "raise SystemExit(3)", "print('never')")], tmp_path)
    assert {(end.pod, end.code) for end in ends} == {("a", 0), ("b", 3)}
    assert (tmp_path / "a.log").read_text() == "first\nthen a\n"
    assert "never" not in (tmp_path / "b.log").read_text()


def test_pods_run_at_the_same_time(tmp_path: Path) -> None:
    meet = (
        "import os, time; open('{}', 'w'); [time.sleep(.05) for _ in range(200) if not os.path.exists('{}')]"
    )
    a, b = tmp_path / "a", tmp_path / "b"
    started = time.monotonic()
    ends = run([pod("x", meet.format(a, b)), pod("y", meet.format(b, a))], tmp_path)
    assert [end.code for end in ends] == [0, 0]
    assert time.monotonic() - started < 8


def test_the_others_are_stopped_some_time_after_a_failure(tmp_path: Path) -> None:
    """A signal counts as in a container."""
    started = time.monotonic()
    killed = pod("fails", "import os; os.kill(os.getpid(), 9)")
    ends = run([pod("waits", "import time; time.sleep(60)"), killed], tmp_path, 0.5)
    assert time.monotonic() - started < 20
    assert [(end.pod, end.code, end.stopped) for end in ends] == [("fails", 137, False), ("waits", 143, True)]
    assert deciding_end(ends).pod == "fails"


@pytest.mark.parametrize(
    ("codes", "decides"),
    [
        ([0, 143], 143),
        ([134, 10], 10),  # the survivor was quicker than the culprit
        ([134, 137], 137),
        ([137, 1], 1),  # the operator fails the job for a permanent code, whatever came first
        ([134, 134], 134),
        ([12, 10], 12),
    ],
)
def test_which_exit_code_is_the_runs(codes: list[int], decides: int) -> None:
    ends = [LocalPodEnd(f"p{index}", Path("log"), code) for index, code in enumerate(codes)]
    assert deciding_end(ends).code == decides
    stopped = LocalPodEnd("b", Path("log"), 1, stopped=True)
    assert deciding_end([*ends, stopped]).code == decides, "who was only stopped never decides"


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    missing = Pod("a", "a", (Command("c", ("no-such-program",), {}, None),), ())
    failure = raised(run, [pod("first", "import time; time.sleep(60)"), missing], tmp_path)
    assert find_codes(failure) == ["SL-program-not-started"] and "no-such-program" in str(failure)
