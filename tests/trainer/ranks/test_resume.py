"""A run that dies and goes on is the run that never died: real workers, real engines, digits."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.ranks import fork_ranks, run_ranks
from tests.trainer.kept_runs import STEPS, be_worker, lines, read, settings, train
from trainer.checkpoint.folder import CheckpointFolder
from trainer.failures import NoProgress, StorageFull, is_storage_full
from trainer.launch.ledger import Ledger
from trainer.launch.preflight import check
from trainer.record.run_directory import RunDirectory, append_line, write_json
from trainer.settings.config import Config, ConfigError
from trainer.settings.schedule import build_plan, profile_first_from


def die_after(step: int, rank: int):
    """A worker whose rank ends without a word after `step`, before its checkpoint."""

    def target() -> None:
        from trainer import worker
        from trainer.checkpoint.store import Checkpoints

        after_step = Checkpoints.after_step

        def fatal(self, done: int, asked: bool) -> None:
            if done == step and int(os.environ["RANK"]) == rank:
                self.finish()  # that of an earlier step
                os._exit(77)
            after_step(self, done, asked)

        Checkpoints.after_step = fatal
        raise SystemExit(worker.main())

    return target


def losses(folder: Path, attempt: int) -> dict[int, float]:
    found = lines(folder)
    return {x["step"]: x["loss"] for x in found if x["kind"] == "train" and x["attempt"] == attempt}


def assert_equal_ending(resumed: Path, whole: Path) -> None:
    """Bitwise: losses, weights, evaluation, hash of the data order."""
    again, never = losses(resumed, 2), losses(whole, 1)
    assert again == {step: never[step] for step in again} and max(again, default=STEPS) == STEPS
    for name in ("model/model.safetensors", "model/config.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    assert read(resumed, "evaluation.json") == read(whole, "evaluation.json")
    a, b = read(resumed, "summary.json"), read(whole, "summary.json")
    for name in (
        *("train_loss", "validation_loss", "validation_accuracy_pct", "test_loss", "test_accuracy_pct"),
        *("data_order_sha256", "initial_weights_sha256", "skipped_steps", "steps"),
        *("dtype_parameters", "dtype_optimizer", "optimizer_memory_gib"),
    ):
        assert a[name] == b[name], name


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "zero2"])
def test_a_run_that_goes_on_ends_as_if_it_had_not_died(tmp_path, uninterrupted, strategy):
    ranks = 1 if strategy == "single" else 2
    folder = train(tmp_path, strategy, ranks, die_after(9, ranks - 1), codes=(77, 134)[:ranks])
    assert CheckpointFolder(RunDirectory(tmp_path, "default", strategy)).committed() == [5, 6]
    assert not (folder / "summary.json").exists()

    train(tmp_path, strategy, ranks)
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    assert [(a["attempt"], a["from_step"]) for a in attempts] == [(1, 0), (2, 6)]
    assert list(losses(folder, 2)) == list(range(7, STEPS + 1))
    assert_equal_ending(folder, uninterrupted(strategy, ranks))


def test_a_run_that_dies_behind_its_last_step_needs_no_other(tmp_path, uninterrupted):
    def die_at_the_export() -> None:
        from trainer import worker

        worker.export_weights = lambda *a: os._exit(77)
        raise SystemExit(worker.main())

    folder = train(tmp_path, "single", 1, die_at_the_export, codes=(77,))
    train(tmp_path, "single", 1)
    assert losses(folder, 2) == {}
    assert_equal_ending(folder, uninterrupted("single", 1))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_another_number_of_processes_goes_on_within_rounding(tmp_path, uninterrupted, strategy):
    folder = train(tmp_path, strategy, 2, die_after(9, 1), codes=(77, 134))
    train(tmp_path, strategy, 1)
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    assert [(a["from_step"], a["world_size"]) for a in attempts] == [(0, 2), (6, 1)]
    again, never = losses(folder, 2), losses(uninterrupted(strategy, 2), 1)
    assert again == pytest.approx({step: never[step] for step in again}, rel=1e-5)
    names = ("data_order_sha256", "initial_weights_sha256")
    summary, other = read(folder, "summary.json"), read(uninterrupted(strategy, 2), "summary.json")
    assert [summary[n] for n in names] == [other[n] for n in names] and summary["world_size"] == 1


def test_a_run_goes_on_with_its_samples_only_and_starts_over_with_others(tmp_path):
    pets = tmp_path / "pets"
    for index in range(120):
        path = pets / "train" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(index).integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    given = {"TRAINER_DATASET_PATH": str(pets)}
    early = given | {"TRAINER_RUN": "early"}
    folder = train(tmp_path, "single", 1, die_after(9, 0), codes=(77,), **given)
    train(tmp_path, "single", 1, die_after(3, 0), codes=(77,), **early)
    began = read(folder.parent / "early", "config.json")

    shutil.move(pets / "train" / "cat" / "0.png", pets / "train" / "dog" / "0.png")
    (refused,) = fork_ranks(be_worker, 1, env=settings(tmp_path, "single", **given), grace_s=20)
    said = f"TRAINER_DATASET_PATH='{pets}': has other samples than when this run began (data_sha256 "
    assert refused.exit_code == 2 and said in refused.output, refused.output[-2500:]
    assert [line["attempt"] for line in RunDirectory(tmp_path, "default", "single").read_attempts()] == [1]
    # no checkpoint: all its steps are of the samples that are there now
    train(tmp_path, "single", 1, **early)
    once_more = read(folder.parent / "early", "config.json")
    assert once_more["resolved"]["data_sha256"] != began["resolved"]["data_sha256"]
    assert once_more["run_uid"] == began["run_uid"] and once_more["config"] == began["config"]
    assert once_more["provenance"]["created"] > began["provenance"]["created"]  # all of it is this attempt's
    assert read(folder.parent / "early", "summary.json")["steps"] == STEPS

    shutil.move(pets / "train" / "dog" / "0.png", pets / "train" / "cat" / "0.png")
    train(tmp_path, "single", 1, **given)
    assert min(losses(folder, 2)) == 7


def test_a_missed_profile_is_made_up_for(tmp_path):
    profile = {"TRAINER_PROFILE_STEPS": "2", "TRAINER_PROFILE_FIRST_STEP": "8"}
    folder = train(tmp_path, "single", 1, die_after(8, 0), codes=(77,), **profile)
    train(tmp_path, "single", 1, **profile)
    manifest = read(folder, "traces/manifest.json")
    assert (manifest["first_step"], manifest["steps"]) == (8, 2)  # from step 7, one of warm-up


def test_the_best_weights_are_exported_beside_the_final_ones(tmp_path):
    """With this rate the last validation is worse than the first."""
    folder = train(tmp_path, "single", 1, TRAINER_LR="0.05", TRAINER_EVALUATE_EVERY="3")
    best = read(folder, "checkpoints/best.json")
    eval_lines = {x["step"]: x["validation_accuracy_pct"] for x in lines(folder) if x["kind"] == "eval"}
    assert best["accuracy_pct"] == max(eval_lines.values())
    final, kept = ((folder / name / "model.safetensors") for name in ("model", "best_model"))
    assert best["step"] < STEPS
    assert kept.read_bytes() != final.read_bytes()


def test_another_number_of_processes_needs_a_checkpoint(tmp_path):
    config = Config(run="try", results=str(tmp_path), strategy="ddp", image_size=8, model="cnn")
    folder = RunDirectory(tmp_path, "default", "try")
    folder.create()
    write_json(folder.config, {"config": config.model_dump(), "resolved": {"world_size": 2}})
    check(config, 2, {})
    with pytest.raises(
        ConfigError, match=r"processes=1 \(was 2\).* can only go on from a checkpoint \(TRAINER_C"
    ):
        check(config, 1, {})
    (folder.checkpoints / "step_00000005").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"processes=1"):  # it was never committed
        check(config, 1, {})
    (folder.checkpoints / "step_00000005" / "COMMIT").write_text("{}")
    check(config, 1, {})
    with pytest.raises(
        ConfigError,
        match=r"lr=0\.5 \(was 0\.001\); choose another .* remove the folder \(stratlab remove .*/default/try\)$",
    ):
        check(config.model_copy(update={"lr": 0.5}), 1, {})


def test_where_the_profile_lies_in_a_run_that_goes_on():
    config = Config(run="try", profile_first_step=10, profile_warmup=1, profile_steps=3, steps=20)
    plan = build_plan(config, 1000)

    def first(done: int, recorded: bool = False) -> int:
        return profile_first_from(config, plan, done, recorded)

    assert [first(0), first(5), first(8), first(9), first(11)] == [10, 10, 10, 11, 13]
    assert [first(16), first(17), first(5, recorded=True)] == [18, 0, 0]


def test_a_finished_run_that_is_judged_later_is_not_past_its_deadline(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    folder.pods.mkdir(parents=True)
    config = Config(run="try", results=str(tmp_path), max_attempts=1, deadline_s=60)
    started = {"t": time.time() - 1000, "event": "started", "launcher": "a", "step": 0}
    append_line(folder.pod_ledger("pod-0"), started)
    with pytest.raises(NoProgress):
        Ledger(folder, "pod-0").check(config)
    append_line(
        folder.pod_ledger("pod-0"),
        {"t": time.time() - 900, "event": "ended", "launcher": "a", "exit_code": 0},
    )
    Ledger(folder, "pod-0").check(config)


@pytest.mark.parametrize(
    ("failure", "full"),
    [
        (OSError(28, "No space left on device"), True),
        (RuntimeError("CheckpointException ... OSError: [Errno 28] No space left on device"), True),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), True),
        (RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598"), True),
        (OSError(30, "Read-only file system"), True),
        (OSError(5, "what was being written when the volume went away"), True),
        (RuntimeError("CheckpointException ... OSError: [Errno 5] Input/output error"), True),
        (StorageFull("rank 1: no space"), True),
        (RuntimeError("something else"), False),
        (FileNotFoundError(2, "No such file"), False),
    ],
)
def test_a_full_volume_is_known_by_its_words_too(failure, full):
    assert is_storage_full(failure) is full
    wrapped = RuntimeError("saving failed")
    wrapped.__cause__ = failure
    assert is_storage_full(wrapped) is full


def test_torch_s_own_failure_of_a_checkpoint_is_an_exception(tmp_path):
    """It is a BaseException: the rank ended with 1 and without a word."""

    def load() -> None:
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import CheckpointException

        from trainer.checkpoint.native_files import read_sharded

        with pytest.raises(RuntimeError, match="is not there"):
            read_sharded({"model": {"w": torch.zeros(2)}}, tmp_path / "nothing")
        dcp.save({"model": {"w": torch.ones(2)}}, checkpoint_id=tmp_path / "state")
        for file in (tmp_path / "state").glob("*.distcp"):
            file.unlink()
        with pytest.raises(RuntimeError) as failure:
            read_sharded({"model": {"w": torch.zeros(2)}}, tmp_path / "state")
        assert isinstance(failure.value.__cause__, CheckpointException)

    run_ranks(load, 1)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata.tmp"])
def test_a_volume_that_is_full_for_torch_s_writer_is_known(tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / name).symlink_to("/dev/full")

    def save() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.saving import write
        from trainer.checkpoint.sharded_snapshot import ShardedStaging
        from trainer.failures import exit_code

        dist.init_process_group("gloo")
        snapshot = ShardedStaging().take({"model": {"w": torch.zeros(1 << 18)}})
        with pytest.raises(Exception) as failure:
            write(snapshot, tmp_path / "full")
        assert exit_code(failure.value) == 13, str(failure.value)

    run_ranks(save, 1)
