"""Runs of a real GPU (tests/data/runs): what no CPU's run directory has, such as foreseen memory and NCCL."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest

from stratlab.analysis.analyze import analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from stratlab.compare.comparison import compare
from stratlab.compare.judging.rules import IMPLIED, RULES
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.banner import say_limits

RUNS = Path("tests/data/runs/h200")
NO_HTA = HtaLimits(memory_bytes=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "h200"))


def test_strategies_whose_memory_was_foreseen_are_comparable(root: Path) -> None:
    report = compare(load_runs(root))
    assert report["fairness"]["verdict"] == "comparable"
    foreseen = {
        run.name: json.loads((run / "config.json").read_text())["resolved"]["memory_forecast"]["peak_gib"]
        for run in root.iterdir()
        if run.is_dir()
    }
    assert len(foreseen) == 5 and len(set(foreseen.values())) > 1


def test_one_that_nobody_foresaw_is_comparable_with_them(root: Path) -> None:
    file = root / "vit_base-fsdp" / "config.json"
    config = json.loads(file.read_text())
    del config["resolved"]["memory_forecast"]
    file.write_text(json.dumps(config))
    assert compare(load_runs(root))["fairness"]["verdict"] == "comparable"


def test_the_table_knows_every_fact_of_them() -> None:
    named = {rule.path[:2] for rule in RULES if rule.source == "config"}
    for file in RUNS.glob("*/config.json"):
        config = json.loads(file.read_text())
        unknown = {
            (group, name)
            for group in ("config", "resolved")
            for name in config[group]
            if (group, name) not in named and name not in IMPLIED
        }
        assert unknown == set(), file


def test_a_sentence_that_begins_with_a_run_keeps_its_name(root: Path) -> None:
    limits = say_limits(compare(load_runs(root)))
    assert any(limit.startswith("vit_base-ddp is not complete: ") for limit in limits)
    assert "One repeat per strategy: there is no confidence interval." in limits


def test_their_traces_say_that_zero2_waits_for_the_host(root: Path) -> None:
    """134.8 ms of a recorded step, 92.2 alone; 40.1 and 1.6 ms of them the device had nothing to do."""
    waited = {}
    for name in ("vit_base-single", "vit_base-zero2"):
        (root / name / "traces").mkdir()
        with lzma.open(RUNS.parent / "traces" / f"{name}.json.xz") as packed:
            (root / name / "traces" / "rank0_trace.json").write_bytes(packed.read())
        mean = analyze_run(root / name, tracking_uri=None, hta_limits=NO_HTA)["mean"]
        share = mean["host_wait_pct"] + mean["launch_wait_pct"]  # until the launch, and until it started
        waited[name] = mean["step_ms"], share * mean["step_ms"] / 100
    assert waited["vit_base-single"] == pytest.approx((92.2, 1.6), abs=0.1)
    assert waited["vit_base-zero2"] == pytest.approx((134.8, 40.1), abs=0.1)
