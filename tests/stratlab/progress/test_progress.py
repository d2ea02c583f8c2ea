"""How progress is told: rarely, and never wrapped."""

import io
import json

import pytest
from rich.console import Console

from stratlab.machine import GrowingWait
from stratlab.progress import Display, Progress, RunReader


def write_config(run_dir, steps=100):
    run_dir.mkdir(parents=True, exist_ok=True)
    resolved = {"steps": steps, "device_type": "cpu", "backend": "gloo"}
    (run_dir / "config.json").write_text(json.dumps({"resolved": resolved}))


def append(run_dir, *steps, **extra):
    with (run_dir / "metrics.jsonl").open("a") as file:
        for step in steps:
            record = {"t": 1000 + 0.5 * step, "step": step, "kind": "train", "loss": 2.0 / step}
            file.write(json.dumps(record | {"samples": 64, "step_time_ms": 100.0} | extra) + "\n")


def test_from_nothing_to_the_last_step(tmp_path):
    run_dir = tmp_path / "run"
    reader = RunReader(run_dir)
    assert reader.read() == Progress("starting")
    write_config(run_dir)
    assert str(reader.read()) == "training"
    append(run_dir, 1, 2, 3)
    append(
        run_dir, 20, step_time_ms=900.0, profiled=True
    )  # a profiled step is slower, and no measure of speed
    append(run_dir, 99, kind="eval")
    state = reader.read()
    assert (state.step, state.steps, state.loss) == (20, 100, 0.1)
    assert state.samples_per_s == pytest.approx(640) and state.eta_s == pytest.approx(40)
    assert all(told in str(state) for told in ("20 of 100", "0.1000", "640 samples/s", "40 s"))
    append(run_dir, 100)
    assert (reader.read().phase, reader.read().eta_s) == ("evaluating", None)


def test_what_an_earlier_attempt_left_is_not_shown(tmp_path):
    write_config(tmp_path, steps=7)
    append(tmp_path, 1, 2, 3)
    reader = RunReader(tmp_path)
    assert reader.read() == Progress("starting")
    write_config(tmp_path, steps=9)
    append(tmp_path, 1)
    assert (reader.read().step, reader.read().steps) == (1, 9) and len(reader.records) == 1


def test_plain_lines_come_at_each_phase_and_then_rarely_and_are_never_wrapped():
    text, end = io.StringIO(), "done in [bold]: a sentence that is longer than the width"
    with Display(Console(file=text, width=20), interval_s=60) as display:
        display.show("ddp", Progress("starting"))
        for step in range(1, 9):
            display.show("ddp", Progress("training", step=step, steps=8, loss=0.5))
        display.end("ddp", end)
    first, second, last = text.getvalue().splitlines()
    assert "starting" in first and "1 of 8" in second and "0.5000" in second and last == f"ddp: {end}"


def test_what_does_not_move_is_said_ever_more_rarely():
    patience = GrowingWait(0)
    assert [now for now in range(0, 300, 5) if patience.is_over(now)] == [5, 15, 35, 75, 135, 195, 255]
    patience = GrowingWait(0)
    assert patience.is_over(5) and not patience.is_least_over(9) and patience.is_least_over(10)
