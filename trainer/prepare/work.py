"""The work itself: look whether it is there, else take the lock, write beside the place, verify, rename."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from trainer.data.text.rows import read_index
from trainer.prepare.lock import BEATS, Lock, Overtaken, acquire, observe, ticking
from trainer.prepare.origin import write_source
from trainer.prepare.place import Place, publish, read_done, remove, size_bytes, write_done
from trainer.prepare.request import Request
from trainer.prepare.tokens import write_tokens
from trainer.settings.config import ConfigError

PROGRESS_S = 5.0
MIB = 1 << 20


def prepare(request: Request, say: Callable[[str], None]) -> dict[str, Any]:
    """The content of DONE.json: of an earlier start, of another one that is waited for, or of this one.

    Raises:
        ConfigError: the name is taken, or the volume cannot be written.
        DataMissing: no such source.
        OSError: the volume is full.
    """
    place = Place(request.results, request.name)
    try:
        place.root.mkdir(exist_ok=True)
    except PermissionError as failure:
        raise ConfigError(
            [f"--to {str(request.results)!r}: {failure.strerror} [SL-prepare-volume]"]
        ) from failure
    seen, told_s = None, -PROGRESS_S
    while True:
        done = read_done(place, request)
        if done is not None:
            say(f"{place.folder} is there: {describe(done)}, since {done['created']}")
            _say_notes(request, place, say)
            return done
        now_s = time.monotonic()
        seen = observe(place.locks, seen, now_s, request.stale_after_s)
        if seen is not None and not seen.is_stale(now_s):
            if now_s - told_s >= PROGRESS_S:
                told_s = now_s
                say(
                    f"{request.name}: {seen.owner} is at it, last sign of life {now_s - seen.since_s:.0f} s ago"
                )
            time.sleep(min(1.0, seen.stale_after_s / BEATS))
            continue
        if seen is not None:
            say(
                f"{request.name}: {seen.owner} gave no sign of life for {seen.stale_after_s:g} s, taking over"
            )
        lock = acquire(place.locks, seen.number + 1 if seen else 1, request.stale_after_s)
        if lock is None:
            continue
        try:
            done = read_done(place, request) or _work(request, place, lock, say)
            say(f"{place.folder} is done: {describe(done)}")
            _say_notes(request, place, say)
            return done
        except Overtaken:
            say(f"{request.name}: another start has taken over, waiting for it")
        finally:
            lock.release()


def _work(request: Request, place: Place, lock: Lock, say: Callable[[str], None]) -> dict[str, Any]:
    """Writes beside the place, verifies, and renames."""
    partial, started_s = place.partial(uuid.uuid4().hex[:12]), time.monotonic()
    notes: list[str] = []

    def report() -> None:
        written = size_bytes(partial) / MIB
        note = f", {notes[-1]}" if notes else ""
        say(f"{request.name}: {written:.0f} MiB written, {time.monotonic() - started_s:.0f} s{note}")

    for leftover in place.partials():
        say(f"{request.name}: removing what a dead start has left: {leftover.name}")
        remove(leftover)
    say(f"{request.name}: preparing {request.kind} {request.source}")
    try:
        with ticking(request.stale_after_s / BEATS, lock.beat), ticking(PROGRESS_S, report):
            data, scratch = partial / "data", partial / "scratch"
            for folder in (partial, data, scratch):
                folder.mkdir()
            if request.config is not None:
                written = write_tokens(request, request.config, data, scratch, notes.append)
            else:
                written = write_source(request, data, scratch, notes.append, say)
            lock.check()
            done = write_done(data, request, written, time.monotonic() - started_s)
            lock.check()
            publish(place, data)
        return done
    except Exception:
        lock.check()  # where this start was overtaken, its files were removed under it
        raise
    finally:
        remove(partial)


def _say_notes(request: Request, place: Place, say: Callable[[str], None]) -> None:
    """What of a token cache's texts is not used or not learnt as it stands, at every start."""
    index = read_index(place.folder) if request.config else None
    for sentence in index["notes"] if index else []:
        say(f"{request.source}: {sentence}")


def describe(done: dict[str, Any]) -> str:
    """A prepared folder in a few words."""
    if done["samples"] is not None:
        content = ", ".join(f"{count} {split}" for split, count in done["samples"].items()) + " samples"
    elif done["parameters"] is not None:
        content = f"{done['parameters']} parameters"
    else:
        content = f"{len(done['files'])} file"
    commit = f" at {done['revision'][:12]}" if done["revision"] else ""
    return f"{done['kind']} {done['source']}{commit}, {content}, {done['bytes'] / MIB:.1f} MiB"
