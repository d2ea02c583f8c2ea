"""A hang under two real launchers, as Kubernetes starts them: exit code, last words, attempts.jsonl."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from stratlab.processes import free_port
from stratlab.run_directory.record import read_run
from tests.trainer.ranks.test_launcher import environment

PLANT = """
import os
if "LOCAL_RANK" in os.environ:
    from tests.trainer.planted_hangs import plant
    plant("data", rank=1)
"""
NAMED = "rank 1 (node node-7, pod try-worker-1)"


def start(results: Path, folder: Path, **more: str) -> subprocess.Popen[str]:
    """The launcher, whose ranks find the plant as Python's own customisation."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(PLANT)
    own = {"TRAINER_COLLECTIVE_TIMEOUT_S": "30", "TRAINER_PROFILE_STEPS": "0", "STRATLAB_NODE": "node-7"}
    env = environment(results, PYTHONPATH=f"{folder}:{Path.cwd()}", **own, **more)
    command = [sys.executable, "-m", "trainer"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*launchers: subprocess.Popen[str]) -> list[str]:
    """What each has said; none stays behind."""
    try:
        return [launcher.communicate(timeout=300)[1] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()


def test_two_pods_agree_both_end_and_their_last_words_name_the_rank_that_did_not_arrive(tmp_path):
    """The pod of the rank that hangs has nobody whom torch would end: its launcher does."""
    both = {
        "PET_NPROC_PER_NODE": "1", "PET_NNODES": "2", "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "try", "PET_LOCAL_ADDR": "127.0.0.1",
    }  # fmt: skip
    pods = [
        start(
            tmp_path / "results", tmp_path / "plant",
            PET_RDZV_CONF=f"is_host={1 - index}", HOSTNAME=f"try-worker-{index}", **both,
        )
        for index in range(2)
    ]  # fmt: skip
    errors = finish(*pods)
    assert [pod.returncode for pod in pods] == [134, 134], errors
    for text in errors:
        last = text.strip().splitlines()[-1]
        assert last.startswith(NAMED) and "step 4" in last and "trainer/loop.py" in last, text
    folder = tmp_path / "results" / "default" / "try"
    ended = json.loads((folder / "attempts.jsonl").read_text().splitlines()[-1])
    assert ended["exit_code"] == 134 and ended["text"].startswith(NAMED)
    record = read_run(folder)
    assert record.status == "failed" and NAMED in record.ending
