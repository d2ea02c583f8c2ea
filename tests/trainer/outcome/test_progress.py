from __future__ import annotations

import logging

import pytest

from trainer.outcome import progress


def test_speed_and_time_left_by_hand(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Told every five seconds, and at the end; the first steps told are where the clock starts."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.INFO, "trainer")
    shown = progress.Progress(100)
    for clock[0], step in ((10.0, 10), (20.0, 20), (24.9, 25), (50.0, 60), (51.0, 100)):
        shown.show({"step": step, "loss": 0.5, "samples": 64, "step_time_ms": 80.0})
    rest = "loss 0.5000  800 samples/s  80.0 ms/step  about"
    assert [record.getMessage() for record in caplog.records] == [
        f"step 10/100  {rest} 7 s left",  # nothing is timed yet: 90 to go, of 80 ms each
        f"step 20/100  {rest} 80 s left",  # 10 steps in 10 s, 80 to go
        f"step 60/100  {rest} 32 s left",  # 50 in 40, 40 to go
        f"step 100/100  {rest} 0 s left",
    ]
