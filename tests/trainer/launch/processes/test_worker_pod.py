"""The first process of an MPIJob's worker pod, with stand-ins for what mpirun starts beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.launch import mpi as worker_pod

TRAINER = (
    "import signal, sys, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); print('there', flush=True); "
    "signal.sigwait({signal.SIGTERM}); time.sleep(1.5); print('saved', flush=True)"
)


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "TRAINER_RUN": "try", "TRAINER_RESULTS": str(folder)}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trainer.program", "worker_pod", *arguments]
    return subprocess.Popen(
        command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def start_trainer(folder: Path, **more: str) -> subprocess.Popen[str]:
    """A program that is called as `python -m trainer`, and takes a while to save."""
    (folder / "trainer.py").write_text(TRAINER)
    command = [sys.executable, "-m", "trainer"]
    return subprocess.Popen(
        command, cwd=folder, env=environment(folder) | more, stdout=subprocess.PIPE, text=True
    )


def settle(worker: subprocess.Popen[str]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1.0)


def test_it_stays_until_the_trainer_has_ended_and_ends_well(tmp_path):
    other = start_trainer(tmp_path, TRAINER_RUN="of_somebody_else")
    trainer, worker = start_trainer(tmp_path), start(tmp_path, "60")
    try:
        assert other.stdout and other.stdout.readline() == "there\n"
        assert trainer.stdout and trainer.stdout.readline() == "there\n"
        settle(worker)
        worker.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.7)
        worker.terminate()  # a second one changes nothing
        assert trainer.stdout.readline() == "saved\n" and trainer.wait(10) == 0
        assert worker.wait(10) == 0, worker.communicate()
        settle(other)
    finally:
        for process in (trainer, worker, other):
            process.kill()
            process.wait()


def test_without_a_trainer_it_goes_at_once_and_past_the_deadline_it_fails(tmp_path):
    worker = start(tmp_path, "60")
    settle(worker)
    began = time.monotonic()
    worker.terminate()
    assert worker.wait(10) == 0 and time.monotonic() - began < 1.0
    assert start(tmp_path, "0.1").wait(20) == 124
    assert start(tmp_path, "soon").wait(20) == 2


def test_who_has_lost_a_peer_gives_the_culprit_time_to_say_why(monkeypatch):
    slept = []
    monkeypatch.setattr(worker_pod.time, "sleep", slept.append)
    worker_pod.leave_to_culprit({"HOSTNAME": "ddp-worker-0"})  # no mpirun, nobody is killed
    assert slept == []
    worker_pod.leave_to_culprit({"OMPI_COMM_WORLD_RANK": "0"})
    assert slept == [worker_pod.CULPRIT_S]


def test_its_command_is_what_the_pod_runs(tmp_path):
    assert start(tmp_path, "60", sys.executable, "-c", "raise SystemExit(5)").wait(20) == 5
    waits = "import signal, time; print('up', flush=True); time.sleep(60)"
    hears = start(tmp_path, "60", sys.executable, "-c", waits)
    assert hears.stdout and hears.stdout.readline() == "up\n"
    (child,) = Path(f"/proc/{hears.pid}/task/{hears.pid}/children").read_text().split()
    (blocked,) = (line for line in Path(f"/proc/{child}/status").read_text().splitlines() if "SigBlk" in line)
    assert int(blocked.split()[1], 16) & (1 << (signal.SIGTERM - 1)) == 0
    hears.terminate()
    assert hears.wait(10) == 0
    subprocess.run(["kill", child], check=False)
