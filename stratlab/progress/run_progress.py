"""How far a run is, read from its run directory. Never from what it prints."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WINDOW = 50


@dataclass(frozen=True)
class Progress:
    """What is known so far; None where nothing is. `hardware` says on what the numbers were measured."""

    phase: str
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None
    hardware: str = ""

    def __str__(self) -> str:
        parts = [self.phase]
        if self.step:
            parts.append(f"step {self.step} of {self.steps}" if self.steps else f"step {self.step}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.samples_per_s is not None:
            parts.append(f"{self.samples_per_s:.0f} samples/s" + f" ({self.hardware})" * bool(self.hardware))
        if self.eta_s is not None:
            parts.append(f"{format_seconds(self.eta_s)} left")
        return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class RunReader:
    """Reads what is new in a run directory each time; skips what an earlier attempt had left."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.offset = _size(run_dir / "metrics.jsonl")
        self.old_config = _modified(run_dir / "config.json")
        self.old_attempts = _size(run_dir / "attempts.jsonl")
        self.config: dict[str, Any] = {}
        self.records: deque[dict[str, Any]] = deque(maxlen=WINDOW)

    def read(self) -> Progress:
        """The run's present state."""
        # a further attempt leaves config.json as the first one wrote it
        begun = _size(self.run_dir / "attempts.jsonl") > self.old_attempts
        if not self.config and (begun or _modified(self.run_dir / "config.json") != self.old_config):
            self.config = json.loads((self.run_dir / "config.json").read_bytes())
        self.records.extend(record for record in self._new_records() if record.get("kind") == "train")
        if not self.config:
            return Progress("starting")
        resolved = self.config.get("resolved", {})
        steps = resolved.get("steps")
        hardware = ", ".join(str(resolved[key]) for key in ("device_type", "backend") if resolved.get(key))
        if not self.records:
            return Progress("training", steps=steps, hardware=hardware)
        last = self.records[-1]
        finished = steps is not None and last["step"] >= steps
        return Progress(
            phase="evaluating" if finished else "training",
            step=last["step"],
            steps=steps,
            loss=last.get("loss"),
            samples_per_s=self._samples_per_s(),
            eta_s=None if finished or steps is None else self._eta_s(steps - last["step"]),
            hardware=hardware,
        )

    def _new_records(self) -> list[dict[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        if _size(path) <= self.offset:
            return []
        with path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        self.offset += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line]

    def _samples_per_s(self) -> float | None:
        timed = [r for r in self.records if r.get("step_time_ms") and not r.get("profiled")]
        time_s = sum(r["step_time_ms"] for r in timed) / 1000
        return sum(r["samples"] for r in timed) / time_s if time_s else None

    def _eta_s(self, steps_left: int) -> float | None:
        first, last = self.records[0], self.records[-1]
        done = last["step"] - first["step"]
        return (last["t"] - first["t"]) / done * steps_left if done > 0 else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0
