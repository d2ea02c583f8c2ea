"""Runs that disturbed each other, or ran on machines that are not alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.rules import RULES
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir, write_json, write_lines

STRATEGIES = ("ddp", "fsdp", "zero2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for strategy in STRATEGIES:
        build_run_dir(tmp_path / "demo", strategy, strategy, device="cuda", hosts=["pod"])
    return tmp_path / "demo"


def move(run: Path, begun: float) -> None:
    """The whole run, to another time."""
    for name in ("attempts.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        shift = begun - json.loads((run / "attempts.jsonl").read_text().splitlines()[0])["t"]
        if name == "metrics.jsonl":
            shift = begun - (lines[0]["t"] - 0.012)
        write_lines(run / name, [line | {"t": line["t"] + shift} for line in lines])


def change_ranks(run: Path, change: Callable[[int, dict[str, Any]], None]) -> None:
    for path in sorted((run / "ranks").glob("*.json")):
        facts = json.loads(path.read_text())
        change(facts["rank"], facts)
        write_json(path, facts)


def difference(root: Path, field: str) -> dict[str, Any]:
    report = compare(load_runs(root))
    (entry,) = [e for e in report["fairness"]["differences"] if e["field"] == field]
    return entry | {"report": report}


def test_one_after_the_other_on_equal_machines_is_fair(root: Path) -> None:
    fairness = compare(load_runs(root))["fairness"]
    assert (fairness["verdict"], fairness["differences"]) == ("comparable", [])
    told = {"runs beside it": "none", "GPU clock reached": "full", "names of the nodes": ["node-1"]}
    assert {name: fairness["same"][name] for name in told} == told


def test_runs_at_work_on_one_node_at_one_time_are_not_compared(root: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        move(root / strategy, 2e9)
    entry = difference(root, "runs beside it")
    assert entry["values"] == {"ddp": "fsdp", "fsdp": "ddp", "zero2": "none"} and entry["matters"]
    report = entry["report"]
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["groups"] == [["ddp"], ["fsdp"], ["zero2"]]
    assert set(report["winners"].values()) == {None}


def test_on_different_nodes_at_one_time_they_do_not_disturb_each_other(root: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        move(root / strategy, 2e9)
    change_node(root / "fsdp", "node-2")
    report = compare(load_runs(root))
    assert report["fairness"]["verdict"] == "comparable"
    assert "on different nodes: ddp on node-1; fsdp on node-2; zero2 on node-1" in report["remarks"]
    (entry,) = report["fairness"]["differences"]
    assert (entry["field"], entry["matters"]) == ("names of the nodes", False)


def change_node(run: Path, node: str) -> None:
    change_ranks(run, lambda rank, facts: facts.update(node=node))
    lines = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
    write_lines(run / "attempts.jsonl", [line | {"nodes": [node]} for line in lines])


def test_a_run_that_begins_when_the_steps_are_done_takes_nothing_from_them(root: Path) -> None:
    """The example's steps take 0.7 s of the 60 s of its attempt: the rest is evaluation and writing."""
    move(root / "ddp", 2e9)
    move(root / "fsdp", 2e9 + 30)  # its own steps are made while ddp is still there
    assert difference(root, "runs beside it")["values"] == {"ddp": "none", "fsdp": "ddp", "zero2": "none"}


@pytest.mark.parametrize("status", ["failed", "unfinished"])
def test_a_run_that_never_ended_well_disturbs_as_much(root: Path, status: str) -> None:
    build_run_dir(root, "lost", "hsdp", device="cuda", hosts=["pod"], status=status)
    move(root / "lost", 2e9)
    move(root / "fsdp", 2e9)
    assert difference(root, "runs beside it")["values"] == {"ddp": "none", "fsdp": "lost", "zero2": "none"}


def test_without_the_node_nobody_knows(root: Path) -> None:
    lines = [json.loads(line) for line in (root / "fsdp" / "attempts.jsonl").read_text().splitlines()]
    write_lines(root / "fsdp" / "attempts.jsonl", [line | {"nodes": []} for line in lines])
    move(root / "fsdp", 2e9)
    move(root / "ddp", 2e9)
    found = difference(root, "runs beside it")["values"]
    assert found == {"ddp": "unknown", "fsdp": "unknown", "zero2": "none"}


def test_two_pods_on_one_node_are_not_two_nodes(root: Path) -> None:
    change_ranks(root / "fsdp", lambda rank, facts: facts.update(node=f"node-{rank}"))
    entry = difference(root, "ranks on each node")
    assert entry["values"] == {"ddp": [2], "fsdp": [1, 1], "zero2": [2]} and entry["matters"]


GPU_CHANGES = {
    "GPU power_limit_w": ({"power_limit_w": 350.0}, "350.0"),
    "GPU clock_limit_mhz": ({"clock_limit_mhz": 2010.0}, "2010.0"),
    "GPU memory_clock_limit_mhz": ({"memory_clock_limit_mhz": 1593.0}, "1593.0"),
    "GPU clock reached": ({"highest_clock_mhz": 1200.0}, "about 60 % of 1,980 MHz"),
    "GPU slowed by heat or a power brake": ({"slowed_pct": 12.4}, "12 % of the time"),
}


@pytest.mark.parametrize("field", GPU_CHANGES)
def test_gpus_at_another_clock_are_not_compared(root: Path, field: str) -> None:
    changes, value = GPU_CHANGES[field]
    change_ranks(root / "fsdp", lambda rank, facts: facts["gpu"].update(changes))
    entry = difference(root, field)
    assert entry["values"]["fsdp"] == value != entry["values"]["ddp"] and entry["matters"]
    assert entry["report"]["fairness"]["verdict"] == "not comparable"
    assert entry["report"]["fairness"]["groups"][0] == ["ddp", "zero2"]


def test_one_slow_gpu_of_two_is_enough(root: Path) -> None:
    change_ranks(
        root / "fsdp", lambda rank, facts: facts["gpu"].update(highest_clock_mhz=1200.0 if rank else 1980.0)
    )
    assert difference(root, "GPU clock reached")["values"]["fsdp"] == "about 60 % of 1,980 MHz"


def test_a_clock_that_no_run_recorded_forbids_nothing(root: Path) -> None:
    """NVML is not to be had everywhere."""
    for strategy in STRATEGIES:
        change_ranks(root / strategy, lambda rank, facts: facts.update(gpu=dict.fromkeys(facts["gpu"])))
    assert compare(load_runs(root))["fairness"]["verdict"] == "comparable"
    change_ranks(
        root / "fsdp",
        lambda rank, facts: facts["gpu"].update(highest_clock_mhz=1980.0, clock_limit_mhz=1980.0),
    )
    assert difference(root, "GPU clock reached")["values"]["ddp"] == "not to be had"


def test_every_rule_about_the_place_has_its_test() -> None:
    rules = {rule.field for rule in RULES if rule.source == "place" or rule.path[:1] == ("gpu",)}
    assert rules == {*GPU_CHANGES, "runs beside it", "ranks on each node", "names of the nodes"}
