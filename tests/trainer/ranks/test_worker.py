"""The real worker in forked ranks: is the run directory what docs/formats.md promises? Of other strategies: nightly."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks import fork_ranks, run_ranks
from tests.trainer.kept_runs import be_worker, lines, read, train
from trainer.measuring.hardware import NAMES
from trainer.measuring.profiler import hash_file

STEPS = 16
LABELS = {"## Data Loading ##", "## Forward Pass ##", "## Backward Pass ##", "## Optimizer Step ##"}
JUDGED = {
    "samples_per_s", "step_time_ms_p50", "test_loss", "test_accuracy_pct", "test_top5_accuracy_pct",
    "state_memory_gib", "peak_host_memory_gib", "data_set_memory_gib", "wire_bytes_per_step", "comm_exposed_pct",
    "train_time_s",
}  # fmt: skip


def settings(results: Path, strategy: str, **more: str) -> dict[str, str]:
    return {
        "TRAINER_RUN": strategy, "TRAINER_RESULTS": str(results), "TRAINER_STRATEGY": strategy,
        "TRAINER_IMAGE_SIZE": "8", "TRAINER_STEPS": str(STEPS), "TRAINER_GLOBAL_BATCH_SIZE": "32",
        "TRAINER_MICRO_BATCH_SIZE": "8", "TRAINER_EVALUATE_EVERY": "8", "TRAINER_PROFILE_FIRST_STEP": "10",
        "STRATLAB_LAUNCHER": "test", "STRATLAB_NODE": "node-7",
    } | more  # fmt: skip


def count_ranks(folder: Path) -> int:
    return 1 if folder.name == "single" else 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Callable[[str], Path]:
    @functools.cache
    def of(strategy: str) -> Path:
        folder = tmp_path_factory.mktemp("results") / "default" / strategy
        ranks = count_ranks(folder)
        done = fork_ranks(be_worker, ranks, env=settings(folder.parents[1], strategy))
        assert [r.exit_code for r in done] == [0] * ranks, "\n".join(r.output[-2000:] for r in done)
        return folder

    return of


def check_files(folder: Path) -> None:
    for name in ("config.json", "attempts.jsonl", "metrics.jsonl", "evaluation.json", "summary.json"):
        assert (folder / name).stat().st_size > 0
    ranks = count_ranks(folder)
    for rank in range(ranks):
        facts = read(folder, f"ranks/rank{rank}.json")
        assert facts["node"] == "node-7" and facts["processor"] and facts["gpu"] is None
        assert facts["done"] and facts["samples_seen"] == STEPS * 32 // ranks
        assert f"rank {rank} of {ranks}" in (folder / "ranks" / f"rank{rank}.log").read_text()
    assert json.loads((folder / "attempts.jsonl").read_text().splitlines()[0])["nodes"] == ["node-7"]
    assert not [path for path in folder.rglob("*") if "tmp" in path.name]


def check_metrics(folder: Path) -> None:
    train = lines(folder, "train")
    assert [line["step"] for line in train] == list(range(1, STEPS + 1))
    for line in train:
        parts = line["data_ms"] + line["forward_ms"] + line["backward_ms"] + line["optimizer_ms"]
        assert 0 < parts <= line["step_time_ms"] and (line["samples"], line["skipped"]) == (32, 0)
    assert [line["step"] for line in lines(folder, "eval")] == [8, 16]
    assert [line["step"] for line in train if line.get("profiled")] == [9, 10, 11, 12]  # one of warm-up
    measured = STEPS - 5 - 4 - 1  # warm-up, profiled, the one after
    assert read(folder, "summary.json")["measured_steps"] == measured


def check_traces(folder: Path) -> None:
    manifest = read(folder, "traces/manifest.json")
    assert manifest["complete"] and (manifest["first_step"], manifest["steps"]) == (10, 3)
    assert [entry["rank"] for entry in manifest["files"]] == list(range(count_ranks(folder)))
    for entry in manifest["files"]:
        path = folder / "traces" / entry["file"]
        assert (path.stat().st_size, hash_file(path)) == (entry["bytes"], entry["sha256"])
        trace = json.loads(path.read_text())
        names = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
        assert set(names) >= LABELS | {f"## Training Step {step} ##" for step in (10, 11, 12)}
        assert names.count("## Forward Pass ##") == 3 * 4 // count_ranks(folder)
        assert trace["distributedInfo"]["rank"] == entry["rank"]


def check_summary(folder: Path) -> None:
    summary, evaluation, config = (
        read(folder, name) for name in ("summary.json", "evaluation.json", "config.json")
    )
    assert summary["test_accuracy_pct"] == evaluation["accuracy_pct"]
    assert sum(map(sum, evaluation["confusion_matrix"])) == evaluation["samples"] == 359
    found = lines(folder)
    assert summary["train_loss"] == [line["loss"] for line in found if line["kind"] == "train"][-1]
    assert config["resolved"]["world_size"] == summary["world_size"]
    assert config["resolved"]["tf32"] is False  # torch's default for cuDNN is True
    foreseen = config["resolved"]["step_time_forecast"]
    assert foreseen["step_ms"] is None and foreseen["reason"], "a CPU is no card"
    assert not [name for name in summary if name.startswith("forecast_step")]
    assert config["resolved"]["axes"].items() <= summary.items()
    (result,) = [line for line in found if line["kind"] == "result"]
    assert found[-1] == result and result["step"] == STEPS
    assert result.keys() >= JUDGED
    assert not result.keys() & (config["config"].keys() | config["resolved"].keys() - {"step"})
    sent = {f"wire_bytes_per_axis/{axis}": size for axis, size in summary["wire_bytes_per_axis"].items()}
    told = {name: value for name, value in result.items() if name not in ("t", "attempt", "step", "kind")}
    assert told == {name: (summary | sent)[name] for name in told}
    assert (summary["comm_exposed_pct"] == 0) == (count_ranks(folder) == 1)
    assert summary["mfu_pct"] is None and summary["backend"] == "gloo"  # no peak is known for a CPU
    promised = Path("docs/formats.md").read_text()
    assert [name for name in summary if f'"{name}"' not in promised] == []


def check_peak(folder: Path) -> None:
    """The peak of training has its moment and its parts."""
    facts, summary = read(folder, "ranks/rank0.json"), read(folder, "summary.json")
    memory = facts["training_memory"]
    assert (memory["from_step"], memory["to_step"]) == (6, STEPS)
    first, last = memory["peak_steps"]
    assert 6 <= first <= last <= STEPS
    assert set(memory["phases_gib"]) == {"between", "data", "forward", "backward", "optimizer"}
    assert memory["peak_phase"] in (None, *memory["phases_gib"])
    assert max(memory["phases_gib"].values()) <= memory["peak_gib"] <= facts["peak_host_memory_gib"] * 1.001
    held = memory["held_gib"]
    assert sum(held.values()) == pytest.approx(memory["peak_gib"])
    for kind in ("parameters", "optimizer"):
        assert held[kind] == facts["state_memory_gib"][kind]
    assert held["data_set"] == facts["data_set_memory_gib"] > 0
    assert facts["peak_memory_gib"] is facts["alloc_retries"] is None, "a CPU has no device's memory"
    assert summary["peak_memory_step"] in range(6, STEPS + 1)


CHECKS = [check_files, check_metrics, check_traces, check_summary, check_peak]


@pytest.mark.parametrize("check", CHECKS)
def test_the_run_directory_is_complete(finished, check):
    check(finished("ddp"))


TAUGHT = {
    "TRAINER_TEACHER": "default/single",
    "TRAINER_DISTILL_TEMPERATURE": "3",
    "TRAINER_DISTILL_ALPHA": "0.8",
}
STUDENT = {"TRAINER_MODEL": "vit_tiny", "TRAINER_MODEL_LAYERS": "2", "TRAINER_COMPARISON": "students"}


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder) if line["kind"] == "train"]


def student(results: Path, strategy: str, ranks: int, **more: str) -> Path:
    train(results, strategy, ranks, **{**TAUGHT, **STUDENT, **more})
    return results / more.get("TRAINER_COMPARISON", "students") / strategy


def test_what_is_recorded_of_a_teacher(tmp_path: Path, uninterrupted) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "single").symlink_to(uninterrupted("single", 1))
    folder = student(tmp_path, "ddp", 2, TRAINER_STEPS="3", TRAINER_EVALUATE_EVERY="3")
    resolved = read(folder, "config.json")["resolved"]
    teacher = read(tmp_path / "default" / "single", "config.json")["resolved"]
    assert resolved["teacher_parameters"] == teacher["parameters"] and len(resolved["teacher_sha256"]) == 64
    assert resolved["teacher_flops_per_sample"] == pytest.approx(teacher["flops_per_sample"] / 3)
    alone = 3 * 2 * (5 * (4 * 64**2 + 2 * 64 * 128) * 2 + 4 * 64 * 4**2) + 3 * 4 * 5**2 * 64 * 2
    both = alone + resolved["teacher_flops_per_sample"]
    assert resolved["flops_per_sample"] == pytest.approx(both, rel=0.01)
    facts = read(folder, "ranks/rank0.json")
    assert facts["dtypes"]["teacher"] == ["float32"] and "teacher" not in facts["state_memory_gib"]
    assert not list((folder / "model").glob("*teacher*"))


def record(folder, images: bool) -> None:
    """Six steps of a rank with made-up system numbers; of images it tells as many right as its number says."""
    import torch
    import torch.distributed as dist

    from trainer.engine import StepResult
    from trainer.measuring.operators import WireCounter
    from trainer.metrics.tracking import Recorder

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def read_system() -> list[float]:
        return [math.nan if name.startswith("gpu") else rank + i / 8 for i, name in enumerate(NAMES)]

    path = folder / "metrics.jsonl" if rank == 0 else None
    measures = ("accuracy", "all") if images else ()
    recorder = Recorder(path, 1, 4, read_system=read_system, epoch_samples=16, step_measures=measures)
    right = torch.tensor([rank, 8]) if images else None
    result = StepResult(torch.tensor(0.25 * (rank + 1)), torch.tensor(1.0), 8, measures=right)
    with WireCounter() as wire:
        for step in range(1, 7):
            recorder.record_step(step, 0.1, result, (0, 0, 0, 0, 0), False)
        recorder.flush()
        recorder.flush()  # nothing is waiting: no collective and no line
    recorder.close()
    (folder / f"rank{rank}.json").write_text(json.dumps(wire.operations))
    dist.barrier()


@pytest.mark.parametrize(("ranks", "images"), [(1, False), (3, True)])
def test_every_rank_s_numbers_are_in_one_line_per_flush(ranks, images, tmp_path):
    run_ranks(lambda: record(tmp_path, images), ranks)
    train, system, epochs = (lines(tmp_path, kind) for kind in ("train", "system", "epoch"))
    assert [line["loss"] for line in train] == [0.25 * ranks * (ranks + 1) / 2] * 6
    assert [line["step"] for line in system] == [4, 6]
    own = {name: i / 8 for i, name in enumerate(NAMES) if not name.startswith("gpu")}
    expected = {f"rank{rank}_{name}": rank + part for rank in range(ranks) for name, part in own.items()}
    assert {key: value for key, value in system[0].items() if key.startswith("rank")} == expected
    collectives = json.loads((tmp_path / "rank0.json").read_text())
    if not images:
        assert collectives == {}
        return
    assert collectives == {"all_reduce": [2, (6 + 2 * 6 + 2 * ranks * len(NAMES)) * 4]}
    assert {line["train_accuracy_pct"] for line in train} == {100.0 * (0 + 1 + 2) / 8}
    assert {line["train_all_pct"] for line in train} == {300.0}
    assert [(line["step"], line["epoch"]) for line in epochs] == [(2, 1), (4, 2), (6, 3)]  # 8 of 16 a step
    assert {line["epoch_train_accuracy_pct"] for line in epochs} == {37.5}
