"""What programs do that are told to stop at their very beginning, or hang, or are left alone, by real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.launch.stop import end_ranks, find_ranks

TOLD = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP]


def run(program: str) -> subprocess.Popen[str]:
    def hear_all() -> None:  # who runs the tests may ignore some, as nohup does, and children inherit that
        for number in TOLD:
            signal.signal(number, signal.SIG_DFL)

    command = [sys.executable, "-c", program, "trainer.worker"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=hear_all)


def test_before_anything_is_imported_it_just_ends():
    program = (
        "import time; from trainer.launch.stop import listen_early; listen_early(); print('there', flush=True); "
        "time.sleep(60)"
    )
    for number in TOLD:
        process = run(program)
        assert process.stdout and process.stdout.readline() == "there\n"
        process.send_signal(number)
        error = process.communicate(timeout=30)[1]
        assert process.returncode == 143 and "143" in error


def test_a_launcher_that_hangs_ends_with_its_ranks_before_the_grace_period_does():
    program = (
        "import subprocess, sys, time\n"
        "from trainer.launch.stop import Stop\n"
        "if sys.argv[-1] == 'rank': time.sleep(60)\n"
        "rank = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'trainer.worker'])\n"
        "stop = Stop(); stop.interrupt = None; stop.listen()\n"
        "stop.watch(4.0, lambda: print('last deed', flush=True), 143)\n"
        "print(rank.pid, flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    process = run(program)
    assert process.stdout
    rank = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert (process.wait(30), process.stdout.readline()) == (143, "last deed\n")
    assert time.monotonic() - began < 4.0
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(rank, 0)
            time.sleep(0.05)


def test_ranks_that_torch_does_not_know_are_ended():
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
        "time.sleep(60)"
    )
    ranks = [run("import time; time.sleep(60)"), run(deaf)]
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert ranks[1].stdout and ranks[1].stdout.readline() == "deaf\n"
        assert {*find_ranks()} == {rank.pid for rank in ranks}
        end_ranks(1.0)
        assert [rank.wait(10) for rank in ranks] == [-signal.SIGTERM, -signal.SIGKILL]
        assert find_ranks() == [] and other.poll() is None
    finally:
        for process in (*ranks, other):
            process.kill()
            process.wait()


RANK = "from trainer.launch.stop import end_with_launcher; end_with_launcher(); print('there', flush=True)"


def test_no_rank_outlives_its_launcher():
    launcher = run(
        "import subprocess, sys, time\n"
        f"rank = {RANK + '; import time; time.sleep(60)'!r}\n"
        "print(subprocess.Popen([sys.executable, '-c', rank]).pid, flush=True); time.sleep(60)\n"
    )
    assert launcher.stdout
    rank = int(launcher.stdout.readline())
    assert launcher.stdout.readline() == "there\n"
    launcher.kill()
    launcher.wait()
    assert launcher.stdout.read() == "", "the rank has ended, or its pipe would be open"
    assert not Path(f"/proc/{rank}/exe").exists()
