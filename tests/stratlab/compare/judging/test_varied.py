"""Settings that say how one training is carried out: varied on purpose, they are compared as strategies are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratlab.compare.comparison import compare
from stratlab.compare.judging.fairness import AS_SEARCH, HOW
from stratlab.compare.judging.varied import CARRIED_OUT
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import render_page
from tests.stratlab.example_run import build_run_dir
from trainer.settings.continuation import MAY_DIFFER

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
    (way,) = [entry for entry in report["fairness"]["differences"] if entry["varied"]]
    assert way["why"].endswith(HOW) and "is the same" not in way["why"]  # which these losses do not tell


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
    assert all(entry["matters"] for entry in report["fairness"]["differences"] if entry["varied"])
    assert report["winners"]["samples_per_s"] is None
    assert not any("--varied" in remark for remark in compare(load_runs(tmp_path))["remarks"])


def test_beside_a_search_ways_are_one_point_and_other_seeds_make_no_search(tmp_path: Path) -> None:
    for lr, accuracy in ((0.001, 95.0), (0.01, 60.0)):
        for micro in (8, 16):
            name = f"lr{lr}-{micro}"
            facts: dict[str, Any] = {"validation_samples": 10_000, "validation_accuracy_pct": accuracy}
            build_run_dir(
                tmp_path / "a",
                name,
                "ddp",
                hosts=["n"],
                lr=lr,
                micro_batch_size=micro,
                loss_shift=lr,
                **facts,
            )
    report = compare(load_runs(tmp_path / "a"), varied=["lr", "micro_batch_size"])
    assert report["fairness"]["verdict"] == AS_SEARCH and len(report["search"]["points"]) == 2
    assert report["search"]["varied"] == ["lr"] and report["search"]["best"] == {"lr": 0.001}

    for seed in (0, 1):
        for micro in (8, 16):
            build_run_dir(
                tmp_path / "b", f"s{seed}-{micro}", "ddp", hosts=["n"], seed=seed, micro_batch_size=micro,
                loss_shift=float(seed), initial_weights_sha256=str(seed), data_order_sha256=str(seed),
            )  # fmt: skip
    report = compare(load_runs(tmp_path / "b"), varied=["micro_batch_size"])
    assert report["search"] is None and [len(group) for group in report["fairness"]["groups"]] == [2, 2]


def test_a_way_is_suggested_where_that_helps(tmp_path: Path) -> None:
    def suggest(root: Path, *varied: str) -> list[str]:
        remarks = compare(load_runs(root), varied=varied)["remarks"]
        return [
            remark.partition("--varied ")[2].partition(" ")[0] for remark in remarks if "--varied" in remark
        ]

    for name, lr, micro in (("a", 0.1, 8), ("b", 0.2, 16)):
        build_run_dir(tmp_path / "lr", name, "ddp", hosts=["n"], lr=lr, micro_batch_size=micro)
    assert suggest(tmp_path / "lr") == [] and suggest(tmp_path / "lr", "lr") == ["lr,micro_batch_size"]

    for name in ("a", "b"):
        build_run_dir(tmp_path / "old", name, "ddp", hosts=["n"], compile=True)
    change(tmp_path / "old" / "b", lambda config: config["config"].pop("compile"))
    assert suggest(tmp_path / "old") == []  # what is not known stays so

    for name, place in (("a", "device"), ("b", "host")):
        build_run_dir(tmp_path / "place", name, "ddp", hosts=["n"])
        change(
            tmp_path / "place" / name,
            lambda config, place=place: config["resolved"].update(data_residence=place),
        )
    assert suggest(tmp_path / "place") == []  # nobody has asked for it
    for name in ("a", "b"):
        change(
            tmp_path / "place" / name, lambda config, name=name: config["config"].update(data_residence=name)
        )
    assert suggest(tmp_path / "place") == ["data_residence"]
    report = compare(load_runs(tmp_path / "place"), varied=["data_residence"])
    assert report["fairness"]["verdict"] == "comparable"
    assert [row["way"] for row in report["runs"]] == [
        "resolved.data_residence=device",
        "resolved.data_residence=host",
    ]


def test_two_words_for_one_place_are_repeats(tmp_path: Path) -> None:
    for name, peak in (("auto", 1.8), ("device", 1.7)):
        build_run_dir(tmp_path, name, "ddp", device="cuda", hosts=["n"], peak_memory_gib=peak)
        change(tmp_path / name, lambda config, name=name: config["config"].update(data_residence=name))
    report = compare(load_runs(tmp_path), varied=["data_residence"])
    assert [row["way"] for row in report["runs"]] == ["", ""] and report["origin"]["repeats"] == 2
    assert report["winners"]["peak_memory_gib"] is None
    assert report["winner_reasons"]["peak_memory_gib"] == "all runs are repeats of one strategy"


def test_ways_beside_a_setting_that_does_not_differ_are_no_points(tmp_path: Path) -> None:
    build_ways(tmp_path)
    report = compare(load_runs(tmp_path), varied=["lr", "micro_batch_size"])
    assert report["fairness"]["verdict"] == "comparable" and report["winners"]["samples_per_s"] == "ddp-16"
    assert len(report["search"]["points"]) == 1


def test_what_does_not_change_the_training_does_not_keep_a_run_from_going_on() -> None:
    assert {*CARRIED_OUT} <= {*MAY_DIFFER}


def change(run: Path, apply: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((run / "config.json").read_text())
    apply(config)
    (run / "config.json").write_text(json.dumps(config))
