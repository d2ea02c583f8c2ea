"""What the code of a stage is given: device, sizes, time left, and where results go."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.measuring import free_memory
from benchmarks.gpu.results import FILE, append_line

ROOT = Path(__file__).resolve().parents[2]
"""Of the project, in a checkout and in the kit."""


class NotHere(Exception):
    """This version or device does not have what was to be measured; the text says what."""


@dataclass(frozen=True)
class Session:
    """One stage on one device.

    Attributes:
        device: `cuda` or `cpu`.
        tiny: small sizes everywhere: the code runs, the figures mean nothing.
        out: what comes back: at most 8 files, each below 16 MiB.
        work: runs, caches and logs.
        deadline: `time.time()` at which the stage's time is over.
        scale: factor on every budget, for a slow machine.
        runs: names of runs (`vit_base:zero2+compile`) in place of a stage's own list, with commas; "" = its own.
    """

    stage: str
    device: str
    tiny: bool
    out: str
    work: str
    deadline: float
    scale: float = 1.0
    runs: str = ""

    @classmethod
    def from_json(cls, text: str) -> Session:
        """What `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """For a process of this stage."""
        return json.dumps(asdict(self))

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    @cached_property
    def work_folder(self) -> Path:
        return Path(self.work)

    @cached_property
    def out_folder(self) -> Path:
        return Path(self.out)

    def choose(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """The runs that were asked for; else those that the stage has."""
        return tuple(name.strip() for name in self.runs.split(",") if name.strip()) or own

    def left_s(self) -> float:
        """Seconds until the stage's time is over."""
        return self.deadline - time.time()

    def within(self, most_s: float, kept_s: float = 1.0) -> float:
        """Seconds that one command may take: at most `most_s`, and `kept_s` less than there are."""
        return min(most_s * self.scale, self.left_s() - kept_s)

    def has_time(self, needs_s: float) -> bool:
        """Whether a measurement of so many seconds still fits; the small sizes always take a second."""
        return self.left_s() >= (min(needs_s, 1.0) if self.tiny else needs_s)

    def record(self, item: str, status: str = "done", **facts: Any) -> None:
        """Writes one result to disk, and to the stage's log."""
        line = {"stage": self.stage, "item": item, "status": status, **facts}
        append_line(self.out_folder / FILE, line)
        print(item, status, facts.get("error", ""), flush=True)

    def skip(self, item: str, needs_s: float) -> None:
        """A measurement that does not fit any more."""
        self.record(item, "skipped", reason=f"needs {needs_s:.0f} s, {self.left_s():.0f} s left")

    def measure(
        self, item: str, function: Callable[..., Mapping[str, Any]], *arguments: Any, needs_s: float = 3.0
    ) -> bool:
        """One measurement: its facts, or why there are none. True if it worked."""
        if not self.has_time(needs_s):
            self.skip(item, needs_s)
            return False
        began = time.time()
        try:
            facts = function(*arguments)
        except NotHere as why:
            self.record(item, "skipped", reason=f"not here: {why}"[:400])
            return False
        except Exception as failure:  # one measurement's; the others go on
            if type(failure).__name__ == "OutOfMemoryError":
                self.record(item, "out_of_memory", error=str(failure)[:400], seconds=time.time() - began)
            else:
                where = traceback.format_exc().splitlines()[-7:]
                error = f"{type(failure).__name__}: {failure}"[:400]
                self.record(item, "failed", error=error, where=where, seconds=time.time() - began)
            return False
        finally:
            free_memory(self.is_cuda)
        self.record(item, seconds=time.time() - began, **facts)
        return True
