"""The simulator itself: what it writes is what it says, and the effects of its knobs are those of their causes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.stratlab.simulated.bookkeeping import PHASES, build_step_truths
from tests.stratlab.simulated.member import Member, Work
from tests.stratlab.simulated.team import Scene, Truth, simulate, stream
from tests.stratlab.simulated.truth import Parts

HYBRID = (("dp_replicate", 2), ("dp_shard", 2))
SCENES = {
    "ddp": Scene(),
    "late": Scene(slow=1.5, micro_batches=2, copy_exposed=False, sync=False),
    "host-bound": Scene(launch_ns=90_000, sync=False),
    "hsdp": Scene(ranks=4, strategy="fsdp", axes=HYBRID, overlap=0.5),
    "tp": Scene(ranks=4, axes=(("dp_replicate", 2), ("tp", 2)), overlap=0, slow=1.3),
    "pipeline": Scene(ranks=4, axes=(("pp", 2), ("dp_replicate", 2)), micro_batches=4, layers=8),
}

SPANS = (*PHASES.values(), "other")


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Truth]:
    return {name: simulate(tmp_path_factory.mktemp(name), scene) for name, scene in SCENES.items()}


def read_events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def mean_ns(truth: Truth, name: str) -> float:
    """Over ranks and steps."""
    values = [getattr(step, name) for step in truth.steps.values()]
    values = [v.total() if isinstance(v, Counter) else v for v in values]
    return sum(values) / len(values)


@pytest.mark.parametrize("name", SCENES)
def test_parts_sum_to_the_step(truths: dict[str, Truth], name: str) -> None:
    truth = truths[name]
    assert len(truth.steps) == truth.scene.ranks * truth.scene.steps
    for step in truth.steps.values():
        assert sum(step.build_parts().values()) == step.whole > 0
        assert min(step.build_parts().values()) >= 0
        assert step.comm - step.comm_overlap == step.comm_exposed
        assert sum(span.whole for _, span in step.spans) == step.whole
        for part in (
            "compute",
            "comm",
            "copy_exposed",
            "bubble",
            "data",
            "host",
            "launch",
            "kernel_wait",
            "other_idle",
        ):
            assert sum(step.sum_phase(phase, part) for phase in SPANS) == getattr(step, part)


@pytest.mark.parametrize("name", SCENES)
def test_written_is_what_is_said(truths: dict[str, Truth], name: str) -> None:
    for rank, path in truths[name].files.items():
        said, events = truths[name].ranks[rank], read_events(path)
        timed = [e for e in events if e["ph"] == "X"]
        assert len(timed) == said.slices
        assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == said.flows
        assert Counter(e["name"] for e in timed if e["cat"] == "user_annotation") == said.labels
        launches = {e["args"].get("correlation"): e for e in timed if e["cat"] == "cuda_runtime"}
        ends: dict[int, float] = {}
        sums: dict[str, list[float]] = {}
        for event in sorted((e for e in timed if "stream" in e["args"]), key=lambda e: e["ts"]):
            stream = event["args"]["stream"]
            assert event["ts"] > ends.get(stream, 0) - 0.001, "one stream, one after the other"
            assert event["ts"] > launches[event["args"]["correlation"]]["ts"]
            ends[stream] = event["ts"] + event["dur"]
            sums.setdefault(event["name"], []).append(event["dur"])
        assert {n: (len(v), round(sum(v) * 1000)) for n, v in sums.items()} == said.kernels
        memory = [e["args"] for e in events if e["name"] == "[memory]"]
        assert max(m["Total Allocated"] for m in memory) == said.peak_allocated_bytes
        assert max(m["Total Reserved"] for m in memory) == said.peak_reserved_bytes


def test_a_collective_ends_on_all_its_ranks_together(truths: dict[str, Truth]) -> None:
    ends: dict[tuple[str, str], Counter[float]] = {}
    for path in truths["hsdp"].files.values():
        for event in read_events(path):
            args = event.get("args", {})
            if event.get("cat") == "kernel" and "Collective name" in args:
                key = args["Process Group Name"], args["Collective name"]
                ends.setdefault(key, Counter())[round(event["ts"] + event["dur"], 3)] += 1
    assert len(ends) == 6, "of two groups per axis, dp_shard gathers and scatters"
    assert {count for group in ends.values() for count in group.values()} == {2}


def test_text_is_kinetos(truths: dict[str, Truth]) -> None:
    text = truths["ddp"].files[1].read_text()
    assert text.count("\n  },\n") == text.count('"ph"') - 1, "every event but the last"
    head = json.loads(text.partition(',\n  "traceEvents"')[0] + "}")
    assert head["distributedInfo"]["rank"] == 1 and head["distributedInfo"]["world_size"] == 2
    assert [g["pg_desc"] for g in head["distributedInfo"]["pg_config"]] == ["default_pg", "mesh_dp_replicate"]


def test_stream_gives_the_same_text(tmp_path: Path) -> None:
    scene = Scene(steps=2, layers=2)
    whole = ["", ""]
    for pieces in stream(scene):
        whole = [text + pieces[rank] for rank, text in enumerate(whole)]
    assert whole == [path.read_text() for path in simulate(tmp_path, scene).files.values()]


@pytest.mark.parametrize(
    ("change", "name", "least_ns"),
    [
        ({"link": 4.0}, "transfer", 400_000),
        ({"overlap": 0.0}, "transfer", 100_000),
        ({"slow": 1.5}, "straggler", 400_000),
        ({"launch_ns": 200_000}, "host", 400_000),
        ({"data_ns": 900_000}, "data", 700_000),
        ({"copy_ns": 500_000}, "copy_exposed", 400_000),
    ],
)
def test_a_cause_has_its_effect(tmp_path: Path, change: dict[str, Any], name: str, least_ns: int) -> None:
    before = simulate(tmp_path / "a", Scene())
    after = simulate(tmp_path / "b", dataclasses.replace(Scene(), **change))
    assert mean_ns(after, name) - mean_ns(before, name) > least_ns


def test_bubble_shrinks_with_micro_batches(tmp_path: Path) -> None:
    shares = []
    for micro_batches in (2, 8):
        scene = Scene(ranks=2, axes=(("pp", 2),), micro_batches=micro_batches, comm_ns=2_000, layers=8)
        truth = simulate(tmp_path / str(micro_batches), scene)
        shares.append(mean_ns(truth, "bubble") / mean_ns(truth, "whole"))
    assert shares[0] > 1.5 * shares[1] > 0


def test_segments_by_hand() -> None:
    """The bookkeeping against a step drawn by hand."""
    member = Member(Scene(), 0)
    member.labels = [("## Data Loading ##", 0, 100)]
    member.work = [
        Work(150, 200, 100, "copy", "", "", 150),  # 50 pass between its launch and its start
        Work(200, 400, 110, "compute", "", "", 200),
        Work(300, 700, 120, "comm", "all_reduce", "dp_replicate", 500),  # waits 300-500, 100 of it exposed
        Work(720, 800, 130, "compute", "", "", 720),  # 20 after the gap began
        Work(40_800, 40_850, 140, "compute", "", "", 40_800),  # 40 us after the gap began
    ]
    (step,) = build_step_truths(member, [(0, 50_000)], False)
    axis = ("all_reduce", "dp_replicate")
    assert (step.host_ns, step.data_ns, step.issued["data"]) == (50_000, 100, 0)
    assert [(phase, span.start, span.end) for phase, span in step.spans] == [
        ("data", 0, 100),
        ("other", 100, 50_000),
    ]
    parts = Parts(
        start=0, end=50_000, compute=330, comm=400, comm_overlap=100, copy=50, copy_exposed=50,
        transfer=Counter({axis: 200}), straggler=Counter({axis: 100}), data=100, host=9150, launch=50,
        kernel_wait=20, other_idle=40_000,
    )  # fmt: skip
    assert Parts(**{f.name: getattr(step, f.name) for f in dataclasses.fields(Parts)}) == parts
