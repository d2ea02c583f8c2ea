"""Runs of a real GPU (tests/data/runs): what no CPU's run directory has, such as foreseen memory and NCCL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from stratlab.compare.comparison import compare
from stratlab.compare.judging.rules import IMPLIED, RULES
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.banner import say_limits
from tests.stratlab.compare.building import edit

RUNS = Path("tests/data/runs/h200")


def test_strategies_whose_memory_was_foreseen_are_comparable(tmp_path: Path) -> None:
    root = Path(shutil.copytree(RUNS, tmp_path / "h200"))
    report = compare(load_runs(root))
    assert report["fairness"]["verdict"] == "comparable" and len(report["runs"]) == 5
    assert any(limit.startswith("vit_base-ddp ") for limit in say_limits(report)), (
        "a run's name stays as it is"
    )
    edit(root / "vit_base-fsdp" / "config.json", lambda config: config["resolved"].pop("memory_forecast"))
    assert compare(load_runs(root))["fairness"]["verdict"] == "comparable", "one that nobody foresaw"


def test_the_table_knows_every_fact_of_them() -> None:
    named = {rule.path[:2] for rule in RULES if rule.source == "config"}
    configs = [json.loads(file.read_text()) for file in RUNS.glob("*/config.json")]
    facts = {
        (group, name) for config in configs for group in ("config", "resolved") for name in config[group]
    }
    assert {(group, name) for group, name in facts - named if name not in IMPLIED} == set() != facts
