"""Records a few steps with torch.profiler, one Chrome trace per rank, then gets out of the way.

Settings that matter (facts measured on torch 2.13): plain JSON, because torch compresses at level 9 inside the
training process; with_stack off, because Perfetto then drops every label (pytorch#174555); a name with the rank,
because torch's own handler uses host and process id.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from trainer.config import Config
from trainer.phases import Phases
from trainer.run_directory import RunDirectory, write_json


class StepProfiler:
    """Starts before the warm-up steps and stops after the last recorded one; two integer comparisons otherwise."""

    def __init__(
        self, config: Config, first_step: int, phases: Phases, folder: RunDirectory, rank: int
    ) -> None:
        self._config = config
        self._phases = phases
        self._folder = folder
        self._rank = rank
        self._first = first_step
        self._begin = first_step - config.profile_warmup if first_step else -1
        self._end = first_step + config.profile_steps - 1 if first_step else -1
        self._profile: Any = None
        self.active = False
        """True from the first warm-up step to the last recorded one."""

    def begin_step(self, step: int) -> None:
        """Before a step."""
        if step != self._begin:
            return
        activities = [ProfilerActivity.CPU]
        if self._phases.on_device:
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(
                wait=0, warmup=self._config.profile_warmup, active=self._config.profile_steps, repeat=1
            ),
            record_shapes=self._config.profile_shapes,
            profile_memory=self._config.profile_memory,
            with_stack=False,
        )
        self._profile.start()
        self.active = True
        self._phases.record(True)

    def end_step(self, step: int) -> None:
        """After a step; after the last recorded one writes this rank's trace, and the manifest on rank 0."""
        if not self.active:
            return
        self._profile.step()
        if step < self._end:
            return
        self._phases.record(False)
        self._profile.stop()
        entry = self._write_trace()
        self._profile = None
        self.active = False
        entries: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(entries, entry)
        if self._rank == 0:
            steps = {"first_step": self._first, "steps": self._config.profile_steps}
            write_json(
                self._folder.manifest, {"schema_version": 1, "complete": True, **steps, "files": entries}
            )

    def _write_trace(self) -> dict[str, Any]:
        path = self._folder.trace(self._rank)
        temporary = path.with_name(f".{path.stem}.tmp.json")
        self._profile.export_chrome_trace(str(temporary))
        os.replace(temporary, path)
        return {
            "rank": self._rank,
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": hash_file(path),
        }


def hash_file(path: Path) -> str:
    """sha256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
