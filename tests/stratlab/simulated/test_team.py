"""The simulator itself: what it writes is what it says, and its bookkeeping is right on a step drawn by hand."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.stratlab.simulated.bookkeeping import build_step_truths
from tests.stratlab.simulated.member import Member, Work
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.team import simulate, stream
from tests.stratlab.simulated.truth import Parts


def test_written_is_what_is_said(tmp_path: Path) -> None:
    scene = Scene(ranks=4, strategy="fsdp", axes=(("dp_replicate", 2), ("dp_shard", 2)), overlap=0.5)
    truth = simulate(tmp_path, scene)
    for step in truth.steps.values():
        assert sum(step.build_parts().values()) == step.whole == sum(span.whole for _, span in step.spans) > 0
        assert step.comm - step.comm_overlap == step.comm_exposed and min(step.build_parts().values()) >= 0
    together: dict[tuple[str, str], Counter[float]] = {}
    for rank, path in truth.files.items():
        said, events = truth.ranks[rank], json.loads(path.read_text())["traceEvents"]
        timed = [e for e in events if e["ph"] == "X"]
        assert len(timed) == said.slices
        assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == said.flows
        launches = {e["args"].get("correlation"): e for e in timed if e["cat"] == "cuda_runtime"}
        ends: dict[int, float] = {}
        sums: dict[str, list[float]] = {}
        for event in sorted((e for e in timed if "stream" in e["args"]), key=lambda e: e["ts"]):
            args: dict[str, Any] = event["args"]
            end = event["ts"] + event["dur"]
            assert event["ts"] > ends.get(args["stream"], 0) - 0.001, "one stream, one after the other"
            assert event["ts"] > launches[args["correlation"]]["ts"]
            ends[args["stream"]] = end
            sums.setdefault(event["name"], []).append(event["dur"])
            if "Collective name" in args:
                key = args["Process Group Name"], args["Collective name"]
                together.setdefault(key, Counter())[round(end, 3)] += 1
        assert {n: (len(v), round(sum(v) * 1000)) for n, v in sums.items()} == said.kernels
    assert len(together) == 6, "of two groups per axis, dp_shard gathers and scatters"
    assert {count for ends in together.values() for count in ends.values()} == {2}, "on all ranks together"
    whole = [""] * scene.ranks
    for pieces in stream(scene):
        whole = [text + pieces[rank] for rank, text in enumerate(whole)]
    assert whole == [path.read_text() for path in truth.files.values()]


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
    spans = [(phase, span.start, span.end) for phase, span in step.spans]
    assert spans == [("data", 0, 100), ("other", 100, 50_000)]
    parts = Parts(
        start=0, end=50_000, compute=330, comm=400, comm_overlap=100, copy=50, copy_exposed=50,
        transfer=Counter({axis: 200}), straggler=Counter({axis: 100}), data=100, host=9150, launch=50,
        kernel_wait=20, other_idle=40_000,
    )  # fmt: skip
    assert Parts(**{f.name: getattr(step, f.name) for f in dataclasses.fields(Parts)}) == parts
