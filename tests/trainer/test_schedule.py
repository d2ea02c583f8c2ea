from __future__ import annotations

import pytest

from trainer.config import Config
from trainer.schedule import build_plan, learning_rate, plan_problems


def config(**settings) -> Config:
    return Config(**{"run": "try", "lr": 1.0} | settings)


def rates(steps: int, **settings) -> list[float]:
    return [round(learning_rate(config(**settings), step, steps), 4) for step in range(1, steps + 1)]


def test_courses_of_the_learning_rate():
    assert rates(3) == [1, 1, 1]
    assert rates(4, lr_schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(4, lr_schedule="cosine") == [1, 0.8536, 0.5, 0.1464]
    assert rates(6, lr_schedule="linear", warmup_steps=2) == [0.5, 1, 1, 0.75, 0.5, 0.25]


def test_steps_come_from_epochs_unless_given():
    assert build_plan(config(epochs=3, global_batch_size=10), 25).steps == 7
    assert build_plan(config(steps=4, global_batch_size=10), 25).steps == 4


@pytest.mark.parametrize(("steps", "first"), [(100, 10), (12, 10), (11, 9), (4, 2), (3, 0)])
def test_the_default_profile_moves_into_a_short_run(steps, first):
    assert build_plan(config(steps=steps), 1000).profile_first == first


def test_a_profile_asked_for_outside_the_run_is_refused():
    (found,) = plan_problems(config(steps=20, profile_first_step=19), 1000)
    assert "TRAINER_PROFILE_FIRST_STEP=19: the run has 20 steps, expected at most 18" in found
    assert plan_problems(config(steps=20, profile_first_step=18), 1000) == []


def test_fewer_samples_than_a_batch_are_refused():
    (found,) = plan_problems(config(global_batch_size=64), 2)
    assert "TRAINER_GLOBAL_BATCH_SIZE=64: there are only 2 training samples" in found


def test_a_warm_up_longer_than_the_run_is_refused():
    (found,) = plan_problems(config(epochs=1, warmup_steps=10, global_batch_size=10), 100)
    assert "TRAINER_WARMUP_STEPS=10: must be below the 10 steps" in found
