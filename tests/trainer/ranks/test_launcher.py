"""The pod's entry point as Kubernetes starts it: a process with an environment and an exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratlab_spec.exit_codes import reason
from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes
from tests.programs import find_python

QUICK = {
    "TRAINER_RUN": "try", "TRAINER_STRATEGY": "ddp", "TRAINER_MODEL": "cnn", "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_STEPS": "12", "TRAINER_GLOBAL_BATCH_SIZE": "16", "TRAINER_MICRO_BATCH_SIZE": "8",
    "PET_NPROC_PER_NODE": "2", "HOSTNAME": "pod-0",
}  # fmt: skip
READ_TIMEOUT_S = 4
"""Of torch's rendezvous; the charts say 15."""
ONE = {"PET_NPROC_PER_NODE": "1"}
"""Where the number of ranks is not the point: each takes seconds to start."""


def environment(results: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"TRAINER_RESULTS": str(results), "OMP_NUM_THREADS": "1"} | QUICK | more


def launch(results: Path, python: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = [python or find_python(), "-m", "trainer"]
    return subprocess.run(
        command, env=environment(results, **more), capture_output=True, text=True, timeout=120
    )


def start_pod(results: Path, index: int, port: int, python: str = "", **more: str) -> subprocess.Popen[str]:
    """One of two pods of a job, with what the operator gives it; by default warm."""
    rendezvous = {
        "PET_NNODES": "2:2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
        "PET_RDZV_ID": "try",
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_CONF": f"read_timeout={READ_TIMEOUT_S}",
        "PET_LOCAL_ADDR": f"127.0.0.{2 - index}",  # by which torch would number the second pod first
        "HOSTNAME": f"try-worker-{index}",
    }
    return subprocess.Popen(
        [python or find_python(), "-m", "trainer"],
        env=environment(results, **ONE, **rendezvous, **more), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def write_starts(folder: Path, *starts: tuple[float, int, int | None]) -> None:
    """The ledger of pod-0: (seconds ago, step reached by then, exit code or None for a pod that was killed)."""
    lines = []
    for index, (ago_s, step, code) in enumerate(starts):
        common = {"t": time.time() - ago_s, "launcher": str(index)}
        lines += [{**common, "event": "started", "step": step}, {**common, "event": "met"}]
        if code is not None:
            lines.append({**common, "event": "ended", "exit_code": code, "reason": reason(code)})
    (folder / "pods").mkdir(parents=True)
    (folder / "pods" / "pod-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"TRAINER_TPP": "2"}, 2, "TRAINER_TPP"),
        ({"TRAINER_DATASET_PATH": "/nowhere/pets"}, 3, "/nowhere/pets"),
    ],
)
def test_what_cannot_run_ends_before_torch_and_leaves_nothing(tmp_path, settings, code, named):
    done = launch(tmp_path / "results", **settings)
    assert (done.returncode, named in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "results").exists()


def test_a_run_that_gets_nowhere_is_given_up_with_a_final_code(tmp_path):
    folder = tmp_path / "default" / "try"
    write_starts(folder, (90, 0, 134), (60, 0, None), (30, 0, 134))
    done = launch(tmp_path)
    assert (done.returncode, find_codes(done.stderr)) == (14, ["SL-no-progress"])
    assert not (folder / "config.json").exists()


def test_without_its_accelerators_a_run_ends_before_torch_and_for_good(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "trainer"]
    env = environment(tmp_path, TRAINER_ACCELERATOR="nvidia.com/gpu", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4 and "run.accelerator=nvidia.com/gpu" in done.stderr, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "trainer.launch.torchrun" in imported and "torch" not in imported
    (refused,) = read_lines(tmp_path / "default" / "try" / "pods" / "pod-0.jsonl")
    assert (refused["event"], refused["exit_code"]) == ("refused", 4) and len(
        find_codes(refused["text"])
    ) == 1


def test_a_run_ends_with_0_and_is_not_started_twice(tmp_path):
    from tests.trainer.launch.test_tensorboard import expected, read  # the image has no TensorBoard

    done = launch(tmp_path, sys.executable, **ONE, TRAINER_TENSORBOARD="true")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "gpuGetDeviceCount" not in done.stdout + done.stderr  # what recording says where there is no GPU
    folder = RunDirectory(tmp_path, "default", "try")
    assert (folder.path / "traces" / "manifest.json").is_file()
    attempts = read_lines(folder.attempts)
    assert [(a["event"], a.get("exit_code")) for a in attempts] == [("started", None), ("ended", 0)]
    assert len({a["launcher"] for a in attempts}) == 1
    assert read(folder.tensorboard) == expected(folder)
    assert {"loss", "test_accuracy_pct", "detail/system/rank0/host_memory_gib"} <= expected(folder).keys()
    again = launch(tmp_path, **ONE)
    assert (again.returncode, find_codes(again.stderr)) == (2, ["SL-run-finished"])


def test_a_stopped_run_ends_with_143_saved_and_leaves_no_rank_behind(tmp_path):
    folder = tmp_path / "default" / "try"
    env = environment(tmp_path, TRAINER_STEPS="100000", TRAINER_PROFILE_STEPS="0")
    process = subprocess.Popen([find_python(), "-m", "trainer"], env=env)
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 90
    try:
        while not metrics.exists() or not metrics.stat().st_size:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 143
    finally:
        process.terminate()  # not kill: torch's launcher must end its ranks
        process.wait(60)
    steps = max(line["step"] for line in read_lines(metrics))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step_{steps:08d}"]
    last = read_lines(folder / "attempts.jsonl")[-1]
    assert (last["event"], last["exit_code"]) == ("ended", 143) and "SIGTERM" in last["text"]
    start, met, ended = read_lines(folder / "pods" / "pod-0.jsonl")
    assert (start["event"], met["event"], ended["event"]) == ("started", "met", "ended")
    assert start["launcher"] == met["launcher"] == ended["launcher"] == last["launcher"]
    assert (start["step"], ended["exit_code"]) == (0, 143)
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(tmp_path).encode() not in entry.read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
