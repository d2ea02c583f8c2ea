"""What can be recorded beside a profile, and where; without torch."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.settings.fields import Settings
from trainer.settings.strategy_table import STRATEGIES


def recording_problems(config: Settings) -> Iterator[str]:
    """Recordings that have no step to be made in."""
    if config.memory_snapshot and not config.profile_steps:
        yield (
            "TRAINER_MEMORY_SNAPSHOT=true: records the steps of the profile, and TRAINER_PROFILE_STEPS=0 has none; "
            "expected false, or TRAINER_PROFILE_STEPS above 0 [SL-snapshot-no-profile]"
        )
    if config.flops_profiler:
        yield from _flops(config)


def _flops(config: Settings) -> Iterator[str]:
    if not STRATEGIES[config.strategy].deepspeed_stage:
        having = ", ".join(name for name, row in STRATEGIES.items() if row.deepspeed_stage)
        yield (
            f"TRAINER_FLOPS_PROFILER=true: DeepSpeed's own, which {having} have; expected false with strategy "
            f"{config.strategy}, of which flops_per_sample in config.json is the lab's own count "
            "[SL-flops-profiler-strategy]"
        )
    elif config.compile:
        yield (
            "TRAINER_FLOPS_PROFILER=true: counts calls of torch's functions, and compiled blocks make none; expected "
            "false with TRAINER_COMPILE=true [SL-flops-profiler-compile]"
        )
    if not (config.profile_steps and config.profile_warmup):
        yield (
            "TRAINER_FLOPS_PROFILER=true: counts in the first step of the profile's warm-up, of which there is none; "
            "expected false, or TRAINER_PROFILE_STEPS and TRAINER_PROFILE_WARMUP above 0 "
            "[SL-flops-profiler-no-warmup]"
        )


def snapshot_problems(config: Settings, *, gpu: bool) -> list[str]:
    """Args: gpu: whether the run trains on one."""
    if not config.memory_snapshot or gpu or config.mode != "train":
        return []
    return [
        "TRAINER_MEMORY_SNAPSHOT=true: is the history of torch's CUDA allocator, and there is no GPU here; expected "
        "false on a CPU, where TRAINER_PROFILE_MEMORY=true has the allocations in the traces [SL-snapshot-no-gpu]"
    ]
