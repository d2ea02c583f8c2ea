"""The steps of an end-to-end run, written to a JSON file: what was done, whether it passed, how long it took."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """One thing that was done on the cluster."""

    step: str
    passed: bool
    seconds: float
    note: str = ""


class Steps:
    """Collects steps; the file is rewritten after each, so that a broken run leaves what it had."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self._path = path
        self._facts = facts
        self._steps: list[Step] = []

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Times what happens inside; an error in it fails the step and goes on. The list takes notes."""
        began, notes, passed = time.monotonic(), list[str](), False
        print(f"\n{name} ...", flush=True)
        try:
            yield notes
            passed = True
        finally:
            seconds = round(time.monotonic() - began, 1)
            self._steps.append(Step(name, passed, seconds, "; ".join(notes)))
            print(
                f"{name}: {'passed' if passed else 'FAILED'}, {seconds:.1f} s {'; '.join(notes)}", flush=True
            )
            self._write()

    def _write(self) -> None:
        content = {
            **self._facts,
            "passed": all(step.passed for step in self._steps),
            "seconds": round(sum(step.seconds for step in self._steps), 1),
            "steps": [asdict(step) for step in self._steps],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self._path)
