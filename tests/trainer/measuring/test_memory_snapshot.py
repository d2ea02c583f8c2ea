"""The memory snapshot around a stand-in for torch's CUDA allocator, which needs a GPU."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from trainer.measuring import profiler as memory_snapshot
from trainer.measuring.phases import Phases
from trainer.measuring.profiler import MOST_EVENTS, StepProfiler, start_history, write_snapshot


class Allocator:
    """What of torch.cuda.memory is called, with the history of one device."""

    def __init__(self):
        self.keeps, self.events, self.arguments = False, [], {}

    def record(self, enabled, **arguments):
        self.keeps, self.events = enabled is not None, []
        self.arguments = arguments or self.arguments

    def take(self, size):
        if self.keeps:
            self.events.append({"action": "alloc", "size": size})

    def snapshot(self):
        return {"segments": [], "device_traces": [list(self.events), []]}


@pytest.fixture
def allocator(monkeypatch):
    found = Allocator()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", found.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", found.snapshot)
    return found


def test_the_history_is_written_as_torch_writes_it_and_ends(tmp_path, allocator):
    start_history()
    allocator.take(100)
    allocator.take(200)
    told = write_snapshot(tmp_path / "a" / "rank0.pickle")
    written = tmp_path / "a" / "rank0.pickle"
    assert [event["size"] for event in pickle.loads(written.read_bytes())["device_traces"][0]] == [100, 200]
    assert told == {"file": "a/rank0.pickle", "bytes": written.stat().st_size, "events": 2, "cut": False}
    assert not allocator.keeps and allocator.arguments["max_entries"] == MOST_EVENTS
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_a_full_history_says_so_and_what_cannot_be_written_costs_no_step(tmp_path, allocator, monkeypatch):
    monkeypatch.setattr(memory_snapshot, "MOST_EVENTS", 2)
    for path in (tmp_path / "a.pickle", tmp_path / "not" / "there" / "a.pickle"):
        start_history()
        allocator.take(1)
        allocator.take(1)
        told = write_snapshot(path)
        assert told["cut"] is True if path.exists() else told["reason"]
        assert not allocator.keeps
    assert not path.exists()


def test_it_holds_the_recorded_steps_and_the_manifest_names_it(tmp_path, allocator, monkeypatch):
    """Steps 4 and 5 are recorded; 3 warms the profiler up."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda into, one: into.__setitem__(0, one))
    config = Config(run="x", profile_first_step=4, profile_warmup=1, profile_steps=2, memory_snapshot=True)
    folder = RunDirectory(tmp_path, "demo", "x")
    folder.create()
    run = SimpleNamespace(config=config, folder=folder, world=SimpleNamespace(rank=0))
    profiler = StepProfiler(run, 4, Phases("cpu"))
    for step in range(1, 8):
        profiler.begin_step(step)
        allocator.take(step)
        profiler.end_step(step)
    kept = pickle.loads(folder.memory_snapshot(0).read_bytes())
    assert [event["size"] for event in kept["device_traces"][0]] == [4, 5]
    (entry,) = json.loads(folder.manifest.read_text())["files"]
    assert entry["memory_snapshot"]["file"] == "memory_snapshots/rank0.pickle"
    assert entry["memory_snapshot"]["events"] == 2
