"""A hang under the real launcher, as Kubernetes starts it: exit code, last words, attempts.jsonl; in two pods too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from stratlab.machine.processes import free_port
from stratlab.run_directory.record import read_run
from tests.trainer.ranks.test_launcher import environment

PLANT = """
import os
if "LOCAL_RANK" in os.environ:
    from tests.trainer.planted_hangs import plant
    plant("{way}", rank={rank})
"""
NAMED = "rank 1 (node node-7, pod {pod})"


def start(results: Path, folder: Path, way: str, rank: int, **more: str) -> subprocess.Popen[str]:
    """The launcher, whose ranks find the plant as Python's own customisation."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(PLANT.format(way=way, rank=rank))
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


def test_the_last_words_name_the_rank_that_did_not_arrive(tmp_path):
    launcher = start(tmp_path / "results", tmp_path / "plant", "data", 1)
    (errors,) = finish(launcher)
    said = NAMED.format(pod="pod-0")
    assert launcher.returncode == 134, errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith(said) and "step 4" in last and "trainer/loop.py" in last, errors
    ended = json.loads((tmp_path / "results/default/try/attempts.jsonl").read_text().splitlines()[-1])
    assert ended["exit_code"] == 134 and ended["text"].startswith(said)
    record = read_run(tmp_path / "results/default/try")
    assert record.status == "failed" and said in record.ending


def test_two_pods_agree_and_both_end(tmp_path):
    """The pod of the rank that hangs has nobody whom torch would end: its launcher does."""
    both = {
        "PET_NPROC_PER_NODE": "1", "PET_NNODES": "2", "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "try", "PET_LOCAL_ADDR": "127.0.0.1",
    }  # fmt: skip
    pods = [
        start(
            tmp_path / "results", tmp_path / "plant", "python", 1,
            PET_RDZV_CONF=f"is_host={1 - index}", HOSTNAME=f"try-worker-{index}", **both,
        )
        for index in range(2)
    ]  # fmt: skip
    errors = finish(*pods)
    assert [pod.returncode for pod in pods] == [134, 134], errors
    for text in errors:
        assert text.strip().splitlines()[-1].startswith(NAMED.format(pod="try-worker-1")), text
