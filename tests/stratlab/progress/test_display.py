"""How progress is told: rarely, and never wrapped."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stratlab.processes import GrowingWait
from stratlab.progress import Display, Progress


def test_plain_lines_come_at_each_phase_and_then_rarely_and_are_never_wrapped() -> None:
    text, end = io.StringIO(), "done in [bold]: a sentence that is longer than the width"
    with Display(Console(file=text, width=20), interval_s=60) as display:
        display.show("ddp", Progress("starting"))
        for step in range(1, 9):
            display.show("ddp", Progress("training", step=step, steps=8, loss=0.5))
        display.end("ddp", end)
    first, second, last = text.getvalue().splitlines()
    assert "starting" in first and "1 of 8" in second and "0.5000" in second and last == f"ddp: {end}"


def test_a_phase_or_step_in_which_nothing_moves_shows_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("stratlab.progress.time.monotonic", lambda: clock)
    text = io.StringIO()
    with Display(Console(file=text)) as display:
        for second in range(60):
            clock = float(second)
            display.show("ddp", Progress("training", step=1 + second // 50, steps=8, loss=0.5, eta_s=9))
        clock = 200.0
        display.show("ddp", Progress("writing"))
        clock = 290.0
        display.show("ddp", Progress("writing"))
    lines = text.getvalue().splitlines()
    assert len(lines) == 8 == len(set(lines)), lines
    assert "35 s" in lines[3] and "9 s left" in lines[3], "a step that takes long is not told again and again"
    assert "2 of 8" in lines[4] and "35 s" not in lines[4] and "1 min 30 s" in lines[7]


def test_a_terminal_gets_one_live_line_and_a_dumb_one_plain_lines() -> None:
    text = io.StringIO()
    with Display(Console(file=text, width=100, force_terminal=True, color_system=None)) as display:
        display.show("ddp", Progress("training", step=2, steps=8, loss=0.5))
        assert display.live
        display.live.refresh()
        display.end("ddp", "done")
    assert "step 2 of 8" in text.getvalue() and "ddp: done" in text.getvalue()
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with Display(dumb) as display:
        assert display.live is None


def test_what_does_not_move_is_said_ever_more_rarely() -> None:
    patience = GrowingWait(0)
    assert [now for now in range(0, 300, 5) if patience.is_over(now)] == [5, 15, 35, 75, 135, 195, 255]
    patience = GrowingWait(0)
    assert patience.is_over(5) and not patience.is_least_over(9) and patience.is_least_over(10)
