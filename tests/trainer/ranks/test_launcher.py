"""The pod's entry point as Kubernetes starts it: a process with an environment and an exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stratlab.machine.processes import free_port
from tests.programs import find_python
from trainer.failures import PeerLost, exit_code, first_failure, is_told_in_a_sentence, reason
from trainer.launch.elastic import read_own_address

QUICK = {
    "TRAINER_RUN": "try",
    "TRAINER_STRATEGY": "ddp",
    "TRAINER_MODEL": "cnn",
    "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_STEPS": "12",
    "TRAINER_GLOBAL_BATCH_SIZE": "16",
    "TRAINER_MICRO_BATCH_SIZE": "8",
    "PET_NPROC_PER_NODE": "2",
    "HOSTNAME": "pod-0",
}


def environment(results: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"TRAINER_RESULTS": str(results), "OMP_NUM_THREADS": "1"} | QUICK | more


READ_TIMEOUT_S = 4
"""Of torch's rendezvous; the charts say 15."""
ONE = {"PET_NPROC_PER_NODE": "1"}
"""Where the number of ranks is not the point: each takes seconds to start."""


def launch(results: Path, python: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """By default warm: tests/programs.py."""
    command = [python or find_python(), "-m", "trainer"]
    return subprocess.run(
        command, env=environment(results, **more), capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"TRAINER_TPP": "2"}, 2, "TRAINER_TPP: unknown setting"),
        (
            {"TRAINER_GLOBAL_BATCH_SIZE": "20"},
            2,
            "must be a multiple of TRAINER_MICRO_BATCH_SIZE=8 x 2 processes",
        ),
        (
            {"TRAINER_FAULT": "kill@13", "TRAINER_ALLOW_FAULTS": "true"},
            2,
            "TRAINER_FAULT='kill@13': there is no step 13, only 1 to 12",
        ),
        ({"PET_NNODES": "0"}, 2, "PET_NNODES='0': expected a number from 1"),
        ({"PET_NNODES": "1:4"}, 2, "PET_NNODES=1:4: the size of a run is fixed"),
        ({"TRAINER_IMAGE_SIZE": "9"}, 2, "TRAINER_IMAGE_SIZE=9: cnn needs a multiple of 8, for example 8"),
        (
            {
                "PET_NPROC_PER_NODE": "3",
                "TRAINER_GLOBAL_BATCH_SIZE": "24",
                "TRAINER_TRAIN_SAMPLES": "2",
            },
            2,
            "TRAINER_GLOBAL_BATCH_SIZE=24: there are only 2 training samples",
        ),
        (
            {"TRAINER_DATASET_PATH": "/nowhere/pets"},
            3,
            "TRAINER_DATASET_PATH='/nowhere/pets': no such folder",
        ),
        (
            {"MLFLOW_TRACKING_URI": "mlruns"},
            2,
            "MLFLOW_TRACKING_URI='mlruns': expected the address of a server",
        ),
        (
            {"MLFLOW_TRACKING_URI": "http://me:pw@mlflow"},
            2,
            "MLFLOW_TRACKING_URI: holds a login; set MLFLOW_",
        ),
    ],
)
def test_what_cannot_run_ends_before_torch_and_leaves_nothing(tmp_path, settings, code, sentence):
    began = time.monotonic()
    done = launch(tmp_path / "results", **settings)
    assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "results").exists()
    assert time.monotonic() - began < 30


def test_a_folder_of_somebody_else_is_no_place_for_a_run(tmp_path):
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "try").write_text("a file")
    done = launch(tmp_path)
    assert done.returncode == 2 and "is no folder; choose another name" in done.stderr
    (tmp_path / "default" / "try").unlink()
    (tmp_path / "default" / "try").mkdir()
    (tmp_path / "default" / "try" / "thesis.tex").touch()
    done = launch(tmp_path)
    assert done.returncode == 2 and "holds thesis.tex and nothing of a run" in done.stderr
    assert [path.name for path in (tmp_path / "default" / "try").iterdir()] == ["thesis.tex"]
    (tmp_path / "default" / "try" / "config.json").write_text("[]")
    done = launch(tmp_path)
    assert done.returncode == 2 and "config.json: is not what a run writes" in done.stderr
    (tmp_path / "default" / "try" / "config.json").unlink()
    (tmp_path / "default" / "try" / "thesis.tex").unlink()
    started = {"t": 1.0, "attempt": 1, "event": "started", "launcher": "a", "from_step": 0}
    (tmp_path / "default" / "try" / "attempts.jsonl").write_text(json.dumps(started) + "\n")
    done = launch(tmp_path)
    assert done.returncode == 2 and "config.json: is not there beside the attempts of this run" in done.stderr


def test_the_folder_of_the_run_itself_has_to_be_writable(tmp_path, monkeypatch):
    """Of the nearest folder that is there, whichever that is."""
    from trainer.launch import preflight
    from trainer.settings.config import Config

    config = Config(run="try", results=str(tmp_path))
    asked = []
    monkeypatch.setattr(preflight.os, "access", lambda path, how: bool(asked.append(path)))
    assert "is not writable for user" in preflight._writable_problems(config)[0]
    (tmp_path / "default").mkdir()
    assert f"{tmp_path / 'default'} is not writable for user" in preflight._writable_problems(config)[0]
    (tmp_path / "default" / "try").mkdir()
    assert f"{tmp_path / 'default' / 'try'} is not writable" in preflight._writable_problems(config)[0]
    assert asked == [tmp_path, tmp_path / "default", tmp_path / "default" / "try"]


def start(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """With options, and an environment that says nothing of a run."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        env={**kept, "OMP_NUM_THREADS": "1", **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_and_stray_arguments(tmp_path):
    done = start(tmp_path, "--help")
    assert done.returncode == 0 and "python -m trainer --config training.yaml --set lr=0.01" in done.stdout
    for argument, sentence in (
        ("--steps=3", "unrecognized arguments: --steps=3"),
        ("--set=lr", "--set lr: expected key=value"),
        ("--config=no.yaml", "--config no.yaml: No such file"),
        ("--set=lrr=1", "lrr: unknown setting, did you mean lr?"),
        ("--set=lr=-1", "lr='-1': "),
        ("--processes=two", "processes='two': expected a number from 1"),
    ):
        done = start(tmp_path, argument)
        assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
        assert "the run is called" not in done.stderr and "run directory" not in done.stderr
    (tmp_path / "odd.yaml").write_text("? [lr]\n: 1\n")
    done = start(tmp_path, "--config", "odd.yaml")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    (tmp_path / "odd.yaml").unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_settings_is_the_run_that_the_environment_is(tmp_path):
    (tmp_path / "training.yaml").write_text(
        "".join(f"{name.removeprefix('TRAINER_').lower()}: {value}\n" for name, value in QUICK.items())
        .replace("PET_NPROC_PER_NODE", "# ")
        .replace("pet_nproc_per_node", "# ")
        .replace("hostname", "# ")
    )
    done = start(tmp_path, "--config", "training.yaml", "--set", "run=null", "--processes", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = (tmp_path / "results" / "runs" / "default").iterdir()
    assert folder.name == "ddp" and f"the run is called {folder.name}" in done.stderr
    assert launch(tmp_path / "other").returncode == 0
    given = [
        json.loads((each / "config.json").read_text()) for each in (folder, tmp_path / "other/default/try")
    ]
    for each in given:
        each["config"].pop("run"), each["config"].pop("results")
    assert given[0]["config"] == given[1]["config"]
    losses = [
        [json.loads(line)["loss"] for line in (each / "metrics.jsonl").open() if '"kind":"train"' in line]
        for each in (folder, tmp_path / "other/default/try")
    ]
    assert len(losses[0]) == 12 and losses[0] == losses[1]


def test_a_run_ends_with_0_and_is_not_started_twice(tmp_path):
    done = launch(tmp_path, sys.executable)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "default" / "try" / "traces" / "manifest.json").is_file()
    assert "gpuGetDeviceCount" not in done.stdout + done.stderr  # what recording says where there is no GPU
    folder = tmp_path / "default" / "try"
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    assert [(a["event"], a.get("exit_code")) for a in attempts] == [("started", None), ("ended", 0)]
    assert len({a["launcher"] for a in attempts}) == 1
    again = launch(tmp_path)
    assert again.returncode == 2 and "this run has finished already" in again.stderr

    (folder / "summary.json").unlink()  # as if the first attempt had not come to its end
    other = launch(tmp_path, TRAINER_LR="0.5")
    assert other.returncode == 2 and "started with other settings: lr=0.5 (was 0.001)" in other.stderr
    fewer = launch(tmp_path, PET_NPROC_PER_NODE="1")
    assert fewer.returncode == 2 and "other settings: processes=1 (was 2)" in fewer.stderr


def start_long(results: Path) -> subprocess.Popen[bytes]:
    """A run of its own interpreter that has begun to train."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer"], env=environment(results, TRAINER_STEPS="100000")
    )
    metrics = results / "default" / "try" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    return process


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGINT)], ids=["pod", "terminal"]
)
def test_a_stopped_run_ends_with_143_saved_and_leaves_no_rank_behind(tmp_path, signals):
    folder = tmp_path / "default" / "try"
    process = start_long(tmp_path)
    try:
        for number in signals:
            process.send_signal(number)
            time.sleep(0.1)
        assert process.wait(60) == 143
    finally:
        process.terminate()  # not kill: torch's launcher must end its ranks
        process.wait(60)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [
        f"step_{max(line['step'] for line in steps):08d}"
    ]
    last = json.loads((folder / "attempts.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["exit_code"], last["reason"]) == ("ended", 143, "stopped from outside")
    assert last["text"] == {signal.SIGTERM: "by SIGTERM", signal.SIGINT: "by SIGINT (Ctrl-C)"}[signals[0]]
    start, met, ended = (json.loads(line) for line in (folder / "pods" / "pod-0.jsonl").open())
    assert (met["event"], met["launcher"]) == ("met", start["launcher"])
    assert (start["event"], start["step"], ended["event"], ended["exit_code"]) == ("started", 0, "ended", 143)
    assert start["launcher"] == ended["launcher"] == last["launcher"]
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(tmp_path).encode() not in entry.read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue


def test_no_rank_outlives_its_launcher(tmp_path):
    """It would write beside the next start, which takes the folder for free."""
    process = start_long(tmp_path)
    ranks = [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if parent(path) == process.pid
    ]
    try:
        assert len(ranks) == 2
        process.kill()
        process.wait(10)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)


def parent(stat: Path) -> int:
    with suppress(OSError):
        return int(stat.read_text().rpartition(")")[2].split()[1])
    return 0


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


def test_a_run_that_gets_nowhere_is_given_up_with_a_final_code(tmp_path):
    folder = tmp_path / "default" / "try"
    write_starts(folder, (90, 0, 134), (60, 0, None), (30, 0, 134))
    done = launch(tmp_path)
    assert done.returncode == 14
    assert "3 starts of this pod came no further than step 0" in done.stderr
    assert "a peer was lost" in done.stderr and "more than TRAINER_MAX_ATTEMPTS=3" in done.stderr
    assert not (folder / "config.json").exists()
    assert launch(tmp_path, TRAINER_MAX_ATTEMPTS="4", **ONE).returncode == 0


def test_a_run_is_stopped_at_its_deadline_also_while_it_trains(tmp_path):
    forever = {"TRAINER_STEPS": "1000000", "TRAINER_DEADLINE_S": "120", **ONE}
    for left_s in (6, 15, 40, 110):  # how long a start takes is the machine's affair
        results = tmp_path / str(left_s)
        folder = results / "default" / "try"
        write_starts(folder, (120 - left_s, 0, 143))
        done = launch(results, **forever)
        assert done.returncode == 15, done.stderr[-2000:]
        if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
            break
    assert "TRAINER_DEADLINE_S=120" in done.stderr
    last = json.loads((folder / "attempts.jsonl").read_text().splitlines()[-1])
    assert (last["exit_code"], last["reason"]) == (15, "deadline passed")
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]
    assert f"had reached step {max(steps)}" in done.stderr

    pods = folder / "pods" / "pod-0.jsonl"
    lines = [json.loads(line) for line in pods.open()]
    lines[0]["t"] -= 120  # the next start comes after the deadline
    pods.write_text("".join(json.dumps(line) + "\n" for line in lines))
    began = time.monotonic()
    assert launch(results, **forever).returncode == 15
    assert time.monotonic() - began < 30


def test_a_pod_that_is_stopped_before_torch_listens_still_says_143(tmp_path):
    process = subprocess.Popen([sys.executable, "-m", "trainer"], env=environment(tmp_path))
    ledger = tmp_path / "default" / "try" / "pods" / "pod-0.jsonl"
    deadline = time.monotonic() + 60
    while not ledger.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert json.loads(ledger.read_text().splitlines()[-1])["exit_code"] == 143


def test_signals_until_its_very_end_leave_the_exit_code_what_it_is(tmp_path):
    """Python gives them their default back before its libraries go, which takes a moment where torch is loaded."""
    command = [sys.executable, "-m", "trainer"]
    process = subprocess.Popen(command, env=environment(tmp_path, **ONE), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("default/try/pods/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        assert process.returncode == 143
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("resolved", "address"), [("10.2.3.4", "10.2.3.4"), ("127.0.1.1", None), (None, None)]
)
def test_a_pod_hands_out_its_address_and_never_a_loopback(monkeypatch, resolved, address):
    def look_up(name: str) -> str:
        if resolved is None:
            raise OSError("unknown name")
        return resolved

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    assert read_own_address() == address


@pytest.mark.parametrize(
    ("exit_codes", "culprit"),
    [
        ({0: 134, 1: 10}, (1, 10)),
        ({0: -15, 1: 12}, (1, 12)),
        ({0: -9, 1: 134}, (0, 137)),
        ({1: 134}, (1, 134)),
        ({0: -15, 1: -15}, (0, 143)),
    ],
)
def test_the_culprit_is_told_from_the_survivors(exit_codes, culprit):
    assert first_failure(exit_codes) == culprit


def test_failures_have_their_codes():
    class OutOfMemoryError(RuntimeError):
        """Named like torch's."""

    assert exit_code(OutOfMemoryError()) == 10
    assert exit_code(OSError(28, "No space left on device")) == 13
    assert exit_code(RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1")) == 134
    assert exit_code(RuntimeError("shapes do not match")) == 1
    assert reason(139) == "signal 11"


def test_a_planted_kill_is_told_as_planted(tmp_path):
    done = launch(tmp_path, TRAINER_FAULT="kill@5", TRAINER_ALLOW_FAULTS="true", **ONE)
    assert done.returncode == 137, done.stderr[-2000:]
    assert "rank 0: killed (SIGKILL); as TRAINER_FAULT asked of rank 0 at step 5" in done.stderr
    assert "memory" not in done.stderr


SIGNAL_AS_THE_CLOCK_IS_READ = """
import os, runpy, signal, sys, time, types
from torch.distributed.elastic.metrics import api

def read_clock():
    reader = sys._getframe(1)
    if "_monitor_workers" in str(reader.f_locals.get("key")) and os.path.getsize(os.environ["METRICS"]):
        api.time = time
        os.kill(os.getpid(), signal.SIGTERM)
    return time.time()

api.time = types.SimpleNamespace(time=read_clock)
sys.argv = ["-m"]
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""


def test_a_signal_while_torch_looks_at_its_ranks_loses_no_step(tmp_path):
    """Its agent makes another exception of what interrupts it before it has read its clock, and would end the ranks at
    once. Seen once in hundreds of signals."""
    folder = tmp_path / "default" / "try"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").touch()
    env = environment(tmp_path, TRAINER_STEPS="100000", METRICS=str(folder / "metrics.jsonl"))
    command = [sys.executable, "-c", SIGNAL_AS_THE_CLOCK_IS_READ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 143, done.stderr[-3000:]
    assert "by SIGTERM" in done.stderr and "UnboundLocalError" not in done.stderr
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]
    assert [path.name for path in (folder / "checkpoints").glob("step_*")] == [f"step_{max(steps):08d}"]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RuntimeError("[gloo] Read error [127.0.0.1]:1: Connection reset by peer"), True),
        (PeerLost("rank 1 has given up"), True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), False),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1, invalid usage"), False),
        (RuntimeError("shapes do not match"), False),
        (OSError(28, "No space left on device"), True),
    ],
)
def test_a_stack_is_shown_of_what_a_sentence_does_not_tell(failure, told):
    assert is_told_in_a_sentence(failure) is told


def test_the_last_sentence_is_that_of_the_rank_that_failed(tmp_path):
    """One image in the middle of 400 is cut; nothing looks at it before it is its turn."""
    for index in range(400):
        path = tmp_path / "pets" / "train" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    cut = tmp_path / "pets" / "train" / "cat" / "102.png"
    cut.write_bytes(cut.read_bytes()[:300])
    given = {"TRAINER_DATASET_PATH": str(tmp_path / "pets"), "TRAINER_STEPS": "40"}
    done = launch(tmp_path / "results", **ONE, **given)
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-2000:]
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        rf"rank 0: data or model missing: TRAINER_DATASET_PATH='{tmp_path}/pets': train sample \d+ \({cut}\) "
        "cannot be decoded: .+; remove or replace the file",
        last,
    )
    lines = (tmp_path / "results" / "default" / "try" / "metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line)["kind"] == "train" for line in lines), "it was not found while training"


def test_without_its_accelerators_a_run_ends_before_torch_and_for_good(tmp_path):
    """On the CPU it would train, succeed, and hold its GPU node until then."""
    command = [sys.executable, "-X", "importtime", "-m", "trainer"]
    asked = {"TRAINER_ACCELERATOR": "nvidia.com/gpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, env=environment(tmp_path, **asked), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 4, done.stderr[-2000:]
    assert (
        "accelerators asked for, not visible (exit code 4):\nrun.accelerator=nvidia.com/gpu: asked for 2"
        in (done.stderr)
    )
    imported = {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line
    }
    assert "trainer.launch.visibility" in imported and "torch" not in imported
    (refused,) = (json.loads(line) for line in (tmp_path / "default" / "try" / "pods" / "pod-0.jsonl").open())
    assert (refused["event"], refused["exit_code"]) == ("refused", 4) and "one per process" in refused["text"]


def test_torch_has_the_last_word_on_accelerators(tmp_path):
    """A vendor that is not asked without torch."""
    asked = {"TRAINER_ACCELERATOR": "amd.com/gpu", "CUDA_VISIBLE_DEVICES": ""}
    done = launch(tmp_path, **ONE, **asked)
    assert done.returncode == 4, done.stderr[-2000:]
    assert "run.accelerator=amd.com/gpu: asked for 1 in this pod" in done.stdout
    assert not (tmp_path / "default" / "try" / "config.json").exists()


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
        env=environment(results, **ONE, **rendezvous, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end_all(pods: list[subprocess.Popen[str]]) -> list[str]:
    """What each of them said, to its end; none is left behind."""
    try:
        return [pod.communicate(timeout=120)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.terminate()  # not kill: torch's launcher must end its ranks
        for pod in pods:
            pod.wait(60)


def read_ledger(results: Path, index: int) -> list[tuple[str, int | None]]:
    file = results / "default" / "try" / "pods" / f"try-worker-{index}.jsonl"
    return [(line["event"], line.get("exit_code")) for line in map(json.loads, file.open())]


def test_a_lone_pod_waits_as_long_as_it_is_told_and_has_made_no_attempt(tmp_path):
    """Whichever of the two it is; torch's own limit is ten minutes for the host, and the read timeout for the other."""
    began = time.monotonic()
    pods = [start_pod(tmp_path / str(index), index, free_port(), TRAINER_WAIT_S="12") for index in (0, 1)]
    said = end_all(pods)
    assert time.monotonic() - began > 12
    for index, pod in enumerate(pods):
        assert pod.returncode == 15, said[index][-2000:]
        assert "never all there at once for run.scheduling.waitSeconds=12" in said[index]
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
    assert "attempt 1, rank 0 of 2" in said[1] and "step 12/12" in said[1], said[1]
    assert "step 12/12" not in said[0]
    for index in (0, 1):
        assert read_ledger(tmp_path, index) == [("started", None), ("met", None), ("ended", 0)]


def test_a_pod_does_not_wait_for_one_that_has_ended_for_good(tmp_path):
    pod = start_pod(tmp_path, 0, free_port(), TRAINER_WAIT_S="1000")
    ledger = tmp_path / "default" / "try" / "pods" / "try-worker-0.jsonl"
    deadline = time.monotonic() + 60
    while not ledger.exists():
        assert pod.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    line = {"t": time.time(), "event": "refused", "exit_code": 4, "reason": "accelerators", "text": "none"}
    ledger.with_name("try-worker-1.jsonl").write_text(json.dumps(line) + "\n")
    (said,) = end_all([pod])
    assert pod.returncode == 134, said[-2000:]
    assert "pod try-worker-1 has ended for good: accelerators asked for, not visible (exit code 4)" in said
