"""The thread that writes beside training: what it sees of the state, who waits for it, and how its failures arrive."""

import os
import time
from pathlib import Path

from tests.ranks import fork_ranks, run_ranks
from tests.trainer.checkpoint.stand_in import STEPS, build, exit_by_its_code, folder_of, read_lines


def wait_for(path: Path) -> None:
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def test_training_goes_on_while_the_state_of_then_is_written_in_a_group_of_its_own(tmp_path):
    gate = tmp_path / "gate"

    def train() -> None:
        import torch.distributed as dist

        checkpoints, engine, _, step_until = build(tmp_path, every=4)
        gather, save, groups = dist.all_gather_object, engine.save, []

        def watch(answers: list, value: object, group=None) -> None:
            groups.append(group)
            gather(answers, value, group=group)

        def save_later(folder: Path, value: object) -> list[str]:
            wait_for(gate)
            return save(folder, value)

        dist.all_gather_object, engine.save = watch, save_later
        step_until(7, finish=False)  # the first was taken behind step 4
        assert folder_of(tmp_path).committed() == [] and not gate.exists()
        dist.barrier()
        gate.touch()
        step_until(7)
        assert folder_of(tmp_path).committed() == [4]
        assert len(groups) == 3 and {*groups} == {checkpoints._writer.group} != {dist.group.WORLD}

    def go_on() -> None:
        _, engine, attempt, _ = build(tmp_path)
        assert attempt.from_step == 4 and engine.value.tolist() == [4, int(os.environ["RANK"])]

    run_ranks(train, 2)
    run_ranks(go_on, 2)


def test_one_that_is_due_waits_for_the_one_before_it(tmp_path):
    def train() -> None:
        _, engine, _, step_until = build(tmp_path, keep=9)
        save = engine.save

        def save_slowly(folder: Path, value: object) -> list[str]:
            time.sleep(0.3)
            return save(folder, value)

        engine.save = save_slowly
        step_until(6)

    run_ranks(train, 2)
    assert folder_of(tmp_path).committed() == [2, 4, 6]
    saved = {line["step"]: line for line in read_lines(tmp_path) if "checkpoint_ms" in line}
    assert saved[2]["checkpoint_stall_ms"] < 250 < saved[4]["checkpoint_stall_ms"]
    assert all(line["checkpoint_ms"] > 300 and line["checkpoint_staging_gib"] > 0 for line in saved.values())


def test_what_is_asked_for_now_is_committed_when_the_call_returns(tmp_path):
    def train() -> None:
        checkpoints, engine, _, step_until = build(tmp_path, every=4, keep=9)
        step_until(3)
        assert checkpoints.commit_now(3) and folder_of(tmp_path).committed() == [3]
        step_until(4, finish=False)
        engine.snapshot = None
        assert checkpoints.commit_now(4), "the one of this step is under way"
        assert folder_of(tmp_path).committed() == [3, 4] and checkpoints.commit_now(4), "it is there"

    def go_on() -> None:
        checkpoints, engine, attempt, _ = build(tmp_path)
        engine.snapshot = None
        assert attempt.from_step == 4 and checkpoints.commit_now(4), "nothing was done behind it"

    run_ranks(train, 2)
    run_ranks(go_on, 2)


def test_without_a_number_of_steps_they_are_taken_when_they_are_asked_for(tmp_path):
    def train(folder: Path, asked: tuple[int, ...], wanted: list[int]) -> None:
        checkpoints, *_, step_until = build(folder, every=0, keep=9, asked=asked)
        step_until(STEPS, {2: 10.0, 5: 20.0})
        assert checkpoints.is_kept == bool(asked) and checkpoints.best is None
        assert folder_of(folder).committed() == wanted

    run_ranks(lambda: train(tmp_path / "asked", (3, 6), [3, 6, 8]), 2)
    run_ranks(lambda: train(tmp_path / "short", (), []), 2)


def test_what_goes_wrong_on_the_thread_ends_its_rank_at_the_next_step(tmp_path):
    def train() -> None:
        _, engine, _, step_until = build(tmp_path)
        failed = tmp_path / "failed"

        def save(folder: Path, value: object) -> list[str]:
            if os.environ["RANK"] == "1":
                failed.touch()
                raise ValueError("a bug")
            return []

        def go_on() -> None:
            step_until(2, finish=False)
            wait_for(failed)
            time.sleep(0.3)
            step_until(3, finish=False)

        engine.save = save
        exit_by_its_code(go_on)

    done = fork_ranks(train, 2, grace_s=3)
    assert done[1].exit_code == 1, done[1].output
    assert "ValueError: a bug" in done[1].output and "after_step" in done[1].output
