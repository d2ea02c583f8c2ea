"""Which steps count, in a process of its own; and lines that wait while the volume is full."""

import errno
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from stratlab_spec.exit_codes import STORAGE_FULL, FolderGone, exit_code
from stratlab_spec.run_directory import append_line, read_lines
from tests.codes import refuses
from trainer.engine import StepResult
from trainer.metrics.spool import Spool
from trainer.metrics.tracking import Recorder
from trainer.metrics.training_failures import Guard


@pytest.mark.parametrize(("profiled", "counted"), [((), 3), ((2, 3, 4, 5), 6)])
def test_collectives_are_counted_in_one_step_from_the_third_on_that_is_not_profiled(profiled, counted):
    recorder = Recorder(None, 1, 10)
    watched = []
    for step in range(1, 11):
        with recorder.count_wire(step in profiled) as watch:
            if watch is not None:
                watched.append(step)
    assert watched == [counted] and None not in (recorder.wire, recorder.products)


def test_ranks_are_compared_behind_the_warm_up_and_not_beside_a_profile():
    recorder = Recorder(None, 1, 10)
    counted = [step for step in range(1, 11) if recorder._counts(SimpleNamespace(profiled=step == 7))]
    assert counted == [6, 9, 10]


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 1)


def result(loss: float = 0.5, norm: float = 2.0, *measures: int) -> StepResult:
    told = {"measures": torch.tensor(measures)} if measures else {}
    return StepResult(torch.tensor(loss), torch.tensor(norm), 8, **told)


def test_a_line_of_a_step(tmp_path, alone):
    """Steps of as many ms as their number, half of the eight samples told right."""
    recorder = Recorder(tmp_path / "metrics.jsonl", 1, 5, step_measures=("accuracy", "quarter"))
    for step in range(1, 13):
        recorder.record_step(
            step, 0.125, result(0.5, 2.0, 4, 2), (step * 1_000_000, 250_000, 500_000, 0, 0), False
        )
    recorder.flush()
    recorder.close()
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert {name: value for name, value in lines[2].items() if name != "t"} == {
        "attempt": 1, "step": 3, "kind": "train", "loss": 0.5, "grad_norm": 2.0, "lr": 0.125, "samples": 8,
        "skipped": 0, "step_time_ms": 3.0, "data_ms": 0.25, "forward_ms": 0.5, "backward_ms": 0.0,
        "optimizer_ms": 0.0, "profiled": False, "train_accuracy_pct": 50.0,
        "train_quarter_pct": 25.0,
    }  # fmt: skip


@pytest.mark.parametrize("log_every", [4, 100])
def test_writes_are_never_further_apart_than_ten_steps(tmp_path, alone, log_every):
    written = [0]
    note = lambda line: written.append(line["step"])  # noqa: E731
    recorder = Recorder(tmp_path / "metrics.jsonl", 1, log_every, on_flush=note)
    for step in range(1, 61):
        recorder.record_step(step, 0.125, result(), (1_000_000, 250_000, 500_000, 0, 0), False)
    recorder.flush()
    recorder.close()
    assert max(after - before for before, after in pairwise(written)) <= min(log_every, 10)
    assert written[-1] == 60


REAL = os.write


class Volume:
    """Takes `room` more bytes of every file, as os.write would."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = REAL(file, data[: self.room])
        self.room -= written
        return written


def line(number: int) -> bytes:
    return json.dumps({"step": number}).encode() + b"\n"


def steps(path: Path) -> list[int]:
    return [each["step"] for each in read_lines(path)]


@pytest.mark.parametrize("room", [0, 12, 30])
def test_what_does_not_fit_is_there_later_in_its_order(tmp_path, monkeypatch, room):
    volume, path = Volume(room), tmp_path / "metrics.jsonl"
    monkeypatch.setattr(os, "write", volume.write)
    spool = Spool(path)
    for number in range(5):
        spool.append(line(number))
        spool.flush()
    assert not spool.flush() and path.stat().st_size == room
    volume.room = 1 << 20
    assert spool.flush()
    assert steps(path) == [0, 1, 2, 3, 4] and spool.dropped == 0


def test_what_is_too_much_is_dropped_from_the_front_and_counted(tmp_path, monkeypatch):
    volume, path = Volume(5), tmp_path / "metrics.jsonl"
    monkeypatch.setattr(os, "write", volume.write)
    spool = Spool(path, most_bytes=60)
    for number in range(10):
        spool.append(line(number))
        assert not spool.flush()
    volume.room = 1 << 20
    assert spool.flush()
    # the first one was half on the volume; a line of 12 bytes each
    assert steps(path) == [0, 6, 7, 8, 9] and spool.dropped == 5


def test_a_half_line_of_an_earlier_attempt_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b'{"step": 2, "lo')
    spool = Spool(path)
    spool.append(line(3))
    spool.close()
    assert steps(path) == [1, 3]
    path.write_bytes(line(1) + b"\0\0\0")
    append_line(path, {"step": 4})
    append_line(path, {"step": 5})
    assert steps(path) == [1, 4, 5]


@pytest.mark.parametrize("way", ["moved", "replaced"])
def test_a_folder_that_is_gone_is_noticed_at_the_next_write_and_no_line_is_lost(tmp_path, way):
    folder = tmp_path / "run"
    folder.mkdir()
    spool = Spool(folder / "metrics.jsonl")
    spool.append(line(1))
    assert spool.flush()
    with open(spool.path, "rb") as reader:
        if way == "moved":
            folder.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(folder)
        if way == "replaced":
            folder.mkdir()
            spool.path.write_text("")
        spool.append(line(2))
        with refuses(FolderGone, "SL-folder-gone") as failure:
            spool.flush()
        assert exit_code(failure.value) == STORAGE_FULL
        assert reader.read() == line(1) + line(2)


def test_one_number_that_is_not_finite_is_left_out_and_named(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(dist, "all_gather_object", lambda answers, own, **_: answers.__setitem__(0, own))
    recorder = Recorder(tmp_path / "m", 1, 1, guard=Guard("warn", scales_loss=False, node=""))
    assert not recorder.has_written
    recorder.record_step(1, 0.125, result(0.5, float("inf")), (1_000_000, 0, 0, 0, 0), False)
    recorder.flush()
    recorder.close()
    assert recorder.has_written
    lines = read_lines(tmp_path / "m")
    step = next(line for line in lines if line["kind"] == "train")
    assert "grad_norm" not in step and step["loss"] == 0.5
    assert any(line["kind"] == "event" and "grad_norm" in line["text"] for line in lines)
