"""Processes are ended with all that descends from them, and their logs are told by their end."""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from stratlab import machine
from stratlab.machine import Processes, tail
from tests.codes import find_codes
from tests.stratlab.raised import raised

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
SESSION = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
time.sleep(60)
"""


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 20
    while text not in tail(log):
        assert time.monotonic() < deadline, tail(log)
        time.sleep(0.05)


def test_stop_reaches_a_deaf_grandchild_in_a_session_of_its_own(tmp_path):
    other = subprocess.Popen(["sleep", "60"])
    processes = Processes()
    processes.start([sys.executable, "-c", SESSION], dict(os.environ), tmp_path / "log")
    wait_for("ready", tmp_path / "log")
    members = processes.members()
    assert len(members) == 2
    started = time.monotonic()
    processes.stop()
    assert time.monotonic() - started < 5  # the first process went at SIGTERM, so nothing is waited for
    assert not any(psutil.pid_exists(member.pid) and member.status() != "zombie" for member in members)
    assert not processes.members()
    assert other.poll() is None, "others are left alone"
    other.kill()
    other.wait()


def test_a_process_that_is_deaf_itself_is_killed_after_the_grace(tmp_path):
    processes = Processes()
    process = processes.start([sys.executable, "-c", DEAF], dict(os.environ), tmp_path / "log")
    wait_for("ready", tmp_path / "log")
    started = time.monotonic()
    processes.stop(grace_s=1.0)
    assert 1.0 <= time.monotonic() - started < 5
    assert process.returncode == -9


def test_tail_of_a_long_log(tmp_path):
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(20000)))
    assert tail(log, 2) == "line 19998\nline 19999"
    log.write_text("one line")
    assert tail(log, 2) == "one line"


def test_the_stack_of_a_process_that_died_of_a_signal_is_told_before_the_last_lines(tmp_path):
    log = tmp_path / "log"
    crash = ["Fatal Python error: Segmentation fault", "Current thread:", "  here", "  there"]
    dump = [*crash, "Extension modules: numpy, torch"]
    for between, shown in ((5000, [*crash, "..."]), (0, crash)):
        log.write_text(
            "\n".join(["before"] * 9 + dump + ["peer"] * between + ["the", "last", "few", "words"])
        )
        assert tail(log, 4).splitlines() == [*shown, "the", "last", "few", "words"]


def test_a_free_port_is_one_that_no_outgoing_connection_gets(monkeypatch):
    port = machine.free_port()
    assert port in machine.PORTS and machine.PORTS.stop <= 32768
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        monkeypatch.setattr(random, "sample", lambda ports, count: [port, port + 1])
        assert machine.free_port() == port + 1
        monkeypatch.setattr(random, "sample", lambda ports, count: [port])
        assert find_codes(raised(machine.free_port)) == ["SL-no-free-port"]


def test_a_killed_parent_takes_its_processes_along(tmp_path):
    waits = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
    code = f"""
import os, time
from pathlib import Path
from stratlab.machine import Processes
print(Processes().start({waits!r}, dict(os.environ), Path({str(tmp_path / "log")!r})).pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    wait_for("ready", tmp_path / "log")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
