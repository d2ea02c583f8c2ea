from __future__ import annotations

import io

import pytest
from rich.console import Console

from stratlab.progress.display import Display
from stratlab.progress.run_progress import Progress


def test_plain_lines_come_at_each_phase_and_then_rarely_and_are_never_wrapped() -> None:
    text = io.StringIO()
    with Display(Console(file=text, width=20), interval_s=60) as display:
        display.show("ddp", Progress("starting"))
        for step in range(1, 9):
            display.show("ddp", Progress("training", step=step, steps=8, loss=0.5))
        display.end("ddp", "done in [bold]: a sentence that is longer than the width")
    assert text.getvalue().splitlines() == [
        "ddp: starting",
        "ddp: training, step 1 of 8, loss 0.5000",
        "ddp: done in [bold]: a sentence that is longer than the width",
    ]


def test_a_phase_in_which_nothing_moves_shows_the_time() -> None:
    text = io.StringIO()
    with Display(Console(file=text), interval_s=0.0) as display:
        display.show("ddp", Progress("starting"))
        display.since["ddp"] = ("starting", display.since["ddp"][1] - 90)
        display.show("ddp", Progress("starting"))
        display.show("ddp", Progress("training", step=1, eta_s=5))
    assert text.getvalue().splitlines()[1:] == [
        "ddp: starting, for 1 min 30 s",
        "ddp: training, step 1, 5 s left",
    ]


def test_a_step_that_takes_long_is_not_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("stratlab.progress.display.time.monotonic", lambda: clock)
    text = io.StringIO()
    with Display(Console(file=text)) as display:
        for second in range(60):
            clock = float(second)
            display.show("ddp", Progress("training", step=1 + second // 50, steps=8, loss=0.5, eta_s=9))
    lines = text.getvalue().splitlines()
    assert len(lines) == 6 == len(set(lines)), lines
    assert lines[3] == "ddp: training, step 1 of 8, loss 0.5000, 9 s left, at this step for 35 s"
    assert lines[4] == "ddp: training, step 2 of 8, loss 0.5000, 9 s left"


def test_a_terminal_gets_one_live_line_and_the_end_stays() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    with Display(console) as display:
        display.show("ddp", Progress("training", step=2, steps=8, loss=0.5))
        assert display.live
        display.live.refresh()
        display.end("ddp", "done")
    assert "training, step 2 of 8, loss 0.5000" in text.getvalue()
    assert "ddp: done" in text.getvalue()


def test_a_dumb_terminal_gets_plain_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with Display(console) as display:
        assert display.live is None
