"""Runs of a real GPU (tests/data/runs): what no CPU's run directory has, such as foreseen memory and NCCL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.rules import IMPLIED, RULES
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import say_limits

RUNS = Path("tests/data/runs/h200")


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
