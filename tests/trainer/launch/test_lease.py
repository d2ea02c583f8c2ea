"""Who may write into a run directory, decided by what changes and not by clocks."""

from __future__ import annotations

import json
import os

import pytest

from trainer.launch import lease
from trainer.launch.lease import Lease
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import ConfigError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    monkeypatch.setattr(lease, "WATCH_S", 1.0)


def test_a_second_start_is_refused_while_the_first_one_works_and_let_in_afterwards(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    first = Lease(folder, "one", "try-worker-0")
    first.take()
    with pytest.raises(
        ConfigError, match=r"default/try: is being written by another start of this run, pod try-"
    ):
        Lease(folder, "two", "other").take()
    assert json.loads(folder.lease.read_text())["launcher"] == "one"
    first.release()
    assert not folder.lease.exists()
    second = Lease(folder, "two", "other")
    second.take()
    second.release()


def test_what_a_killed_start_has_left_keeps_nobody_out_however_new_it_looks(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    folder.path.mkdir(parents=True)
    folder.lease.write_text('{"launcher": "dead", "pod": "p", "host": "h", "beat": 3}')
    os.utime(folder.lease, (4e9, 4e9))
    mine = Lease(folder, "me", "p")
    mine.take()
    assert json.loads(folder.lease.read_text())["launcher"] == "me"
    mine.release()


def test_a_volume_that_takes_no_file_keeps_nobody_out(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lease, "write_json", full)
    mine = Lease(RunDirectory(tmp_path, "default", "try"), "me", "p")
    mine.take()
    mine.release()
