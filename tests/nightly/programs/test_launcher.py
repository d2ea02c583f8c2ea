"""The pod's entry point: deadlines, signals at odd moments, pods that wait for each other, a hang."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from stratlab.machine import free_port
from stratlab.run_directory.record import read_run
from tests.codes import find_codes
from tests.programs import find_python
from tests.trainer.ranks.test_launcher import (
    ONE,
    READ_TIMEOUT_S,
    environment,
    launch,
    read_lines,
    start_pod,
    write_starts,
)


def test_a_run_is_stopped_at_its_deadline_while_it_trains_and_not_started_behind_it(tmp_path):
    forever = {"TRAINER_STEPS": "1000000", "TRAINER_DEADLINE_S": "120", **ONE}
    for left_s in (6, 15, 40, 110):  # how long a start takes is the machine's affair
        results = tmp_path / str(left_s)
        folder = results / "default" / "try"
        write_starts(folder, (120 - left_s, 0, 143))
        done = launch(results, **forever)
        assert (done.returncode, find_codes(done.stderr)) == (15, ["SL-deadline-passed"]), done.stderr[-2000:]
        if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
            break
    assert read_lines(folder / "attempts.jsonl")[-1]["exit_code"] == 15
    reached = max(line["step"] for line in read_lines(folder / "metrics.jsonl"))
    assert f"step {reached} " in done.stderr
    pods = folder / "pods" / "pod-0.jsonl"
    lines = read_lines(pods)
    lines[0]["t"] -= 120  # the next start comes after the deadline
    pods.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert launch(results, **forever).returncode == 15
    assert len(read_lines(folder / "attempts.jsonl")) == 2, "no further attempt"


def test_signals_from_before_torch_listens_until_its_very_end_leave_the_code_143(tmp_path):
    """Python gives them their default back before its libraries go, which takes a moment where torch is loaded."""
    command = [sys.executable, "-m", "trainer"]
    process = subprocess.Popen(command, env=environment(tmp_path, **ONE), stderr=subprocess.DEVNULL)
    ledger = tmp_path / "default" / "try" / "pods" / "pod-0.jsonl"
    try:
        deadline = time.monotonic() + 60
        while not ledger.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        assert process.returncode == 143
    finally:
        process.kill()
        process.wait()
    assert read_lines(ledger)[-1]["exit_code"] == 143


def test_a_planted_kill_is_told_as_planted_and_torch_has_the_last_word_on_accelerators(tmp_path):
    done = launch(tmp_path / "a", TRAINER_FAULT="kill@5", TRAINER_ALLOW_FAULTS="true", **ONE)
    assert (done.returncode, find_codes(done.stderr)) == (137, ["SL-kill-planted"]), done.stderr[-2000:]
    asked = {"TRAINER_ACCELERATOR": "amd.com/gpu", "CUDA_VISIBLE_DEVICES": ""}
    done = launch(tmp_path / "b", **ONE, **asked)  # a vendor that is not asked without torch
    assert (done.returncode, find_codes(done.stdout)) == (4, ["SL-torch-no-accelerator"]), done.stderr[-2000:]
    assert not (tmp_path / "b" / "default" / "try" / "config.json").exists()


def end_all(pods: list[subprocess.Popen[str]]) -> list[str]:
    """What each of them said, to its end; none is left behind."""
    try:
        return [pod.communicate(timeout=120)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.terminate()  # not kill: torch's launcher must end its ranks
        for pod in pods:
            pod.wait(60)


def read_ledger(results, index: int) -> list[tuple[str, int | None]]:
    file = results / "default" / "try" / "pods" / f"try-worker-{index}.jsonl"
    return [(line["event"], line.get("exit_code")) for line in read_lines(file)]


def test_a_lone_pod_waits_as_long_as_it_is_told_and_has_made_no_attempt(tmp_path):
    """Whichever of the two it is; torch's own limit is ten minutes for the host, and the read timeout for the other."""
    began = time.monotonic()
    pods = [start_pod(tmp_path / str(index), index, free_port(), TRAINER_WAIT_S="8") for index in (0, 1)]
    said = end_all(pods)
    assert time.monotonic() - began > 8
    for index, pod in enumerate(pods):
        assert pod.returncode == 15 and "SL-pods-never-met" in find_codes(said[index]), said[index][-2000:]
        assert read_ledger(tmp_path / str(index), index) == [("started", None), ("ended", 15)]
    assert not (tmp_path / "0" / "default" / "try" / "attempts.jsonl").exists()


def test_a_pod_that_comes_late_is_waited_for_and_rank_0_is_in_the_first_pod(tmp_path):
    """The host of the rendezvous comes after the other's read timeout; ranks follow pods, not addresses."""
    port = free_port()
    pods = [start_pod(tmp_path, 1, port, sys.executable)]
    time.sleep(3 * READ_TIMEOUT_S)  # it has been up for two at the least
    pods.append(start_pod(tmp_path, 0, port, sys.executable))
    said = end_all(pods)
    assert [pod.returncode for pod in pods] == [0, 0], said[0][-2000:] + said[1][-2000:]
    assert "12/12" in said[1] and "12/12" not in said[0], "rank 0 tells how far it is"
    for index in (0, 1):
        assert read_ledger(tmp_path, index) == [("started", None), ("met", None), ("ended", 0)]


def test_a_pod_does_not_wait_for_one_that_has_ended_for_good(tmp_path):
    pod = start_pod(tmp_path, 0, free_port(), find_python(), TRAINER_WAIT_S="1000")
    ledger = tmp_path / "default" / "try" / "pods" / "try-worker-0.jsonl"
    deadline = time.monotonic() + 60
    while not ledger.exists():
        assert pod.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    line = {"t": time.time(), "event": "refused", "exit_code": 4, "reason": "accelerators", "text": "none"}
    ledger.with_name("try-worker-1.jsonl").write_text(json.dumps(line) + "\n")
    (said,) = end_all([pod])
    assert pod.returncode == 134 and find_codes(said) == ["SL-pod-ended-for-good"], said[-2000:]


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
