"""Saving with two ranks, a crash at every stage, a full disk, damaged files; the engine is a stand-in of one tensor."""

import os
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes, refuses
from tests.ranks import fork_ranks, run_ranks
from tests.trainer.checkpoint.stand_in import STEPS, build, exit_by_its_code, folder_of, read_lines


def read_left_out(results: Path) -> list[tuple[str, list[str]]]:
    """(sentence, codes) of each checkpoint that was left out."""
    texts = [line["text"] for line in read_lines(results) if line.get("name") == "checkpoint left out"]
    return [(text, find_codes(text)) for text in texts]


def test_saved_every_so_often_at_the_end_and_at_a_new_best(tmp_path):
    def train() -> None:
        *_, step_until = build(tmp_path, every=3, keep=2)
        step_until(STEPS, {1: 10.0, 5: 30.0, 7: 30.0, 8: 20.0})

    run_ranks(train, 2)
    folder = folder_of(tmp_path)
    assert folder.committed() == [5, 6, 8] and folder.read_best() == 5  # 1 and 3 are pruned, 7 is no better
    saved = [line for line in read_lines(tmp_path) if "checkpoint_ms" in line]
    assert [line["step"] for line in saved] == [1, 3, 5, 6, 8]
    assert all(line["checkpoint_ms"] > 0 and line["checkpoint_gib"] > 0 for line in saved)
    chosen, _ = folder.choose()
    assert chosen is not None
    state, best = chosen.state, {"step": 5, "loss": 1.0, "accuracy_pct": 30}
    assert (state.step, state.samples, state.world_size, state.axes["dp_replicate"]) == (8, 8 * 64, 2, 2)
    assert state.train_loss == pytest.approx(2 / 8) and state.best == best
    names = {str(path.relative_to(chosen.path)) for path in chosen.path.rglob("*") if path.is_file()}
    assert names == {
        *("engine/rank0.pt", "engine/rank1.pt", "ranks/rank_00000.pt", "ranks/rank_00001.pt"),
        *("state.json", "manifest.json", "COMMIT"),
    }


@pytest.mark.parametrize(
    ("where", "name", "rank", "left"),
    [
        ("trainer.checkpoint.writing", "describe_files", 1, 4),  # before a rank hashes
        ("trainer.checkpoint.folder", "write_json", 0, 4),  # before the commit
        ("trainer.checkpoint.folder.os", "rename", 0, 4),
        ("trainer.checkpoint.folder.CheckpointFolder", "prune", 0, 6),
    ],
)
def test_a_crash_anywhere_costs_at_most_the_newest_checkpoint(tmp_path, where, name, rank, left):
    def train() -> None:
        import pkgutil

        *_, step_until = build(tmp_path)
        step_until(4)
        if int(os.environ["RANK"]) == rank:
            setattr(pkgutil.resolve_name(where), name, lambda *a, **k: os._exit(77))
        step_until(6)

    def go_on() -> None:
        _, engine, attempt, step_until = build(tmp_path)
        assert (attempt.from_step, engine.value.tolist()) == (left, [left, int(os.environ["RANK"])])
        step_until(STEPS)

    codes = [r.exit_code for r in fork_ranks(train, 2, grace_s=1)]
    assert codes[rank] == 77, codes
    run_ranks(go_on, 2)
    assert sorted(p.name for p in folder_of(tmp_path).path.iterdir()) == ["step_00000006", "step_00000008"]
    starts = RunDirectory(tmp_path, "default", "try").read_attempts()
    assert [(line["from_step"], line["world_size"]) for line in starts] == [(0, 2), (left, 2)]


@pytest.mark.parametrize(
    ("how", "full_rank", "steps"), [("write", 1, 10), ("torch.save", 0, 10), ("write", 0, 8)]
)
def test_a_full_disk_costs_a_checkpoint_and_then_the_run_but_for_its_last(tmp_path, how, full_rank, steps):
    """F9: a warning first; when the next one does not fit either, the older ones make room; then 13, on every rank.
    Behind the last one the results are still to be written."""

    def train() -> None:
        import torch

        _, engine, _, step_until = build(tmp_path, steps=steps)
        step_until(4)

        def save(folder: Path, value: object) -> list[str]:
            file = folder / f"full{os.environ['RANK']}"
            if int(os.environ["RANK"]) == full_rank:
                file.symlink_to("/dev/full")  # ENOSPC at every write
            file.write_bytes(bytes(1 << 20)) if how == "write" else torch.save(torch.zeros(1 << 20), file)
            return [file.name]

        engine.save = save
        step_until(6)
        assert folder_of(tmp_path).committed() == [2, 4]
        exit_by_its_code(lambda: step_until(8))

    is_last = steps == 8
    assert [r.exit_code for r in fork_ranks(train, 2)] == [0 if is_last else 13] * 2
    told = read_left_out(tmp_path)
    assert f"rank {full_rank}: " in told[0][0]
    if is_last:
        assert told[-1][1] == ["SL-last-checkpoint-left-out"]
        return
    assert [p.name for p in folder_of(tmp_path).path.iterdir()] == ["step_00000004"]
    assert [codes for _, codes in told] == [["SL-checkpoint-left-out"], ["SL-checkpoints-make-room"]]
    counted = [
        line["checkpoints_left_out"] for line in read_lines(tmp_path) if "checkpoints_left_out" in line
    ]
    assert counted == [1, 1]


def test_a_run_that_starts_over_and_another_strategy_s_checkpoint(tmp_path):
    def train() -> None:
        *_, step_until = build(tmp_path)
        step_until(4)

    def start_over() -> None:
        *_, attempt, step_until = build(tmp_path, resume="never")
        assert attempt.from_step == 0
        step_until(2)

    def go_on() -> None:
        import dataclasses

        from stratlab_spec.settings.config import ConfigError
        from trainer.checkpoint import folder

        read = folder.TrainingState.read
        folder.TrainingState.read = lambda path: dataclasses.replace(read(path), strategy="zero2")
        with refuses(ConfigError, "SL-checkpoint-strategy"):
            build(tmp_path)

    run_ranks(train, 1)
    run_ranks(start_over, 1)
    assert folder_of(tmp_path).committed() == [2]
    run_ranks(go_on, 1)


def test_random_numbers_and_skipped_steps_go_on_on_every_rank(tmp_path):
    def train() -> None:
        import torch

        checkpoints, *_, step_until = build(tmp_path)
        torch.manual_seed(int(os.environ["RANK"]))
        checkpoints._recorder.skipped_steps = 3
        step_until(2)
        (tmp_path / f"wanted{os.environ['RANK']}").write_text(str(torch.rand(1).item()))

    def go_on() -> None:
        import torch

        checkpoints, *_ = build(tmp_path)
        assert str(torch.rand(1).item()) == (tmp_path / f"wanted{os.environ['RANK']}").read_text()
        assert checkpoints._recorder.skipped_steps == 3

    run_ranks(train, 2)
    run_ranks(go_on, 2)


def save(results) -> None:
    *_, step_until = build(results)
    step_until(4)


@pytest.mark.parametrize("name", ["engine/rank0.pt", "ranks/rank_00001.pt"])
def test_damage_in_any_rank_s_share_is_found_by_all(tmp_path, name):
    run_ranks(lambda: save(tmp_path), 2)
    file = folder_of(tmp_path).step(4) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    def go_on() -> None:
        *_, attempt, _ = build(tmp_path)
        assert attempt.from_step == 2 and name in attempt.skipped[0]

    run_ranks(go_on, 2)
    (event,) = [line for line in read_lines(tmp_path) if line.get("name") == "checkpoint skipped"]
    assert find_codes(event["text"]) == ["SL-file-changed", "SL-checkpoint-broken"] and event["attempt"] == 2
