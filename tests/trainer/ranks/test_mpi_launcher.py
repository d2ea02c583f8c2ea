"""The MPI launcher on stand-ins for kubectl and mpirun (small shell scripts); the real ones: tests/cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer.launch import mpi as mpi_launcher
from trainer.launch.culprit import find_culprit
from trainer.launch.ledger import Ledger
from trainer.launch.stop import Stop, Stopped
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError


def write_script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


def test_workers_are_read_in_order(tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("ddp-worker-0 slots=2\nddp-worker-1 slots=2\n\n")
    assert mpi_launcher.read_hosts(hostfile) == ["ddp-worker-0", "ddp-worker-1"]
    hostfile.write_text("\n")
    with pytest.raises(ConfigError, match="names no worker"):
        mpi_launcher.read_hosts(hostfile)
    with pytest.raises(ConfigError, match="No such file"):
        mpi_launcher.read_hosts(tmp_path / "none")


def test_it_waits_until_every_worker_has_an_address():
    calls: list[str] = []

    def find(host: str) -> str | None:
        calls.append(host)
        return f"10.0.0.{host[-1]}" if host == "w0" or len(calls) > 4 else None

    assert mpi_launcher.wait_for_workers(["w0", "w1"], find, timeout_s=5, poll_s=0.01) == [
        "10.0.0.0",
        "10.0.0.1",
    ]
    assert calls.count("w0") == 1
    assert mpi_launcher.wait_for_workers(["w0"], lambda host: None, timeout_s=0.05, poll_s=0.01) is None


@pytest.mark.parametrize(
    ("answer", "address"),
    [
        (
            '{"status": {"podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}]}}',
            "10.1.2.3",
        ),
        ('{"status": {"podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "False"}]}}', None),
        ('{"status": {}}', None),
        (
            '{"metadata": {"deletionTimestamp": "2026-11-21T09:00:00Z"}, "status": {"podIP": "10.1.2.3", '
            '"conditions": [{"type": "Ready", "status": "True"}]}}',
            None,
        ),
    ],
)
def test_kubectl_tells_the_address_of_a_ready_pod(tmp_path, answer, address):
    kubectl = write_script(
        tmp_path / "kubectl", f"test \"$2 $3\" = 'pod w1' || exit 9\ncat <<'E'\n{answer}\nE\n"
    )
    assert mpi_launcher.find_by_kubectl("w1", kubectl) == address
    assert mpi_launcher.find_by_kubectl("w2", kubectl) is None


def test_names_that_resolve_are_workers():
    assert mpi_launcher.find_by_name("localhost") == "localhost"
    assert mpi_launcher.find_by_name("nobody.invalid") is None


def test_one_process_per_worker_gets_the_variables_and_their_values_stay_hidden():
    env = {
        "TRAINER_RUN": "x", "HF_TOKEN": "hf_secret", "PET_NNODES": "2",
        "PATH": "/bin", "HOSTNAME": "launcher", "STRATLAB_NODE": "its own",
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = mpi_launcher.build_command(2, env)
    assert command[:3] == ["mpirun", "-np", "2"] and command[-3:] == ["python", "-m", "trainer"]
    assert "hf_secret" not in " ".join(command)
    forwarded = [command[i + 1] for i, part in enumerate(command) if part == "-x"]
    assert forwarded == ["HF_TOKEN", "PATH", "PET_NNODES", "TRAINER_RUN"]


def test_v1_tries_again_what_is_worth_it_and_not_for_ever(tmp_path, monkeypatch):
    (tmp_path / "kubexec.sh").touch()
    monkeypatch.setattr(mpi_launcher, "MPI_FILES", tmp_path)
    monkeypatch.setattr(mpi_launcher, "find_by_kubectl", lambda pod: "10.0.0.1")
    codes: list[int] = []
    monkeypatch.setattr(mpi_launcher, "_run", lambda *given: codes.pop(0))
    config = Config(run="try", results=str(tmp_path), max_attempts=3)
    for given, ends, unused in (
        ([134, 0], 0, []),
        ([134, 137, 134, 0], 134, [0]),
        ([12, 0], 12, [0]),
        ([143, 134, 143, 143, 134, 143, 0], 0, []),  # a worker that was told to go is no attempt
    ):
        codes[:] = given
        assert (mpi_launcher.launch(config, ["w0"], Stop()), codes) == (ends, unused)
    (tmp_path / "kubexec.sh").unlink()
    monkeypatch.setattr(mpi_launcher, "find_by_name", lambda host: host)
    for code in (134, 143):
        codes[:] = [code, 0]
        assert (mpi_launcher.launch(config, ["w0"], Stop()), codes) == (
            code,
            [0],
        )  # its operator starts a new one


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


def test_signals_until_its_very_end_leave_the_exit_code_what_it_is(tmp_path):
    """The entry point itself: without the operator's files it ends with 2, told or not, or with 143."""
    env = {"PATH": os.environ["PATH"], "TRAINER_RUN": "try", "TRAINER_RESULTS": str(tmp_path)}
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.mpi_launcher"], env=env, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr
        with process.stderr as said:
            assert said.readline().startswith("bad configuration")  # from here on it ends
            while process.poll() is None:
                process.send_signal(signal.SIGTERM)
        assert process.returncode == 2


def test_a_signal_while_mpirun_starts_reaches_it(monkeypatch):
    """There was a moment in which the launcher ended alone and left mpirun running."""
    started: list[subprocess.Popen[bytes]] = []

    class StoppedAtOnce(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", StoppedAtOnce)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    stop = Stop()
    stop.listen()
    try:
        with pytest.raises(Stopped):
            mpi_launcher._run(["sleep", "30"], {"PATH": os.environ["PATH"]}, stop, 120)
        assert started[0].returncode == -signal.SIGUSR1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in started:
            process.kill()


def run_launcher(folder: Path, mpirun: str, **env: str) -> subprocess.Popen[str]:
    """The launcher as a process, with a shell script for mpirun."""
    (folder / "mpi").mkdir()
    (folder / "mpi" / "hostfile").write_text("localhost slots=1\n")
    write_script(folder / "mpirun", mpirun + "\n")
    program = (
        "import sys, pathlib; from trainer.launch import mpi as m; "
        f"m.MPI_FILES = pathlib.Path({str(folder / 'mpi')!r}); sys.exit(m.main())"
    )
    all_env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TRAINER_RUN": "try",
        "TRAINER_RESULTS": str(folder),
        **env,
    }
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], env=all_env, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(("mpirun", "code"), [("exit 0", 0), ("exit 134", 134), ("kill -TERM $$", 143)])
def test_the_whole_launcher(tmp_path, mpirun, code):
    launcher = run_launcher(tmp_path, f'echo "endpoint $PET_RDZV_ENDPOINT"\n{mpirun}')
    out, error = launcher.communicate(timeout=60)
    assert (launcher.returncode, out) == (code, "endpoint localhost:23456\n"), error


@pytest.mark.parametrize("hears", [True, False])
def test_an_mpirun_that_waits_for_a_lost_node_is_ended(tmp_path, monkeypatch, hears):
    """The stand-in: the survivor has written into its ledger that a peer is lost, and mpirun waits for the other pod's
    daemon, whether it hears signals or not."""
    for name, seconds in (("LOOK_S", 0.1), ("LAST_S", 1.0)):
        monkeypatch.setattr(mpi_launcher, name, seconds)
    folder, began = RunDirectory(tmp_path, "default", "try"), time.time()
    deaf = "" if hears else "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    command = [sys.executable, "-c", f"{deaf}import time; time.sleep(600)"]
    survivor = Ledger(folder, "try-worker-0")
    survivor.record_start("a")
    threading.Timer(1.0, survivor.record_end, ["a", 134, "a peer was lost"]).start()
    lingering = mpi_launcher.Lingering(folder, began, 2.0)
    code = mpi_launcher._run(command, {"PATH": os.environ["PATH"]}, Stop(), 120, lingering)
    assert code == (143 if hears else 137)
    assert 3.0 <= time.time() - began < 20
    assert find_culprit(folder, began, code) == 134, "worth another attempt"


def test_an_mpirun_whose_pods_go_on_is_left_alone(tmp_path, monkeypatch):
    """Also where an earlier attempt has failed."""
    monkeypatch.setattr(mpi_launcher, "LOOK_S", 0.1)
    folder = RunDirectory(tmp_path, "default", "try")
    ledger = Ledger(folder, "try-worker-0")
    ledger.record_start("a")
    ledger.record_end("a", 134)
    lingering = mpi_launcher.Lingering(folder, time.time(), 0.0)
    ledger.record_start("b")
    assert mpi_launcher._run(["sleep", "2"], {"PATH": os.environ["PATH"]}, Stop(), 120, lingering) == 0


def test_wrong_settings_end_it_before_it_waits(tmp_path):
    launcher = run_launcher(tmp_path, "exit 0", TRAINER_STEPS="many")
    error = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == 2 and "TRAINER_STEPS='many'" in error
