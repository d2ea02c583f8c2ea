"""Runs that disturbed each other, or ran on machines that are not alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stratlab.compare.building import Report, build, difference, edit, edit_ranks, judge
from tests.stratlab.example_run import build_run_dir, write_lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build(tmp_path / "demo", ["ddp", "fsdp", "zero2"])


def move(run: Path, begun: float) -> None:
    """The whole run, to another time."""
    for name in ("attempts.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        shift = begun - lines[0]["t"] + (0.012 if name == "metrics.jsonl" else 0)
        write_lines(run / name, [line | {"t": line["t"] + shift} for line in lines])


def set_nodes(run: Path, *nodes: str) -> None:
    edit_ranks(run, lambda rank: rank.update(node=nodes[0] if nodes else rank["node"]))
    lines = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
    write_lines(run / "attempts.jsonl", [line | {"nodes": nodes} for line in lines])


def find_beside(report: Report) -> dict[str, Any]:
    return dict(difference(report, "runs beside it")["values"])


def test_runs_at_work_on_one_node_at_one_time_are_not_compared(root: Path) -> None:
    move(root / "ddp", 2e9)
    move(root / "fsdp", 2e9)
    report = judge(root)
    assert find_beside(report) == {"ddp": "fsdp", "fsdp": "ddp", "zero2": "none"}
    assert report["fairness"]["groups"] == [["ddp"], ["fsdp"], ["zero2"]]
    assert set(report["winners"].values()) == {None}
    set_nodes(root / "fsdp")  # which nobody knows then
    assert find_beside(judge(root)) == {"ddp": "unknown", "fsdp": "unknown", "zero2": "none"}


def test_on_different_nodes_at_one_time_they_do_not_disturb_each_other(root: Path) -> None:
    move(root / "ddp", 2e9)
    move(root / "fsdp", 2e9)
    set_nodes(root / "fsdp", "node-2")
    report = judge(root)
    assert report["fairness"]["verdict"] == "comparable"
    assert not difference(report, "names of the nodes")["matters"]
    (remark,) = [remark for remark in report["remarks"] if "node-2" in remark]
    assert remark.count("node-1") == 2


def test_a_run_that_begins_when_the_steps_are_done_takes_nothing_from_them(root: Path) -> None:
    """The example's steps take 0.7 s of the 60 s of its attempt: the rest is evaluation and writing."""
    move(root / "ddp", 2e9)
    move(root / "fsdp", 2e9 + 30)  # its own steps are made while ddp is still there
    assert find_beside(judge(root)) == {"ddp": "none", "fsdp": "ddp", "zero2": "none"}


@pytest.mark.parametrize("status", ["failed", "unfinished"])
def test_a_run_that_never_ended_well_disturbs_as_much(root: Path, status: str) -> None:
    build_run_dir(root, "lost", "hsdp", device="cuda", hosts=["n"], status=status)
    move(root / "lost", 2e9)
    move(root / "fsdp", 2e9)
    assert find_beside(judge(root)) == {"ddp": "none", "fsdp": "lost", "zero2": "none"}


def test_two_pods_on_one_node_are_not_two_nodes(root: Path) -> None:
    edit(root / "fsdp" / "ranks" / "rank1.json", lambda rank: rank.update(node="node-2"))
    entry = difference(judge(root), "ranks on each node")
    assert entry["values"] == {"ddp": [2], "fsdp": [1, 1], "zero2": [2]} and entry["matters"]


@pytest.mark.parametrize(
    ("field", "change", "value"),
    [
        ("GPU power_limit_w", {"power_limit_w": 350.0}, "350.0"),
        ("GPU memory_clock_limit_mhz", {"memory_clock_limit_mhz": 1593.0}, "1593.0"),
        ("GPU clock reached", {"highest_clock_mhz": 1200.0}, "about 60 % of 1,980 MHz"),
        ("GPU slowed by heat or a power brake", {"slowed_pct": 12.4}, "12 % of the time"),
    ],
)
def test_gpus_at_another_clock_are_not_compared(
    root: Path, field: str, change: dict[str, float], value: str
) -> None:
    """One slow GPU of two is enough."""
    ranks = ["rank0", "rank1"] if "limit" in field else ["rank1"]
    for rank in ranks:
        edit(root / "fsdp" / "ranks" / f"{rank}.json", lambda facts: facts["gpu"].update(change))
    report = judge(root)
    entry = difference(report, field)
    assert entry["values"]["fsdp"] == value != entry["values"]["ddp"] and entry["matters"]
    assert report["fairness"]["groups"][0] == ["ddp", "zero2"]


def test_a_clock_that_no_run_recorded_forbids_nothing(root: Path) -> None:
    """NVML is not to be had everywhere."""
    for run in root.iterdir():
        edit_ranks(run, lambda rank: rank.update(gpu=dict.fromkeys(rank["gpu"])))
    assert judge(root)["fairness"]["verdict"] == "comparable"
    known = {"highest_clock_mhz": 1980.0, "clock_limit_mhz": 1980.0}
    edit_ranks(root / "fsdp", lambda rank: rank["gpu"].update(known))
    assert difference(judge(root), "GPU clock reached")["values"]["ddp"] == "not to be had"
