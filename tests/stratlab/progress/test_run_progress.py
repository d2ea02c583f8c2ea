from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.progress import Progress, RunReader, format_seconds


def write_config(run_dir: Path, steps: int = 100) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    resolved = {"steps": steps, "device_type": "cpu", "backend": "gloo"}
    (run_dir / "config.json").write_text(json.dumps({"resolved": resolved}))


def append(run_dir: Path, *steps: int, **extra: object) -> None:
    with (run_dir / "metrics.jsonl").open("a") as file:
        for step in steps:
            record = {"t": 1000 + 0.5 * step, "step": step, "kind": "train", "loss": 2.0 / step}
            file.write(json.dumps(record | {"samples": 64, "step_time_ms": 100.0} | extra) + "\n")


def test_from_nothing_to_the_last_step(tmp_path: Path) -> None:
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


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
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


def test_what_an_earlier_attempt_left_is_not_shown(tmp_path: Path) -> None:
    write_config(tmp_path, steps=7)
    append(tmp_path, 1, 2, 3)
    reader = RunReader(tmp_path)
    assert reader.read() == Progress("starting")
    write_config(tmp_path, steps=9)
    append(tmp_path, 1)
    assert (reader.read().step, reader.read().steps) == (1, 9)
    assert len(reader.records) == 1


def test_a_further_attempt_is_shown_though_it_leaves_the_configuration_alone(tmp_path: Path) -> None:
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


def test_seconds_are_readable() -> None:
    assert [format_seconds(s) for s in (41.7, 185, 7815)] == ["42 s", "3 min 05 s", "2 h 10 min"]
