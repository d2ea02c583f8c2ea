"""A run that runs out of memory climbs: three rungs to another strategy, and two pods that climb alike."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stratlab.machine import free_port
from tests.codes import find_codes
from tests.trainer.kept_runs import lines, read
from tests.trainer.planted_memory import plant
from tests.trainer.ranks.test_launcher import environment

SETTINGS = {
    "TRAINER_MODEL": "vit_tiny", "TRAINER_IMAGE_SIZE": "32", "TRAINER_STEPS": "8", "TRAINER_CHECKPOINT_EVERY": "2",
    "TRAINER_GLOBAL_BATCH_SIZE": "8", "TRAINER_MICRO_BATCH_SIZE": "2", "TRAINER_PROFILE_STEPS": "0",
    "TRAINER_TRAIN_SAMPLES": "64", "TRAINER_LOG_EVERY": "1",
}  # fmt: skip


def launch(results: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(results, **SETTINGS | more)
    return subprocess.run(
        [sys.executable, "-m", "trainer"], env=env, capture_output=True, text=True, timeout=900
    )


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(folder) if line["kind"] == "train"}


def test_a_run_climbs_and_ends_like_one_that_started_on_its_last_rung(tmp_path):
    """ddp: a smaller micro-batch, recomputation, and fsdp, which goes on from a checkpoint of ddp."""
    planted = plant(tmp_path / "planted", (0, 6, 1), (1, 3, 0), (2, 1, 0))
    done = launch(tmp_path, TRAINER_OOM_FALLBACK="true", **planted)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = tmp_path / "default" / "try"
    rungs = json.loads((folder / "rungs.json").read_text())
    assert [rung["settings"] for rung in rungs] == [
        {"micro_batch_size": 1},
        {"activation_checkpointing": "blocks"},
        {"strategy": "fsdp"},
    ]
    assert "out of memory; rung 1: micro_batch_size 1 instead of 2" in done.stderr
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    started = [line for line in attempts if line["event"] == "started"]
    assert [line.get("rung", 0) for line in started] == [0, 1, 2, 3]
    assert [line["exit_code"] for line in attempts if line["event"] == "ended"] == [10, 10, 10, 0]
    steps = [line["from_step"] for line in started]
    assert steps == sorted(steps) and steps[:1] == [0] and 2 <= steps[1] <= 4 and steps[-1] <= 6
    config, summary = read(folder, "config.json"), read(folder, "summary.json")
    asked = {"strategy": "ddp", "micro_batch_size": 2, "activation_checkpointing": "none"}
    assert {name: config["config"][name] for name in asked} == asked, "the release's stay what they were"
    assert config["resolved"]["rungs"] == rungs and config["resolved"]["grad_accum_steps"] == 4
    assert (summary["strategy"], summary["micro_batch_size"], summary["rung"]) == ("fsdp", 1, 3)

    last = {
        "TRAINER_RUN": "last",
        "TRAINER_STRATEGY": "fsdp",
        "TRAINER_MICRO_BATCH_SIZE": "1",
        "TRAINER_ACTIVATION_CHECKPOINTING": "blocks",
    }
    straight = launch(tmp_path, **last)
    assert straight.returncode == 0, straight.stderr[-3000:]
    wanted = losses(tmp_path / "default" / "last")
    assert losses(folder) == pytest.approx(wanted, abs=1e-5) and len(wanted) == 8


def test_all_pods_climb_alike_and_a_restarted_pod_stands_where_they_were(tmp_path):
    """Two pods of one rank: in one the rank runs out of memory, in the other it loses its peer."""
    port = free_port()
    pods = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
        "PET_RDZV_ID": "try",
        "PET_LOCAL_ADDR": "127.0.0.1",
        "TRAINER_OOM_FALLBACK": "true",
        "TRAINER_STRATEGY": "zero1",
        **SETTINGS,
        **plant(tmp_path / "planted", (0, 4, 1)),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "trainer"],
            env=environment(tmp_path, **pods, HOSTNAME=f"pod-worker-{i}", PET_NODE_RANK=str(i)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=900)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(text[-2000:] for text in said)
    folder = tmp_path / "default" / "try"
    rungs = json.loads((folder / "rungs.json").read_text())
    assert [rung["settings"] for rung in rungs] == [{"micro_batch_size": 1}]
    assert all("out of memory; rung 1: micro_batch_size 1 instead of 2" in text for text in said)
    assert read(folder, "summary.json")["rung"] == 1


def test_without_the_ladder_or_behind_its_end_the_run_ends_with_10(tmp_path):
    one = {"PET_NPROC_PER_NODE": "1", "TRAINER_STRATEGY": "single", "TRAINER_MICRO_BATCH_SIZE": "1"}
    one |= {"TRAINER_ACTIVATION_CHECKPOINTING": "blocks"}
    planted = plant(tmp_path / "planted", (0, 1, 0))
    off = launch(tmp_path, TRAINER_RUN="off", **one, **planted)
    assert off.returncode == 10 and not (tmp_path / "default" / "off" / "rungs.json").exists()
    on = launch(tmp_path, TRAINER_RUN="on", TRAINER_OOM_FALLBACK="true", **one, **planted)
    assert on.returncode == 10 and "SL-ladder-empty" in find_codes(on.stderr)
