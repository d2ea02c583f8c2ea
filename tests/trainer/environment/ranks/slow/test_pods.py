"""`mode: check` in two pods: what the second one lacks is named, with its name.

A check that hangs; lacks that are really there: tests/nightly/trainer/test_environment_check.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.codes import find_codes
from tests.faults.pods import open_pods
from tests.trainer.environment.planted import HANGS, KILLED, mounted, plant_in_ranks
from tests.trainer.environment.ranks.test_pods import (
    CHECK,
    SUBJECTS,
    check,
    checked,
    in_second,
    only,
    read_table,
)


def test_a_rank_that_dies_is_named_and_not_the_one_that_is_ended_with_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "1", KILLED)
    code, said = check(tmp_path, python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject) == (1, "ranks") and "rank 1 " in seen and "rank 0 " not in seen


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    started = tmp_path / "started"
    planted = plant_in_ranks(tmp_path / "site", "01", f"open({str(started)!r}, 'w').close(); {HANGS}")
    words = [sys.executable, "-m", "trainer.environment", "--results", str(tmp_path), "--processes", "2"]
    with subprocess.Popen(words, env={**os.environ, **planted}, stderr=subprocess.PIPE, text=True) as done:
        while not started.exists():
            assert done.poll() is None
            time.sleep(0.1)
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 143


def test_two_healthy_pods_lack_nothing(tmp_path: Path) -> None:
    """Of interpreters of their own: two forks of one have been seen not to meet on a busy machine."""
    with checked(tmp_path) as (pods, code, found):
        assert (code, found) == (0, []), pods.said()
        kept = json.loads((tmp_path / "results" / "_environment" / "try.json").read_text())
        assert [each["subject"] for each in kept["findings"]] == SUBJECTS
        assert sorted(kept["ranks"]) == ["0", "1"]
        assert not (tmp_path / "results" / "default").exists(), "a check is no run"
        logs = [(tmp_path / "logs" / f"pod-{index}.log").read_text() for index in (0, 1)]
        assert all(log.count("\nok ") == len(SUBJECTS) - log.startswith("ok ") for log in logs), (
            "either has it"
        )


def test_volumes_that_are_not_the_same(tmp_path: Path) -> None:
    """As an emptyDir in the place of the claim: each pod sees its own."""
    (tmp_path / "results").mkdir()
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif 'trainer.environment.rank' in sys.orig_argv:\n"
        "    import trainer.environment.probes as files\n    files.PLENTY_S = 2.0\n"
    )
    with mounted(tmp_path / "results", "2g") as words:
        with checked(tmp_path, {"PYTHONPATH": f"{site}"}, prefix=in_second(*words)) as (pods, code, found):
            assert code == 1, pods.said()
            assert [find_codes(seen) for _, seen in found] == [["SL-files-unseen"]] * 2, found


def test_a_first_pod_that_is_lost_meanwhile_leaves_nobody_waiting(tmp_path: Path) -> None:
    """The board goes with it."""
    logs = tmp_path / "logs"
    logs.mkdir()
    site = plant_in_ranks(tmp_path / "site", "1", HANGS)
    settings = {**CHECK, "TRAINER_COLLECTIVE_TIMEOUT_S": "10", **site}
    with open_pods(tmp_path / "logs", 2, settings=settings, logs=logs) as pods:
        pods.start()
        pods.wait_for(lambda: "meeting ..." in (logs / "pod-0.log").read_text(), "rank 0 waits for rank 1")
        pods.kill(0)
        assert pods.wait_for_end(1, 100) == 1, pods.said()
        ((subject, seen),) = read_table((logs / "pod-1.log").read_text())
        assert (subject, find_codes(seen)) == ("pods", ["SL-pod-lost"])
