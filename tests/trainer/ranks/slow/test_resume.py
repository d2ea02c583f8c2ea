"""A run that goes on, in its rarer ways: other engines, another number of processes, other data, odd moments."""

import os
import shutil

import pytest

from tests.codes import find_codes
from tests.trainer.kept_runs import STEPS, lines, read, train
from tests.trainer.ranks.test_resume import assert_equal_ending, losses, read_attempts
from tests.trainer.runs import run_worker


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
    folder = train(tmp_path, "single", 1, TRAINER_LR="0.05", TRAINER_EVALUATE_EVERY="3")
    best = read(folder, "checkpoints/best.json")
    found = {x["step"]: x["validation_accuracy_pct"] for x in lines(folder) if x["kind"] == "eval"}
    assert best["accuracy_pct"] == max(found.values()) and best["step"] < STEPS
    final, kept = ((folder / name / "model.safetensors") for name in ("model", "best_model"))
    assert kept.read_bytes() != final.read_bytes()


def test_starts_from_another_run_s_newest_whole_checkpoint_and_then_from_no_other(tmp_path):
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
