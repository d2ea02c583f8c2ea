"""Report in a thread of the rank whether the main thread makes progress, and in which collective it waits.

Every tick it compares a few numbers and stores a time, outside of the step. On a CPU it also checks 50 times a second
whether a forward pass waits, which separates a slow rank from the ranks that wait for it (trainer/metrics/progress.py).
It reads more only if the rank does not progress: collectives in progress from torch's flight recorder, which NCCL
and gloo fill alike (torch 2.13), and the main thread's Python frames.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

import torch
import torch.distributed as dist

from trainer.hang_detection.heartbeat import (
    ALIVE_NS,
    ASKED,
    INNERMOST,
    MOVED_NS,
    MOVES,
    STEP,
    TOLD,
    WAITING_NS,
    Frame,
    Group,
    Pulse,
    answer_file,
    is_waiting,
    stack_file,
    write_stacks_to,
)

TICKS = 20
"""Share of a time-out."""
SAMPLE_S = 0.02
FEWEST = 20
"""Number of samples of forward passes that suffice for `waited_share`."""


class WatchdogThread(threading.Thread):
    """Runs next to the main thread from before its process group is created until it is destroyed.

    Args:
        timeout_s: time-out of collectives.
        samples_forward: sample forward passes for `waited_share`; on a device they never wait for other ranks.
    """

    def __init__(self, pulse: Pulse, timeout_s: float, samples_forward: bool = False) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.phase: Callable[[], str] = str
        """Returns the activity of the main thread; set once there is one to report."""
        self._pulse = pulse
        self._every_s = min(1.0, max(0.2, timeout_s / TICKS))
        self._samples_forward = samples_forward
        self._over = threading.Event()
        self._seen: tuple[Any, ...] = ()
        self._forward = self._waited = 0
        self._stacks: IO[str] | None = None
        if pulse.path:
            self._stacks = open(stack_file(pulse.path), "w")  # noqa: SIM115
            write_stacks_to(self._stacks)

    def run(self) -> None:
        words = self._pulse.words
        words[MOVED_NS] = time.monotonic_ns()
        due, pause_s = 0.0, SAMPLE_S
        while not self._over.wait(pause_s):
            if not self._samples_forward:
                pause_s = self._every_s
            elif self.phase() == "forward":
                self._forward += 1
                self._waited += is_waiting(_main_stack(INNERMOST))
            if self._samples_forward and time.monotonic() < due:
                continue
            due = time.monotonic() + self._every_s
            now = time.monotonic_ns()
            seen = (words[STEP], words[MOVES], *(_count_begun(group) for group in _groups()))
            if seen != self._seen:
                self._seen, words[MOVED_NS], words[WAITING_NS] = seen, now, 0
            elif not (is_pending() or is_waiting(_main_stack())):
                words[WAITING_NS] = 0
            elif not words[WAITING_NS]:
                words[WAITING_NS] = now
            if words[ASKED] != words[TOLD]:
                self._answer(words[ASKED])
            words[ALIVE_NS] = now

    def waited_share(self) -> float:
        """Return the share of sampled forward passes that waited for other ranks; NaN = too few samples."""
        forward, waited = self._forward, self._waited
        if forward < FEWEST:
            return math.nan
        self._forward = self._waited = 0
        return waited / forward

    def stop(self) -> None:
        """Stop before the process group is destroyed."""
        self._over.set()
        self.join()
        self._pulse.words[WAITING_NS] = 0

    def _answer(self, question: int) -> None:
        if self._pulse.path is None:
            return
        names, groups = dist.distributed_c10d._world.pg_names, {}
        for group in _groups():
            ranks = dist.get_process_group_ranks(group)
            groups[str(names.get(group, ""))] = asdict(Group(group.group_desc, ranks, _count_begun(group)))
        state = {"phase": self.phase(), "pending": find_pending(), "groups": groups, "stack": _main_stack()}
        path = answer_file(self._pulse.path)
        aside = path.with_suffix(".told")
        aside.write_text(json.dumps(state))
        os.replace(aside, path)
        self._pulse.words[TOLD] = question


def _groups() -> list[Any]:
    """Return this rank's process groups; empty before they are created and after they are destroyed."""
    with contextlib.suppress(RuntimeError):  # a group is being created
        return list(dist.distributed_c10d._world.pg_names)
    return []


def _count_begun(group: Any) -> int:
    """Return the number of collectives of a group that this rank has begun; for gloo including pipeline messages."""
    with contextlib.suppress(RuntimeError):  # before the group's first collective
        return group._get_sequence_number_for_group()
    return 0


def _main_stack(most: int = 1000) -> list[Frame]:
    """Return the innermost frames of the main thread."""
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    found: list[Frame] = []
    while frame is not None and len(found) < most:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def is_pending() -> bool:
    """Return whether a collective is in progress; reads the whole record only if its counts are inconclusive."""
    counts = _read_recorder(False).get("pg_status", {})
    return any(_is_open(status) for status in counts.values()) and bool(find_pending())


def find_pending() -> list[str]:
    """Return the oldest collective in progress of each group: "gloo:all_reduce 57 of mesh_dp_shard".

    The counts do not suffice: if two collectives end at once in two threads of gloo, the earlier one may be recorded
    last (torch 2.13), and the group looks busy until its next collective. Each entry records whether it has ended.

    Empty if this torch has no flight recorder.
    """
    record, found = _read_recorder(True), []
    for group, status in record.get("pg_status", {}).items():
        if not _is_open(status):
            continue
        number = int(status["last_completed_collective"]) + 1
        of_group = [each for each in record.get("entries", ()) if str(each["pg_id"]) == group]
        late = [each for each in of_group if each["collective_seq_id"] >= number]
        entry = next((each for each in late if not each["retired"]), None)
        if entry:
            number = entry["collective_seq_id"]
            found.append(f"{entry['profiling_name']} {number} of {entry['process_group'][1]}")
        elif not late:  # not recorded, or not recorded any more
            found.append(f"collective {number}")
    return found


def _is_open(status: dict[str, str]) -> bool:
    return int(status["last_enqueued_collective"]) > int(status["last_completed_collective"])


def _read_recorder(whole: bool) -> dict[str, Any]:
    """Return torch's flight record of this process: with each of the last collectives if `whole`, else only counts."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    return json.loads(dump(includeCollectives=whole, onlyActive=False)) if dump else {}
