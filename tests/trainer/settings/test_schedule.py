import pytest

from stratlab_spec.schedule import build_schedule, learning_rate, plan_problems, profile_first_from
from stratlab_spec.settings.config import Config
from tests.codes import find_codes


def config(**settings) -> Config:
    return Config(**{"run": "try", "lr": 1.0} | settings)


def rates(steps: int, **settings) -> list[float]:
    return [round(learning_rate(config(**settings), step, steps), 4) for step in range(1, steps + 1)]


def test_courses_of_the_learning_rate():
    assert (rates(3), rates(4, lr_schedule="linear")) == ([1, 1, 1], [1, 0.75, 0.5, 0.25])
    assert rates(4, lr_schedule="cosine") == [1, 0.8536, 0.5, 0.1464]
    assert rates(6, lr_schedule="linear", warmup_steps=2) == [0.5, 1, 1, 0.75, 0.5, 0.25]


def test_steps_come_from_epochs_unless_given():
    assert build_schedule(config(epochs=3, global_batch_size=10), 25).steps == 7
    assert build_schedule(config(steps=4, global_batch_size=10), 25).steps == 4


def test_validations_come_once_an_epoch_unless_asked_for():
    assert build_schedule(config(epochs=3, global_batch_size=10), 25).evaluate_every == 2
    assert build_schedule(config(epochs=3, global_batch_size=10, evaluate_every=5), 25).evaluate_every == 5


@pytest.mark.parametrize(("done", "first"), [(0, 60), (58, 60), (59, 61), (76, 78), (77, 0)])
def test_an_attempt_that_goes_on_is_recorded_behind_a_warm_up_of_its_own(done, first):
    plan = build_schedule(config(steps=80), 1000)
    assert profile_first_from(config(steps=80), plan, done, recorded=False) == first
    assert not done or profile_first_from(config(steps=80), plan, done, recorded=True) == 0


def test_the_default_profile_moves_into_a_short_run():
    firsts = {steps: build_schedule(config(steps=steps), 1000).profile_first for steps in (62, 61, 4, 3)}
    assert firsts == {62: 60, 61: 59, 4: 2, 3: 0}


@pytest.mark.parametrize(
    ("given", "samples", "code", "told"),
    [
        ({"steps": 20, "profile_first_step": 19}, 1000, "SL-profile-first-step", "18"),
        ({"epochs": 1, "global_batch_size": 50, "profile_steps": 24}, 1000, "SL-profile-steps", "20 steps"),
        ({"steps": 2}, 1000, "SL-profile-steps", "1 step "),  # also the three that nobody asked for
        ({"steps": 1, "profile_warmup": 2}, 1000, "SL-profile-steps", "0 steps"),
        ({"global_batch_size": 64}, 2, "SL-batch-above-samples", " 2 "),
        ({"epochs": 1, "warmup_steps": 10, "global_batch_size": 10}, 100, "SL-warmup-above-run", " 10 "),
        ({"steps": 12, "fault": "kill@13!", "allow_faults": True}, 1000, "SL-fault-step", "13"),
    ],
)
def test_what_does_not_fit_the_samples_is_refused(given, samples, code, told):
    (found,) = plan_problems(config(**given), samples)
    assert find_codes(found) == [code] and told in found
    if code.startswith("SL-profile"):
        assert plan_problems(config(**given | {"profile_steps": 0}), samples) == []
        assert plan_problems(config(mode="evaluate", **given), samples) == []


def test_the_longest_profile_of_a_short_run():
    for given in ({"steps": 4}, {"steps": 20, "profile_steps": 19}, {"steps": 20, "profile_first_step": 18}):
        assert plan_problems(config(**given), 1000) == []
