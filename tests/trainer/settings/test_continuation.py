"""Every setting must be equal where a run goes on from another one, but those that are said to be free."""

from __future__ import annotations

from stratlab_spec.settings import rules as continuation
from stratlab_spec.settings.fields import Settings
from stratlab_spec.settings.rules import (
    MAY_DIFFER,
    WHY,
    continuation_problems,
    resolved_problems,
    swapped_problems,
)
from tests.codes import find_codes


def config(**settings) -> Settings:
    return Settings(run="b", resume_from="demo/a", **settings)


def test_both_tables_name_settings_and_none_twice():
    assert not {*WHY} & {*MAY_DIFFER}
    assert {*WHY, *MAY_DIFFER} <= {*Settings.model_fields}


def test_what_is_not_free_must_be_equal_and_what_the_other_did_not_know_counts_as_left_alone(monkeypatch):
    before = Settings(run="a", strategy="ddp", steps=10).model_dump()
    moved = config(strategy="zero3", offload="all", micro_batch_size=4, steps=20, log_every=5)
    assert continuation_problems(before, moved) == []
    del before["label_smoothing"]
    assert continuation_problems(before, moved) == []
    (said,) = continuation_problems(before, config(label_smoothing=0.1))
    assert find_codes(said) == ["SL-resume-other-settings"] and "label_smoothing=0.1" in said
    monkeypatch.setattr(continuation, "MAY_DIFFER", [name for name in MAY_DIFFER if name != "log_every"])
    assert "log_every=5 (was 10: " in continuation_problems(before, moved)[0], "no table names it"


def test_a_longer_plan_needs_a_learning_rate_that_does_not_follow_it():
    before = Settings(run="a", steps=10, lr_schedule="linear").model_dump()
    assert continuation_problems(before, config(steps=10, lr_schedule="linear")) == []
    assert "steps=20" in continuation_problems(before, config(steps=20, lr_schedule="linear"))[0]


def test_what_the_settings_came_to_is_compared_where_both_have_it():
    before = {"precision": "bf16", "data_sha256": "a", "world_size": 2}
    assert resolved_problems(before, before | {"world_size": 8}, "demo/a") == []
    assert resolved_problems(before, {"precision": "bf16"}, "demo/a") == []
    (said,) = resolved_problems(before, {"precision": "fp32", "data_sha256": "b"}, "demo/a")
    assert find_codes(said) == ["SL-resume-other-facts"]
    assert "precision='fp32' (was 'bf16'" in said and "data_sha256='b' (was 'a'" in said


def test_what_was_swapped_between_two_attempts_of_one_run():
    taught = config(teacher="demo/big", dataset_path="/data/birds")
    before = {"teacher_sha256": "a", "data_sha256": "c", "initial_weights_sha256": "e"}
    now = {"teacher_sha256": "b", "data_sha256": "d", "initial_weights_sha256": "f"}
    weights, samples = swapped_problems(before, now, taught)
    assert find_codes(weights) == find_codes(samples) == ["SL-run-files-swapped"]
    assert "TRAINER_TEACHER='demo/big'" in weights and "TRAINER_DATASET_PATH='/data/birds'" in samples
    (named,) = swapped_problems(before, before | {"data_sha256": "d"}, config(dataset="cifar10"))
    assert "TRAINER_DATASET='cifar10'" in named
    assert swapped_problems(before, before, taught) == swapped_problems({}, before, taught) == []
