"""A run that goes on, in its rarer ways: other engines, another number of processes, other data, odd moments.

A run goes on from a checkpoint of another one: real workers, digits.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes
from tests.trainer.kept_runs import STEPS, lines, read, train
from tests.trainer.ranks.test_resume import (
    assert_equal_ending,
    check_stop,
    committed,
    losses,
    planted,
    read_attempts,
    stop_at,
)
from tests.trainer.runs import run_worker
from trainer.checkpoint.folder import COMMIT, CheckpointFolder


def die_after(step: int, rank: int):
    """A worker whose rank ends without a word after `step`, before its checkpoint."""

    def target() -> None:
        from trainer.checkpoint.store import Checkpoints

        after_step = Checkpoints.after_step

        def fatal(self, done: int, asked: bool) -> None:
            if done == step and int(os.environ["RANK"]) == rank:
                self.finish()  # that of an earlier step
                os._exit(77)
            after_step(self, done, asked)

        Checkpoints.after_step = fatal
        raise SystemExit(run_worker())

    return target


def test_one_of_fsdp_ends_as_if_it_had_not_died_and_in_one_process_within_rounding(tmp_path, uninterrupted):
    folder = train(tmp_path, "fsdp", 2, die_after(9, 1), codes=(77, 134))
    shutil.copytree(folder, tmp_path / "alone" / "default" / "fsdp")
    train(tmp_path, "fsdp", 2)
    whole = uninterrupted("fsdp", 2)
    assert_equal_ending(folder, whole)
    train(tmp_path / "alone", "fsdp", 1)
    alone = tmp_path / "alone" / "default" / "fsdp"
    assert [(a["from_step"], a["world_size"]) for a in read_attempts(alone)] == [(0, 2), (6, 1)]
    again, never = losses(alone, 2), losses(whole, 1)
    assert again == pytest.approx({step: never[step] for step in again}, rel=1e-5)
    for name in ("data_order_sha256", "initial_weights_sha256"):
        assert read(alone, "summary.json")[name] == read(whole, "summary.json")[name]


def test_the_best_weights_are_exported_beside_the_final_ones(tmp_path):
    """With this rate the last validation is worse than the first."""
    folder = train(tmp_path, "single", 1, TRAINER_LR="0.05", TRAINER_EVALUATE_EVERY="3")
    best = read(folder, "checkpoints/best.json")
    found = {x["step"]: x["validation_accuracy_pct"] for x in lines(folder) if x["kind"] == "eval"}
    assert best["accuracy_pct"] == max(found.values()) and best["step"] < STEPS
    final, kept = ((folder / name / "model.safetensors") for name in ("model", "best_model"))
    assert kept.read_bytes() != final.read_bytes()


def test_a_stop_while_a_checkpoint_is_taken(tmp_path, uninterrupted):
    """That of step 5: noticed behind the next step."""
    check_stop(tmp_path, uninterrupted("ddp", 2), "_take", 1, 6)


def test_a_run_without_checkpoints_stops_too_and_keeps_its_metrics(tmp_path):
    off = {"TRAINER_CHECKPOINT_EVERY": "0", "TRAINER_CHECKPOINT_MINUTES": "0", "TRAINER_LOG_EVERY": "100"}
    folder = train(tmp_path, "ddp", 2, stop_at("train_step", 5), codes=(143,), **off)
    assert list(losses(folder, 1)) == [1, 2, 3, 4, 5]
    assert not (folder / "checkpoints").exists()
    assert [x["name"] for x in lines(folder) if x["kind"] == "event"] == ["stopped"]


def test_a_peer_that_is_lost_ends_the_attempt_although_it_was_told_to_stop(tmp_path):
    """Step 7 is saved by nobody; what was being written before is waited for, lest a slow disk decide."""
    stops = stop_at("train_step", 7, rank=0)
    newest = CheckpointFolder(RunDirectory(tmp_path, "default", "ddp")).step(6) / COMMIT

    def target() -> None:
        import time

        from trainer.distributed.consensus import Agreement

        real = Agreement._reduce

        def reduce(self: Agreement, unit_s: float) -> float:
            if self.step == 7 and int(os.environ["RANK"]) == 1:
                until = time.monotonic() + 60
                while not newest.is_file() and time.monotonic() < until:
                    time.sleep(0.01)
                os._exit(77)
            return real(self, unit_s)

        Agreement._reduce = reduce  # type: ignore[method-assign]
        stops()

    folder = train(tmp_path, "ddp", 2, target, codes=(134, 77))
    assert committed(folder) == [5, 6]


def test_a_bad_batch_under_deepspeed_and_a_rank_that_hangs_end_the_run(tmp_path):
    train(tmp_path, "zero2", 2, codes=(12,), **planted("nan@4"))
    given = planted("hang@4:1", TRAINER_COLLECTIVE_TIMEOUT_S="10")
    train(tmp_path, "ddp", 2, codes=(134, -9), **given)  # whoever hangs is killed by its launcher


def test_weights_are_written_though_the_last_evaluation_left_gathers_under_way(tmp_path):
    """In an ensemble DeepSpeed fetches, at the end of a forward pass, what the backward pass of a member would need."""
    more = {"TRAINER_MODEL": "ensemble", "TRAINER_PERSISTENT_ELEMENTS": "1000", "TRAINER_STEPS": "4"}
    folder = train(tmp_path, "zero3", 2, TRAINER_CHECKPOINT_EVERY="2", TRAINER_EVALUATE_EVERY="2", **more)
    assert (folder / "model" / "model.safetensors").is_file() and (folder / "evaluation.json").is_file()


def test_starts_from_another_run_s_newest_whole_checkpoint_and_then_from_no_other(tmp_path):
    """The other run's files stay as they are; a further attempt goes on from the same checkpoint or not at all."""

    def die_at_once() -> None:
        from trainer import worker

        worker.train = lambda *a, **k: os._exit(77)
        raise SystemExit(run_worker())

    keeps = {"TRAINER_CHECKPOINT_KEEP": "9", "TRAINER_CHECKPOINT_KEEP_FINISHED": "all"}
    other = train(tmp_path, "ddp", 2, **keeps)
    newest = other / "checkpoints" / "step_00000012"
    whole = tmp_path / "whole"
    shutil.copytree(newest, whole)
    damaged = next((newest / "engine").glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    moved = {"TRAINER_RESUME_FROM": "default/ddp"}
    folder = train(tmp_path, "single", 1, die_at_once, codes=(77,), **moved)
    told = [find_codes(x["text"]) for x in lines(folder) if x.get("name") == "checkpoint skipped"]
    assert told == [["SL-file-changed", "SL-origin-broken"]]
    assert read(folder, "config.json")["resolved"]["resumed_from"]["step"] == 10
    shutil.rmtree(newest)
    shutil.move(whole, newest)
    train(tmp_path, "single", 1, **moved)
    assert min(losses(folder, 2)) == 11, "a newer one is there now, and the run began with the older one"
    known = other / "config.json"
    known.write_text(known.read_text().replace('"initial_weights_sha256": "', '"initial_weights_sha256": "0'))
    elsewhere = train(tmp_path, "zero1", 1, codes=(2,), **moved)
    assert not (elsewhere / "config.json").exists(), "what the ranks alone know is compared by them"


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_goes_on_from_another_one(tmp_path):
    keeps = {"TRAINER_CHECKPOINT_KEEP": "9", "TRAINER_CHECKPOINT_KEEP_FINISHED": "all"}
    whole = train(tmp_path, "fsdp", 2, **keeps)
    before = contents(whole)
    moved = {"TRAINER_RESUME_FROM": "default/fsdp/checkpoints/step_00000005"}
    folder = train(tmp_path, "zero2", 1, **moved)
    assert contents(whole) == before
    seen, wanted = losses(folder, 1), losses(whole, 1)
    assert list(seen) == list(range(6, STEPS + 1))
    assert seen == pytest.approx({step: wanted[step] for step in seen}, abs=1e-5)
    manifest = whole / "checkpoints" / "step_00000005" / "manifest.json"
    assert read(folder, "config.json")["resolved"]["resumed_from"] == {
        "run": "default/fsdp",
        "step": 5,
        "strategy": "fsdp",
        "world_size": 2,
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
    }
    a, b = read(folder, "summary.json"), read(whole, "summary.json")
    for name in ("data_order_sha256", "initial_weights_sha256"):
        assert a[name] == b[name]
    assert a["test_loss"] == pytest.approx(b["test_loss"], abs=1e-4)
