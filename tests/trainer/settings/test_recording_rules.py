import pytest

from trainer.launch import preflight
from trainer.settings.config import Config, ConfigError
from trainer.settings.recording_rules import snapshot_problems

CPU = (
    "TRAINER_MEMORY_SNAPSHOT=true: is the history of torch's CUDA allocator, and there is no GPU here; expected false "
    "on a CPU, where TRAINER_PROFILE_MEMORY=true has the allocations in the traces"
)


def read(**settings):
    return Config.from_env({"TRAINER_RUN": "x", **settings})


def test_a_snapshot_is_refused_on_a_cpu_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "has_gpu", lambda: False)
    config = read(TRAINER_MEMORY_SNAPSHOT="true", TRAINER_RESULTS=str(tmp_path))
    with pytest.raises(ConfigError) as failure:
        preflight.check(config, 1, {})
    assert failure.value.problems == [CPU]


def test_a_snapshot_is_taken_on_a_gpu():
    config = read(TRAINER_MEMORY_SNAPSHOT="true")
    assert snapshot_problems(config, gpu=True) == []
    assert snapshot_problems(config, gpu=False) == [CPU]
    assert snapshot_problems(read(), gpu=False) == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"TRAINER_STRATEGY": "fsdp"},
            "DeepSpeed's own, which zero1, zero2, zero3, zeropp have; expected false with strategy fsdp",
        ),
        (
            {"TRAINER_STRATEGY": "zero2", "TRAINER_COMPILE": "true"},
            "expected false with TRAINER_COMPILE=true",
        ),
        ({"TRAINER_STRATEGY": "zero2", "TRAINER_PROFILE_WARMUP": "0"}, "TRAINER_PROFILE_WARMUP above 0"),
        ({"TRAINER_STRATEGY": "zero2", "TRAINER_PROFILE_STEPS": "0"}, "TRAINER_PROFILE_STEPS and"),
    ],
)
def test_where_deepspeeds_flops_profiler_has_nothing_to_count(settings, sentence):
    with pytest.raises(ConfigError) as failure:
        read(TRAINER_FLOPS_PROFILER="true", **settings)
    (problem,) = failure.value.problems
    assert problem.startswith("TRAINER_FLOPS_PROFILER=true: ") and sentence in problem


def test_deepspeeds_flops_profiler_is_for_every_stage():
    for strategy in ("zero1", "zero2", "zero3", "zeropp"):
        assert read(TRAINER_FLOPS_PROFILER="true", TRAINER_STRATEGY=strategy).flops_profiler


def test_a_snapshot_needs_steps_that_are_recorded():
    with pytest.raises(ConfigError) as failure:
        read(TRAINER_MEMORY_SNAPSHOT="true", TRAINER_PROFILE_STEPS="0")
    (problem,) = failure.value.problems
    assert problem.startswith("TRAINER_MEMORY_SNAPSHOT=true: records the steps of the profile")
    assert "TRAINER_PROFILE_STEPS above 0" in problem
