"""Who may write into a run directory, decided by what changes and not by clocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from trainer.launch import rendezvous as lease
from trainer.launch.rendezvous import Lease


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    monkeypatch.setattr(lease, "WATCH_S", 1.0)


def test_a_second_start_is_refused_while_the_first_one_works_and_let_in_afterwards(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    first = Lease(folder, "one", "try-worker-0")
    first.take()
    with pytest.raises(ConfigError) as refused:
        Lease(folder, "two", "other").take()
    assert find_codes(refused.value) == ["SL-run-being-written"] and "try-worker-0" in str(refused.value)
    assert json.loads(folder.lease.read_text())["launcher"] == "one"
    first.release()
    assert not folder.lease.exists()
    Lease(folder, "two", "other").take()


def test_what_a_killed_start_has_left_keeps_nobody_out_however_new_it_looks(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    folder.path.mkdir(parents=True)
    folder.lease.write_text('{"launcher": "dead", "pod": "p", "host": "h", "beat": 3}')
    os.utime(folder.lease, (4e9, 4e9))
    mine = Lease(folder, "me", "p")
    mine.take()
    assert json.loads(folder.lease.read_text())["launcher"] == "me"
    mine.release()


def test_a_look_leaves_nothing(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    Lease(folder, "one", "pod").check()
    assert not folder.path.exists()


def test_a_volume_that_takes_no_file_keeps_nobody_out(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lease, "write_json", full)
    mine = Lease(RunDirectory(tmp_path, "default", "try"), "me", "p")
    mine.take()
    mine.release()


def test_a_holder_that_stands_still_is_there_until_it_is_gone(tmp_path, monkeypatch):
    """Ctrl-Z stops the launcher, and not its ranks."""
    monkeypatch.setattr(lease, "WATCH_S", 0.0)
    folder = RunDirectory(tmp_path, "default", "try")
    folder.path.mkdir(parents=True)
    holder = subprocess.Popen(["sleep", "60"])
    try:
        holder.send_signal(signal.SIGSTOP)
        facts = {"launcher": "one", "pod": "p", "host": "h", "beat": 3, **lease._describe(holder.pid)}
        folder.lease.write_text(json.dumps(facts))
        with pytest.raises(ConfigError) as refused:
            Lease(folder, "two", "other").take()
        assert find_codes(refused.value) == ["SL-run-being-written"] and str(holder.pid) in str(refused.value)
        folder.lease.write_text(json.dumps(facts | {"began": "1"}))  # another process has its number now
        mine = Lease(folder, "two", "other")
        mine.take()
        mine.release()
        folder.lease.write_text(json.dumps(facts))
    finally:
        holder.kill()
    while lease._describe(holder.pid):  # killed and not yet waited for: a zombie is nobody
        time.sleep(0.01)
    Lease(folder, "two", "other").take()
    holder.wait()
