from __future__ import annotations

import pytest

from trainer.settings.config import Config
from trainer.settings.schedule import build_plan, learning_rate, plan_problems, profile_first_from


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


def test_validations_come_once_an_epoch_unless_asked_for():
    assert build_plan(config(epochs=3, global_batch_size=10), 25).evaluate_every == 2
    assert build_plan(config(epochs=3, global_batch_size=10, evaluate_every=5), 25).evaluate_every == 5


@pytest.mark.parametrize(
    ("done", "first"), [(0, 10), (5, 10), (8, 10), (9, 11), (20, 22), (36, 38), (37, 0), (40, 0)]
)
def test_an_attempt_that_goes_on_is_recorded_behind_a_warm_up_of_its_own(done, first):
    """One step of warm-up, three recorded, forty in all; not twice."""
    plan = build_plan(config(steps=40), 1000)
    assert profile_first_from(config(steps=40), plan, done, recorded=False) == first
    assert not done or profile_first_from(config(steps=40), plan, done, recorded=True) == 0


@pytest.mark.parametrize(("steps", "first"), [(100, 10), (12, 10), (11, 9), (4, 2), (3, 0)])
def test_the_default_profile_moves_into_a_short_run(steps, first):
    assert build_plan(config(steps=steps), 1000).profile_first == first


def test_a_profile_asked_for_outside_the_run_is_refused():
    (found,) = plan_problems(config(steps=20, profile_first_step=19), 1000)
    assert "TRAINER_PROFILE_FIRST_STEP=19: the run has 20 steps, expected at most 18" in found
    assert plan_problems(config(steps=20, profile_first_step=18), 1000) == []


@pytest.mark.parametrize(
    ("given", "count", "most", "epoch"),
    [
        ({"epochs": 1, "profile_steps": 24}, "20 steps", "19 steps", "20 steps"),
        ({"steps": 2}, "2 steps", "1 step", "20 steps"),  # also the three that nobody asked for
        ({"steps": 1, "profile_warmup": 2}, "1 step", "0 steps", "20 steps"),
        ({"steps": 3, "profile_first_step": 2}, "3 steps", "2 steps", "20 steps"),
    ],
)
def test_a_profile_longer_than_the_run_is_refused(given, count, most, epoch):
    (found,) = plan_problems(config(global_batch_size=50, **given), 1000)
    profile = {"profile_steps": 3, "profile_warmup": 1} | given
    assert found.startswith(
        f"TRAINER_PROFILE_STEPS={profile['profile_steps']}: the run has {count}, of which {most} can be recorded after "
        f"TRAINER_PROFILE_WARMUP={profile['profile_warmup']}; train longer (TRAINER_EPOCHS or TRAINER_STEPS; an epoch "
        f"has {epoch})"
    )
    assert plan_problems(config(global_batch_size=50, **given | {"profile_steps": 0}), 1000) == []
    assert plan_problems(config(global_batch_size=50, mode="evaluate", **given), 1000) == []


def test_the_longest_profile_of_a_short_run():
    assert plan_problems(config(steps=4), 1000) == []
    assert plan_problems(config(steps=20, profile_steps=19), 1000) == []


def test_fewer_samples_than_a_batch_are_refused():
    (found,) = plan_problems(config(global_batch_size=64), 2)
    assert "TRAINER_GLOBAL_BATCH_SIZE=64: there are only 2 training samples" in found


def test_a_warm_up_longer_than_the_run_is_refused():
    (found,) = plan_problems(config(epochs=1, warmup_steps=10, global_batch_size=10), 100)
    assert "TRAINER_WARMUP_STEPS=10: must be below the 10 steps" in found
