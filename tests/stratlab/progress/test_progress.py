"""How progress is told: rarely, and never wrapped."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from stratlab.machine import GrowingWait
from stratlab.progress import Display, Progress, RunReader


def write_config(run_dir: Path, steps: int = 100) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    resolved = {"steps": steps, "device_type": "cpu", "backend": "gloo"}
    (run_dir / "config.json").write_text(json.dumps({"resolved": resolved}))


def append(run_dir: Path, *steps: int, **extra: object) -> None:
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
    assert state.samples_per_s == pytest.approx(640)
    assert state.eta_s == pytest.approx(40)
    assert all(told in str(state) for told in ("20 of 100", "0.1000", "640 samples/s", "40 s"))
    append(run_dir, 100)
    assert (reader.read().phase, reader.read().eta_s) == ("evaluating", None)


def test_a_half_written_line_waits_for_its_end(tmp_path):
    write_config(tmp_path)
    reader = RunReader(tmp_path)
    reader.old_config = 0
    append(tmp_path, 1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"t": 1, "step": 2, "kind": "tr')
        file.flush()
        assert reader.read().step == 1
        file.write('ain"}\n')
    assert reader.read().step == 2


def test_what_an_earlier_attempt_left_is_not_shown(tmp_path):
    write_config(tmp_path, steps=7)
    append(tmp_path, 1, 2, 3)
    reader = RunReader(tmp_path)
    assert reader.read() == Progress("starting")
    write_config(tmp_path, steps=9)
    append(tmp_path, 1)
    assert (reader.read().step, reader.read().steps) == (1, 9)
    assert len(reader.records) == 1


def test_a_further_attempt_is_shown_though_it_leaves_the_configuration_alone(tmp_path):
    write_config(tmp_path, steps=7)
    append(tmp_path, 1, 2, 3)
    (tmp_path / "attempts.jsonl").write_text('{"event": "started"}\n')
    reader = RunReader(tmp_path)
    assert reader.read() == Progress("starting")
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"event": "started"}\n')
    assert reader.read().steps == 7
    append(tmp_path, 4)
    assert (reader.read().step, reader.read().steps) == (4, 7)


def test_plain_lines_come_at_each_phase_and_then_rarely_and_are_never_wrapped():
    text, end = io.StringIO(), "done in [bold]: a sentence that is longer than the width"
    with Display(Console(file=text, width=20), interval_s=60) as display:
        display.show("ddp", Progress("starting"))
        for step in range(1, 9):
            display.show("ddp", Progress("training", step=step, steps=8, loss=0.5))
        display.end("ddp", end)
    first, second, last = text.getvalue().splitlines()
    assert "starting" in first and "1 of 8" in second and "0.5000" in second and last == f"ddp: {end}"


def test_a_phase_or_step_in_which_nothing_moves_shows_the_time(monkeypatch):
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


def test_what_does_not_move_is_said_ever_more_rarely():
    patience = GrowingWait(0)
    assert [now for now in range(0, 300, 5) if patience.is_over(now)] == [5, 15, 35, 75, 135, 195, 255]
    patience = GrowingWait(0)
    assert patience.is_over(5) and not patience.is_least_over(9) and patience.is_least_over(10)
