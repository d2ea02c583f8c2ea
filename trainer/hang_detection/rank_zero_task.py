"""Run long work on rank 0 only: choosing a checkpoint by its hashes, an export, a hash of weights.

    rank 0        work ............................ answer ─▶ store
                    progress ─▶ store, every 2 s      │
    other ranks   wait at the store, no collective ───┴─▶ answer

In a collective, the other ranks would fail after its time-out even if rank 0 is busy. Here they wait as long as rank 0
makes progress: as long as its main thread computes, reads or writes. They fail if rank 0 stops for that
time-out.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from stratlab_spec.exit_codes import PeerLost
from trainer.hang_detection.heartbeat import Pulse

POLL_S = 2.0
SAY_EVERY_S = 30.0
BUSY_S, BUSY_BYTES = 0.05, 1 << 16
"""Seconds of processor time, and bytes read and written, in one poll; less does not count as progress."""

log = logging.getLogger("trainer")
Answer = TypeVar("Answer")


def do_alone(what: str, work: Callable[[], Answer], pulse: Pulse, timeout_s: float) -> Answer:
    """Run `work` on rank 0 and return its result on every rank; called by all ranks, without a collective.

    `what` describes the work in messages. `timeout_s` limits the time of rank 0 without progress.

    Raises:
        PeerLost: on the other ranks, if rank 0 failed or does not progress. Rank 0 raises the error of `work`.
    """
    if dist.get_world_size() == 1:
        return work()
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    key = f"stratlab/{what}/{store.add(f'stratlab/{what}/calls of {rank}', 1)}"
    if rank:
        return _wait(store, key, what, pulse, timeout_s)
    progress = _Progress(store, f"{key}/progress", pulse)
    progress.start()
    try:
        answer = work()
        store.set(key, pickle.dumps((answer, "")))
        return answer
    except BaseException as failure:
        with suppress(Exception):  # the store itself may have failed
            store.set(key, pickle.dumps((None, f"{type(failure).__name__}: {failure}"[:1000])))
        raise
    finally:
        progress.stop()


@contextmanager
def leave_alone(pulse: Pulse) -> Iterator[None]:
    """Keep the watchdog from reporting a hang in this block; the wait in it has its own time-out."""
    over = threading.Event()

    def move() -> None:
        while not over.wait(POLL_S):
            pulse.move()

    thread = threading.Thread(target=move, name="left alone", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wait(store: Any, key: str, what: str, pulse: Pulse, timeout_s: float) -> Any:
    began = moved = said = time.monotonic()
    seen = b""
    while True:
        with suppress(dist.DistStoreError):  # not within this time; a lost store raises DistNetworkError
            store.wait([key], timedelta(seconds=POLL_S))
            answer, failure = pickle.loads(store.get(key))
            if failure:
                raise PeerLost(f"rank 0, {what}: {failure} [SL-rank-0-failed]")
            return answer
        now = time.monotonic()
        if store.check([f"{key}/progress"]) and (news := store.get(f"{key}/progress")) != seen:
            seen, moved = news, now
            pulse.move()
        if now - said >= SAY_EVERY_S:
            said = now
            log.info("waiting for rank 0, %s, %.0f s", what, now - began)
        if now - moved > timeout_s:
            raise PeerLost(f"rank 0 made no progress for {timeout_s:.0f} s: {what} [SL-rank-0-still]")


class _Progress(threading.Thread):
    """Reports to the other ranks whenever the main thread has done something since the last poll."""

    def __init__(self, store: Any, key: str, pulse: Pulse) -> None:
        super().__init__(name="progress", daemon=True)
        self._store, self._key, self._pulse = store, key, pulse
        self._over = threading.Event()

    def run(self) -> None:
        main = threading.main_thread()
        clock = time.pthread_getcpuclockid(main.ident or 0)
        files = Path(f"/proc/self/task/{main.native_id}/io")
        busy_s, size = time.clock_gettime(clock), _read_bytes(files)
        while not self._over.wait(POLL_S):
            now_s, now_size = time.clock_gettime(clock), _read_bytes(files)
            if now_s - busy_s >= BUSY_S or now_size - size >= BUSY_BYTES:
                busy_s, size = now_s, now_size
                self._pulse.move()
                with suppress(dist.DistError):
                    self._store.set(self._key, f"{now_s} {now_size}")

    def stop(self) -> None:
        self._over.set()
        self.join()


def _read_bytes(files: Path) -> int:
    """Return the bytes read and written by a thread, page cache included; 0 if the system does not report them."""
    try:
        lines = dict(line.split(": ") for line in files.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(lines.get("rchar", 0)) + int(lines.get("wchar", 0))
