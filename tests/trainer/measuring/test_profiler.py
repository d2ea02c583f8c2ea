"""A rank's memory snapshot, by a stand-in for torch's CUDA allocator, and its own count of exposed communication."""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from stratlab_spec.trace_events import ExposedShare, RecordedEvent, measure_exposed, read_exposed_pct
from trainer.measuring.phases import Phases
from trainer.measuring.profiler import StepProfiler


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


def test_it_holds_the_recorded_steps_and_the_manifest_names_it(tmp_path, allocator, monkeypatch):
    """Steps 4 and 5 are recorded; 3 warms the profiler up."""
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda into, one, group: into.__setitem__(0, one))
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


STEP = "## Training Step 7 ##"


def on_device(name: str, start: int, end: int, correlation: int = 0) -> RecordedEvent:
    return RecordedEvent(name, start, end, True, False, 0, correlation, "")


def on_host(name: str, start: int, end: int, *, thread: int = 1, correlation: int = 0) -> RecordedEvent:
    return RecordedEvent(name, start, end, False, name.startswith(("##", "gloo:")), thread, correlation, "")


def test_kernels_by_hand() -> None:
    """Steps from 100 to 300, the queue runs until 400: 40 + 10 of 300 are communication alone."""
    events = [
        on_host(STEP, 100, 200),
        on_host("## Training Step 8 ##", 200, 300),
        on_host("cudaLaunchKernel", 110, 111, correlation=5),
        on_host("cudaLaunchKernel", 290, 291, correlation=6),
        on_host("cudaLaunchKernel", 310, 311, correlation=9),
        on_device("gemm", 110, 160, 5),
        on_device("ncclDevKernel_AllReduce_Sum_f32", 140, 200, 5),
        on_device("another", 190, 195, 5),  # 160 to 190 and 195 to 200 are exposed
        on_device("ncclDevKernel_AllGather", 370, 400, 6),  # launched in the last step
        on_device("Memcpy DtoD (Device -> Device)", 380, 390, 6),  # hides nothing
        on_device("gemm", 385, 400, 6),
        on_device("gemm", 400, 900, 9),  # of the step after
        RecordedEvent(
            "nccl:all_reduce", 0, 900, True, True, 0, 0, ""
        ),  # the label of a kernel, on its stream
    ]
    assert measure_exposed(events) == pytest.approx((100 * (30 + 5 + 15) / 300, 300 / 1e6))


def test_on_the_host_operators_take_the_place_of_kernels() -> None:
    step = on_host(STEP, 0, 100)
    events = [
        step, on_host("aten::mm", 0, 40), on_host("gloo:all_reduce", 30, 80, thread=2),
        on_host("aten::copy_", 50, 60, thread=2), on_host("c10d::allreduce_", 40, 90),
        on_host("AddmmBackward0", 0, 100), on_host("aten::add", 75, 78),
    ]  # fmt: skip
    assert measure_exposed(events) == pytest.approx((40 - 3, 100 / 1e6))
    others = (("gloo:all_reduce", 40, 60), ("aten::mm", 10, 30), ("aten::mm", 62, 70), ("aten::view", 41, 50))
    of_autograd = [step, *(on_host(*each, thread=2) for each in others)]
    assert measure_exposed(of_autograd) == ExposedShare(11.0, 100 / 1e6)


WEIGHED = [{"comm_exposed_pct": pct, "profiled_ms": ms} for pct, ms in ((10, 30.0), (50, 90.0))]
DROPPED = {"files": [{"comm_exposed_pct": 10}], "dropped": [{"rank": 1, "comm_exposed_pct": 30}]}
UNKNOWN = {"files": [{"comm_exposed_pct": None}, {"rank": 1}, 3]}


@pytest.mark.parametrize(
    ("text", "expected"), [(DROPPED, 20), ({"files": WEIGHED}, 40), (UNKNOWN, None), ([], None)]
)
def test_the_mean_over_the_ranks(tmp_path, text, expected):
    path = tmp_path / "manifest.json"
    assert read_exposed_pct(path) is None
    path.write_text(json.dumps(text))
    assert read_exposed_pct(path) == expected
    path.write_text("[[[")
    assert read_exposed_pct(path) is None
