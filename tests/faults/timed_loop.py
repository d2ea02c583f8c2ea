"""How long the training loop is held up by tracking: put into ranks by a sitecustomize of their own.

A call counts only where the system has not taken the processor away from the thread meanwhile: on two shared cores any
line of Python may take 50 ms.
"""

from __future__ import annotations

import json
from pathlib import Path

SITE = """
import sys
if "trainer.worker" in sys.orig_argv:
    import atexit, json, resource, time
    from trainer.outcome.tracking import Recorder
    calls = []
    def timed(name):
        whole = getattr(Recorder, name)
        def call(*given, **named):
            switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
            began = time.perf_counter()
            try:
                return whole(*given, **named)
            finally:
                took = (time.perf_counter() - began) * 1e3
                if resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw == switched:
                    calls.append(took)
        setattr(Recorder, name, call)
    for name in ("record_step", "flush", "record"):
        timed(name)
    def write():
        with open({out!r}, "w") as file:
            json.dump(dict(calls=len(calls), longest_ms=max(calls, default=0.0)), file)
    flush = Recorder.flush
    def also_write(*given, **named):
        try:
            return flush(*given, **named)
        finally:
            if len(calls) % 20 == 0:
                write()
    Recorder.flush = also_write
    atexit.register(write)
"""


def write_timing(folder: Path, out: Path) -> dict[str, str]:
    """The variable that makes each rank time its own calls; one rank, because all of them write to `out`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.replace("{out!r}", repr(str(out))))
    return {"PYTHONPATH": str(folder)}


def read_timing(out: Path) -> tuple[int, float]:
    """(calls, longest one in ms)."""
    found = json.loads(out.read_text())
    return int(found["calls"]), float(found["longest_ms"])
