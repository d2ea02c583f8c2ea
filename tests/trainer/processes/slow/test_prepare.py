"""Preparations that are killed, paused, stopped, or meet a full volume: real processes on a real folder."""

import shutil
import signal
from pathlib import Path

from tests.trainer.processes import test_prepare
from tests.trainer.processes.test_prepare import finish, prepared, run, start, wait_for, write_images

results = test_prepare.results


def is_writing(results: Path) -> bool:
    return any(path.stat().st_size > 0 for path in results.glob("_prepared/.pets.partial-*/**/*.arrow"))


def test_starts_at_once_do_the_work_once_and_a_paused_or_killed_one_is_taken_over(results, tmp_path):
    slow = write_images(tmp_path / "slow", train=1200, test=2, size=8)
    arguments = ("--dataset", slow, "--name", "pets", "--to", results, "--stale-after-s", "2")
    killed = start(*arguments)
    wait_for(lambda: is_writing(results))
    killed.send_signal(signal.SIGKILL)
    finish(killed)
    assert not (results / "_prepared" / "pets").exists()
    for path in results.glob("_prepared/.pets.partial-*"):
        shutil.rmtree(path)
    paused = start(*arguments)
    wait_for(lambda: is_writing(results))
    paused.send_signal(signal.SIGSTOP)
    code, output = run(*arguments)
    assert code == 0, output
    stamp = (results / "_prepared" / "pets" / "DONE.json").stat().st_mtime_ns
    paused.send_signal(signal.SIGCONT)
    code, output = finish(paused)
    assert code == 0, output
    assert (prepared(results) / "DONE.json").stat().st_mtime_ns == stamp


def test_sigterm_leaves_nothing_behind(results, tmp_path):
    slow = write_images(tmp_path / "slow", train=1200, test=2, size=8)
    process = start("--dataset", slow, "--name", "pets", "--to", results)
    wait_for(lambda: is_writing(results))
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143 and list((results / "_prepared").iterdir()) == []
