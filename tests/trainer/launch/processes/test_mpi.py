"""The MPI launcher on stand-ins for kubectl and mpirun (shell scripts), and a worker pod's first process."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from trainer.launch import mpi
from trainer.launch.ledger import Ledger, find_culprit
from trainer.launch.stop import Stop

PATH = {"PATH": os.environ["PATH"]}
READY = '"status": {"podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}]}'


@pytest.mark.parametrize(
    ("answer", "address"),
    [
        (READY, "10.1.2.3"),
        (READY.replace("True", "False"), None),
        (f'"metadata": {{"deletionTimestamp": "2026"}}, {READY}', None),
    ],
)
def test_kubectl_tells_the_address_of_a_ready_pod(tmp_path, answer, address):
    body = f"test \"$2 $3\" = 'pod w1' || exit 9\ncat <<'E'\n{{{answer}}}\nE\n"
    kubectl = write_script(tmp_path / "kubectl", body)
    assert mpi.find_by_kubectl("w1", kubectl) == address
    assert mpi.find_by_kubectl("w2", kubectl) is None


def write_script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


def run_launcher(folder: Path, mpirun: str, **env: str) -> subprocess.Popen[str]:
    """The launcher as a process, with a shell script for mpirun."""
    (folder / "mpi").mkdir()
    (folder / "mpi" / "hostfile").write_text("localhost slots=1\n")
    write_script(folder / "mpirun", mpirun + "\n")
    program = (
        "import sys, pathlib; from trainer.launch import mpi as m; "
        f"m.MPI_FILES = pathlib.Path({str(folder / 'mpi')!r}); sys.exit(m.main())"
    )
    env |= {"PATH": f"{folder}:{PATH['PATH']}", "TRAINER_RUN": "try", "TRAINER_RESULTS": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], env=env, stdout=pipe, stderr=pipe, text=True)


WAITS = (
    "import signal, sys, time; signals = {signal.SIGTERM, signal.SIGUSR1}; "
    'signal.pthread_sigmask(signal.SIG_BLOCK, signals); print("ready", flush=True); '
    "heard = [signal.sigtimedwait(signals, 60).si_signo for _ in range(COUNT)]; time.sleep(LAST_S); "
    "exit(str(list(map(int, heard))))"
)
"""mpirun: not a shell that kills a `sleep`, for one that was only just forked loses the signal, and holds the pipes."""


@pytest.mark.parametrize(
    ("count", "grace_s", "heard"),
    [
        (1, 120, [signal.SIGUSR1]),  # its processes end by themselves
        (2, 20, [signal.SIGUSR1, signal.SIGTERM]),  # they do not, and it is time
    ],
)
def test_a_stopped_launcher_tells_mpirun_s_processes_and_waits_for_them(tmp_path, count, grace_s, heard):
    program = WAITS.replace("COUNT", str(count)).replace("LAST_S", "0.5")
    launcher = run_launcher(tmp_path, f"exec {sys.executable} -c '{program}'", TRAINER_GRACE_S=str(grace_s))
    assert launcher.stdout and launcher.stdout.readline() == "ready\n"
    launcher.send_signal(signal.SIGTERM)
    launcher.send_signal(signal.SIGTERM)  # a second one changes nothing
    out, error = launcher.communicate(timeout=60)
    assert (launcher.returncode, out) == (143, ""), error
    assert error.startswith(f"{[int(number) for number in heard]}\n")


@pytest.mark.parametrize("hears", [True, False])
def test_an_mpirun_that_waits_for_a_lost_node_is_ended(tmp_path, monkeypatch, hears):
    for name, seconds in (("LOOK_S", 0.1), ("LAST_S", 0.5)):
        monkeypatch.setattr(mpi, name, seconds)
    folder, survivor = RunDirectory(tmp_path, "default", "try"), "try-worker-0"
    Ledger(folder, survivor).record_start("a")
    Ledger(folder, survivor).record_end("a", 134)
    time.sleep(0.01)
    began = time.time()
    ledger = Ledger(folder, survivor)
    ledger.record_start("b")
    threading.Timer(1.0, ledger.record_end, ["b", 134, "a peer was lost"]).start()
    deaf = "" if hears else "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    command = [sys.executable, "-c", f"{deaf}import time; time.sleep(600)"]
    code = mpi._run(command, PATH, Stop(), 120, mpi.Lingering(folder, began, 1.0))
    assert code == (143 if hears else 137)
    assert 2.0 <= time.time() - began < 20
    assert find_culprit(folder, began, code) == 134, "worth another attempt"


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


def wait_until_it_hears(worker: subprocess.Popen[str]) -> None:
    """Wait until the process waits for signals: it has taken SIGCHLD, and sleeps. However slow the machine is."""
    until, taken = time.monotonic() + 120, 1 << (signal.SIGCHLD - 1)
    while True:
        lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        if int(status["SigCgt"], 16) & taken and status["State"].startswith("S"):
            return
        assert worker.poll() is None and time.monotonic() < until
        time.sleep(0.02)


def test_it_stays_until_the_trainer_has_ended_and_ends_well(tmp_path):
    other = start_trainer(tmp_path, TRAINER_RUN="of_somebody_else")
    trainer, worker = start_trainer(tmp_path), start(tmp_path, "60")
    try:
        assert other.stdout and other.stdout.readline() == "there\n"
        assert trainer.stdout and trainer.stdout.readline() == "there\n"
        wait_until_it_hears(worker)
        worker.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.7)
        worker.terminate()  # a second one changes nothing
        assert trainer.stdout.readline() == "saved\n" and trainer.wait(10) == 0
        assert worker.wait(10) == 0, worker.communicate()
        assert other.poll() is None
    finally:
        for process in (trainer, worker, other):
            process.kill()
            process.wait()


def test_without_a_trainer_it_goes_at_once_and_past_the_deadline_it_fails(tmp_path):
    worker = start(tmp_path, "60")
    wait_until_it_hears(worker)
    worker.terminate()
    assert worker.wait(30) == 0, "half of its deadline"
    assert (start(tmp_path, "0.1").wait(120), start(tmp_path, "soon").wait(120)) == (124, 2)


def test_who_has_lost_a_peer_gives_the_culprit_time_to_say_why(monkeypatch):
    slept = []
    monkeypatch.setattr(mpi.time, "sleep", slept.append)
    mpi.leave_to_culprit({"HOSTNAME": "ddp-worker-0"})  # no mpirun, nobody is killed
    assert slept == []
    mpi.leave_to_culprit({"OMPI_COMM_WORLD_RANK": "0"})
    assert slept == [mpi.CULPRIT_S]
