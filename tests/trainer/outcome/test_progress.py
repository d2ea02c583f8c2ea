from __future__ import annotations

import logging
import re

from trainer.metrics import progress


def test_speed_and_time_left_by_hand(monkeypatch, caplog):
    """Told every five seconds, and at the end; the first steps told are where the clock starts."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.INFO, "trainer")
    shown = progress.Progress(100)
    for clock[0], step in ((10.0, 10), (20.0, 20), (24.9, 25), (50.0, 60), (51.0, 100)):
        shown.show({"step": step, "loss": 0.5, "samples": 64, "step_time_ms": 80.0})
    told = [re.findall(r"\d[\d./]*", record.getMessage()) for record in caplog.records]
    assert told == [  # step, loss, samples per s, ms per step, seconds left
        ["10/100", "0.5000", "800", "80.0", "7"],  # nothing is timed yet: 90 to go, of 80 ms each
        ["20/100", "0.5000", "800", "80.0", "80"],  # 10 steps in 10 s, 80 to go
        ["60/100", "0.5000", "800", "80.0", "32"],  # 50 in 40, 40 to go
        ["100/100", "0.5000", "800", "80.0", "0"],
    ]
