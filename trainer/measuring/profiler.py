"""Record a few steps with torch.profiler, one Chrome trace per rank, then stop.

Chosen settings (facts measured on torch 2.13):

* plain JSON, because torch compresses at level 9 inside the training process
* with_stack off, because Perfetto drops every label with it (pytorch#174555)
* a file name with the rank, because torch's own handler uses host and process id

The start of the recording does not wait for the device. The device's earlier work is recorded without its launch, and
the analysis lets the first step begin when that work has ended (stratlab/analysis). Synchronizing would be less
accurate: the first step would begin with an empty queue and wait for data and launches that other steps hide.

On request it also records every allocation of these steps with its line of Python, as a file for
pytorch.org/memory_viz. torch's CUDA allocator keeps this history on the host, so it does not count for a peak.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from stratlab_spec.run_directory import write_json
from stratlab_spec.step_parts import COMM_EXPOSED_PCT, PROFILED_MS
from stratlab_spec.trace_events import measure_exposed, read_events
from trainer.distributed.world import gather_objects
from trainer.measuring.phases import Phases
from trainer.run import Run

MOST_EVENTS = 300_000
"""Events of a rank; the newest ones are kept. A micro-batch of 36 decoder blocks has some 25,000."""


def start_history() -> None:
    """Make the allocator record the following allocations and releases."""
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=MOST_EVENTS, clear_history=True
    )


def write_snapshot(path: Path) -> dict[str, Any]:
    """Write the history since `start_history` and stop it; an error loses the file, but no step.

    Returns:
        The snapshot's entry in the manifest of the traces: file, bytes, events, and whether older events are missing;
        or the reason why there is no snapshot.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        snapshot = torch.cuda.memory._snapshot()
        path.parent.mkdir(exist_ok=True)
        with open(temporary, "wb") as file:
            pickle.dump(snapshot, file)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as failure:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        log.warning("the memory snapshot %s is dropped, training continues: %s", path.name, failure)
        return {"reason": str(failure)}
    finally:
        torch.cuda.memory._record_memory_history(None)  # clears the history, so only after it is written
    events = max(map(len, snapshot["device_traces"]), default=0)
    return {
        "file": f"{path.parent.name}/{path.name}",
        "bytes": path.stat().st_size,
        "events": events,
        "cut": events >= MOST_EVENTS,
    }


log = logging.getLogger("trainer")


class StepProfiler:
    """Starts before the warm-up steps and stops after the last recorded one; other steps only compare two integers."""

    def __init__(self, run: Run, first_step: int, phases: Phases) -> None:
        config = self._config = run.config
        self._phases = phases
        self._folder = run.folder
        self._rank = run.world.rank
        self._first = first_step
        self._begin = first_step - config.profile_warmup if first_step else -1
        self._end = first_step + config.profile_steps - 1 if first_step else -1
        self._profile: Any = None
        self.active = False
        """True from the first warm-up step to the last recorded one."""

    def begin_step(self, step: int) -> None:
        """Start or advance the profiler before a step."""
        if self._config.memory_snapshot and step == self._first:
            start_history()
        if step != self._begin:
            return
        activities = [ProfilerActivity.CPU]
        if self._phases.on_device:
            activities.append(ProfilerActivity.CUDA)
        config = self._config
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=config.profile_warmup, active=config.profile_steps, repeat=1),
            record_shapes=config.profile_shapes,
            profile_memory=config.profile_memory,
            with_stack=False,
        )
        self._profile.start()
        self.active = True
        self._phases.record(True)

    def end_step(self, step: int) -> None:
        """Advance after a step; after the last recorded one, write this rank's trace, and the manifest on rank 0."""
        if not self.active:
            return
        self._profile.step()
        if step < self._end:
            return
        self._phases.record(False)
        self._profile.stop()
        snapshot = {}
        if self._config.memory_snapshot:  # before the exchange below, which allocates on the device
            snapshot["memory_snapshot"] = write_snapshot(self._folder.memory_snapshot(self._rank))
        entry = {**self._write_trace(), **self._measure_exposed(), **snapshot}
        self._profile = None
        self.active = False
        entries = gather_objects(entry)
        if self._rank == 0:
            self._write_manifest(entries)

    def _write_manifest(self, entries: list[dict[str, Any]]) -> None:
        """Write the manifest; `dropped`, only if present, lists ranks without a trace and the reasons."""
        dropped = [entry for entry in entries if "reason" in entry]
        content = {
            "schema_version": 1,
            "complete": not dropped,
            "first_step": self._first,
            "steps": self._config.profile_steps,
            "files": [entry for entry in entries if "reason" not in entry],
            **({"dropped": dropped} if dropped else {}),
        }
        try:
            write_json(self._folder.manifest, content)
        except OSError as failure:
            log.warning("the manifest of the traces is dropped, training continues: %s", failure)

    def _write_trace(self) -> dict[str, Any]:
        """Return this rank's entry in the manifest; an error loses the trace, but no step of training."""
        path = self._folder.trace(self._rank)
        temporary = path.with_name(f".{path.stem}.tmp.json")
        try:
            self._profile.export_chrome_trace(str(temporary))
            check_whole(temporary)
            os.replace(temporary, path)
            entry = {"rank": self._rank, "file": path.name, "bytes": path.stat().st_size}
            return entry | {"sha256": hash_file(path)}
        except (OSError, RuntimeError) as failure:
            # Kineto writes a file next to it, and leaves it if the rename fails (torch 2.13)
            for left in path.parent.glob(f"{temporary.name}*"):
                with suppress(OSError):
                    os.truncate(left, 0)  # frees the space immediately, even if Kineto holds it open
                    left.unlink()
            log.warning("the trace of rank %d is dropped, training continues: %s", self._rank, failure)
            return {"rank": self._rank, "reason": str(failure)}

    def _measure_exposed(self) -> dict[str, float | None]:
        try:
            share = measure_exposed(read_events(self._profile.profiler.kineto_results.events()))
        except Exception as failure:  # loses one number, but no step of training
            log.warning("exposed communication of rank %d is unknown: %r", self._rank, failure)
            share = None
        return (
            {COMM_EXPOSED_PCT: share.pct, PROFILED_MS: share.steps_ms} if share else {COMM_EXPOSED_PCT: None}
        )


def check_whole(path: Path) -> None:
    """Raise OSError for a truncated trace: Kineto only prints that it could not write (torch 2.13)."""
    if not path.is_file():
        raise OSError(errno.ENOSPC, f"{path.name} was not written, the volume may be full")
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.ENOSPC, f"{path.name} was cut, the volume may be full")


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
