"""What a person sees in `kubectl logs`: a line every few seconds with step, loss, speed and time left."""

from __future__ import annotations

import logging
import time
from typing import Any

EVERY_S = 5.0

log = logging.getLogger("trainer")


class Progress:
    """Logs the newest metrics line, not more often than every five seconds, and the last one always."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._began = self._shown = time.monotonic()
        self._first_step: int | None = None

    def show(self, line: dict[str, Any]) -> None:
        """`line` is a train line of metrics.jsonl."""
        now, step = time.monotonic(), line["step"]
        if self._first_step is None:
            self._first_step, self._began = step, now
        if now - self._shown < EVERY_S and step < self._steps:
            return
        self._shown = now
        done = step - self._first_step
        step_s = (now - self._began) / done if done else line["step_time_ms"] / 1e3
        log.info(
            "step %d/%d  loss %.4f  %.0f samples/s  %.1f ms/step  about %d s left",
            step,
            self._steps,
            line["loss"],
            line["samples"] / line["step_time_ms"] * 1e3,
            line["step_time_ms"],
            step_s * (self._steps - step),
        )
