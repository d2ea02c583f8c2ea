"""Every setting must be equal where a run goes on from another one, but those that are said to be free."""

from __future__ import annotations

import pytest

from trainer.settings import continuation
from trainer.settings.continuation import (
    MAY_DIFFER,
    WHY,
    continuation_problems,
    resolved_problems,
    swapped_problems,
)
from trainer.settings.fields import Settings


def config(**settings) -> Settings:
    return Settings(run="b", resume_from="demo/a", **settings)


def test_both_tables_name_settings_and_none_twice():
    assert not {*WHY} & {*MAY_DIFFER}
    assert {*WHY, *MAY_DIFFER} <= {*Settings.model_fields}


def test_a_setting_that_no_table_names_must_be_equal(monkeypatch):
    before = Settings(run="a").model_dump()
    assert continuation_problems(before, config(log_every=5)) == []
    monkeypatch.setattr(continuation, "MAY_DIFFER", [name for name in MAY_DIFFER if name != "log_every"])
    assert continuation_problems(before, config()) == []
    assert "log_every=5 (was 10: another training)" in continuation_problems(before, config(log_every=5))[0]


def test_a_setting_that_the_other_run_did_not_know_counts_as_left_alone():
    before = Settings(run="a").model_dump()
    del before["label_smoothing"]
    assert continuation_problems(before, config()) == []
    assert "label_smoothing=0.1" in continuation_problems(before, config(label_smoothing=0.1))[0]


def test_what_carries_the_training_out_may_differ():
    before = Settings(run="a", strategy="ddp", steps=10).model_dump()
    assert (
        continuation_problems(before, config(strategy="zero3", offload="all", micro_batch_size=4, steps=20))
        == []
    )


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_longer_plan_needs_a_learning_rate_that_does_not_follow_it(schedule):
    before = Settings(run="a", steps=10, lr_schedule=schedule).model_dump()
    assert continuation_problems(before, config(steps=10, lr_schedule=schedule)) == []
    assert "steps=20" in continuation_problems(before, config(steps=20, lr_schedule=schedule))[0]


def test_what_the_settings_came_to_is_compared_where_both_have_it():
    before = {"precision": "bf16", "data_sha256": "a", "world_size": 2}
    assert (
        resolved_problems(before, {"precision": "bf16", "data_sha256": "a", "world_size": 8}, "demo/a") == []
    )
    assert resolved_problems(before, {"precision": "bf16"}, "demo/a") == []
    (said,) = resolved_problems(before, {"precision": "fp32", "data_sha256": "b"}, "demo/a")
    assert "precision='fp32' (was 'bf16'" in said and "data_sha256='b' (was 'a'" in said


def test_what_was_swapped_between_two_attempts_of_one_run():
    taught = config(teacher="demo/big", dataset_path="/data/birds")
    before = {"teacher_sha256": "a", "data_sha256": "c", "initial_weights_sha256": "e"}
    weights, samples = swapped_problems(
        before, {"teacher_sha256": "b", "data_sha256": "d", "initial_weights_sha256": "f"}, taught
    )
    assert weights.startswith(
        "TRAINER_TEACHER='demo/big': has other weights than when this run began (teacher_sha256 b, was a); put"
    )
    assert samples.startswith(
        "TRAINER_DATASET_PATH='/data/birds': has other samples than when this run began ("
    )
    assert samples.endswith("was c); put the first ones back, or choose another name (TRAINER_RUN)")
    (named,) = swapped_problems(before, before | {"data_sha256": "d"}, config(dataset="cifar10"))
    assert named.startswith("TRAINER_DATASET='cifar10': has other samples")
    assert swapped_problems(before, before, taught) == swapped_problems({}, before, taught) == []
