"""What can be recorded beside a profile, and where; without torch."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.settings.fields import Settings


def recording_problems(config: Settings) -> Iterator[str]:
    """Recordings that have no step to be made in."""
    if config.memory_snapshot and not config.profile_steps:
        yield (
            "TRAINER_MEMORY_SNAPSHOT=true: records the steps of the profile, and TRAINER_PROFILE_STEPS=0 has none; "
            "expected false, or TRAINER_PROFILE_STEPS above 0"
        )


def snapshot_problems(config: Settings, *, gpu: bool) -> list[str]:
    """Args: gpu: whether the run trains on one."""
    if not config.memory_snapshot or gpu or config.mode != "train":
        return []
    return [
        "TRAINER_MEMORY_SNAPSHOT=true: is the history of torch's CUDA allocator, and there is no GPU here; expected "
        "false on a CPU, where TRAINER_PROFILE_MEMORY=true has the allocations in the traces"
    ]
