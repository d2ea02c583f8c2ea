"""A language model under FSDP, in two and in five dimensions: three charts, eight processes each, one comparison."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsals.test_comparison import stratlab

CHARTS = {"fsdp": None, "llm-2d": "pp2.dp4", "llm-5d": "pp2.dp2.tp2+sp.ep4"}
PROCESSES = 8


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm")
    charts = [f"charts/{name}" for name in CHARTS]
    values = ("--values", "examples/llm_tiny.yaml", "--processes", str(PROCESSES))
    fewer = ("--set", "run.config.steps=8", "--set", "run.config.profile_steps=1")
    done = stratlab("rehearse", *charts, *values, *fewer, "--results", folder / "runs")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    done = stratlab("compare", folder / "runs" / "llm-tiny", "--output", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def rows(results: Path) -> dict[str, dict[str, Any]]:
    report = json.loads((results / "report.json").read_text())
    assert report["fairness"]["verdict"] == "comparable"
    return {row["run"]: row for row in report["runs"]}


def test_every_layout_is_complete_and_says_what_it_is(rows: dict[str, dict[str, Any]]) -> None:
    assert {name: row["layout"] for name, row in rows.items()} == CHARTS
    for row in rows.values():
        assert row["complete"] and not row["degenerate"] and row["world_size"] == PROCESSES
        assert len(row["phases_present"]) == PROCESSES
        assert all(all(phases.values()) for phases in row["phases_present"].values())
        assert row["tokens_per_s"] >= row["useful_tokens_per_s"] > 0
        assert row["test_perplexity"] > 1 and row["mfu_pct"] is None  # no peak is known for a CPU


def test_they_train_the_same(rows: dict[str, dict[str, Any]], results: Path) -> None:
    losses = []
    for name in CHARTS:
        lines = (results / "runs" / "llm-tiny" / name / "metrics.jsonl").read_text().splitlines()
        losses.append([x["loss"] for x in map(json.loads, lines) if x["kind"] == "train"])
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], abs=1e-4)
    assert max(r["test_loss"] for r in rows.values()) - min(r["test_loss"] for r in rows.values()) < 1e-4


def test_the_bubble_and_the_traffic_of_each_axis_are_told(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["fsdp"]["bubble_ideal_pct"] is None
    for name, micro_batches in (("llm-2d", 4), ("llm-5d", 8)):  # 16 rows among dp
        assert rows[name]["grad_accum_steps"] == micro_batches
        assert 0 < rows[name]["bubble_ideal_pct"] <= 100 / (micro_batches + 1)
        assert rows[name]["bubble_pct"] > 0
    axes = {name: {a for a, sent in row["wire_bytes_per_axis"].items() if sent} for name, row in rows.items()}
    assert axes["fsdp"] == {"dp_shard"}
    assert {"pp", "dp_shard"} <= axes["llm-2d"] and not {"tp", "ep"} & axes["llm-2d"]
    assert {"pp", "tp", "ep", "dp_shard"} <= axes["llm-5d"]
