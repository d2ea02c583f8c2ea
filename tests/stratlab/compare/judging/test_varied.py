"""Settings that say how one training is carried out: varied on purpose, they are compared as strategies are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratlab.compare.comparison import compare
from stratlab.compare.judging.fairness import AS_SEARCH
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import render_page
from tests.stratlab.example_run import build_run_dir

WAYS = ["micro_batch_size", "activation_checkpointing"]


def build_ways(root: Path, **larger: Any) -> None:
    """One strategy with two micro-batches, and another one with the larger of them, on a GPU."""
    on_gpu: dict[str, Any] = {"device": "cuda", "hosts": ["n"]}
    build_run_dir(root, "ddp-8", "ddp", **on_gpu, micro_batch_size=8, samples_per_s=1000.0)
    build_run_dir(root, "ddp-16", "ddp", **on_gpu, micro_batch_size=16, samples_per_s=1300.0, **larger)
    build_run_dir(root, "fsdp-16", "fsdp", **on_gpu, micro_batch_size=16, samples_per_s=1100.0)


def test_ways_to_carry_out_one_training_are_compared_as_strategies_are(tmp_path: Path) -> None:
    build_ways(tmp_path)
    apart = compare(load_runs(tmp_path))
    assert apart["fairness"]["verdict"] == "not comparable" and apart["winners"]["samples_per_s"] is None
    (told,) = [remark for remark in apart["remarks"] if "--varied" in remark]
    assert told.startswith(
        "the runs differ in how one training is carried out: with --varied micro_batch_size "
    )

    report = compare(load_runs(tmp_path), varied=WAYS)
    fairness = report["fairness"]
    assert fairness["verdict"] == "comparable" and fairness["groups"] == [["ddp-16", "ddp-8", "fsdp-16"]]
    assert fairness["reason"] == (
        "nothing that matters differs, other than micro_batch_size, which they are meant to differ in, and the "
        "strategy and what it implies"
    )
    assert report["winners"]["samples_per_s"] == "ddp-16"
    assert report["search"] is None and report["origin"]["repeats"] == 1
    assert report["noise"]["variants"] == [["ddp-16"], ["ddp-8"], ["fsdp-16"]]
    assert {pair["run"] for pair in report["attribution"]["pairs"] if pair["comparable"]} == {
        "ddp-8",
        "fsdp-16",
    }
    assert not any("--varied" in remark for remark in report["remarks"])
    assert ">varied<" in str(render_page(report, load_runs(tmp_path)))


def test_ways_whose_losses_disagree_are_another_training(tmp_path: Path) -> None:
    build_ways(tmp_path, loss_shift=0.1)
    report = compare(load_runs(tmp_path), varied=WAYS)
    assert report["fairness"]["verdict"] == "not comparable" and report["winners"]["samples_per_s"] is None
    assert report["fairness"]["groups"] == [["ddp-8", "fsdp-16"], ["ddp-16"]]


def test_another_difference_keeps_ways_apart(tmp_path: Path) -> None:
    build_ways(tmp_path, lr=0.5)
    assert compare(load_runs(tmp_path), varied=WAYS)["fairness"]["verdict"] == "not comparable"
    assert not any("--varied" in remark for remark in compare(load_runs(tmp_path))["remarks"])


def test_batch_norm_makes_another_training_of_another_micro_batch(tmp_path: Path) -> None:
    build_ways(tmp_path)
    for name, samples in (("ddp-8", 8), ("ddp-16", 16), ("fsdp-16", 16)):
        file = tmp_path / name / "config.json"
        config = json.loads(file.read_text())
        config["resolved"]["batch_norm_samples"] = samples
        file.write_text(json.dumps(config))
    report = compare(load_runs(tmp_path), varied=WAYS)
    assert report["fairness"]["verdict"] == AS_SEARCH and report["search"] is not None
    assert report["winners"]["samples_per_s"] is None
    assert not any("--varied" in remark for remark in compare(load_runs(tmp_path))["remarks"])
