"""Settings that say how one training is carried out: varied on purpose, they are compared as strategies are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stratlab.compare.comparison import compare
from stratlab.compare.fairness import AS_SEARCH
from stratlab.compare.run_sources import load_runs
from stratlab.compare.variants import CARRIED_OUT
from stratlab_spec.settings.rules import MAY_DIFFER
from tests.stratlab.compare.building import Report, build, edit, judge, resolve

WAYS = ["micro_batch_size", "activation_checkpointing"]


def build_ways(root: Path, **larger: Any) -> Path:
    """One strategy with two micro-batches, and another one with the larger of them."""
    runs = {
        "ddp-8": {"micro_batch_size": 8, "samples_per_s": 1000.0},
        "ddp-16": {"micro_batch_size": 16, "samples_per_s": 1300.0, **larger},
        "fsdp-16": {"micro_batch_size": 16, "samples_per_s": 1100.0},
    }
    return build(root, runs)


def suggest(report: Report) -> list[str]:
    """What --vary is said to help with."""
    found = [remark.partition("--vary ")[2] for remark in report["remarks"]]
    return [said.partition(" ")[0] for said in found if said]


def test_ways_to_carry_out_one_training_are_compared_as_strategies_are(tmp_path: Path) -> None:
    apart = judge(build_ways(tmp_path))
    assert apart["fairness"]["verdict"] == "not comparable" and apart["winners"]["samples_per_s"] is None
    assert suggest(apart) == ["micro_batch_size"]
    report = judge(tmp_path, asked={"varied": [*WAYS, "lr"]})
    assert (
        report["fairness"]["verdict"] == "comparable" and "micro_batch_size" in report["fairness"]["reason"]
    )
    assert report["fairness"]["groups"] == [["ddp-16", "ddp-8", "fsdp-16"]]
    assert report["winners"]["samples_per_s"] == "ddp-16" and report["origin"]["repeats"] == 1
    assert report["noise"]["variants"] == [["ddp-16"], ["ddp-8"], ["fsdp-16"]]
    assert {p["run"] for p in report["attribution"]["pairs"] if p["comparable"]} == {"ddp-8", "fsdp-16"}
    assert suggest(report) == [] and len(report["search"]["points"]) == 1, "of what differs in nothing"
    assert judge(tmp_path, asked={"varied": WAYS})["search"] is None


def test_ways_whose_losses_disagree_are_another_training(tmp_path: Path) -> None:
    report = judge(build_ways(tmp_path, loss_shift=0.1), asked={"varied": WAYS})
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["groups"] == [["ddp-8", "fsdp-16"], ["ddp-16"]]


def test_another_difference_keeps_ways_apart(tmp_path: Path) -> None:
    build_ways(tmp_path, lr=0.5)
    assert judge(tmp_path, asked={"varied": WAYS})["fairness"]["verdict"] == "not comparable"
    assert suggest(judge(tmp_path)) == []


def test_batch_norm_makes_another_training_of_another_micro_batch(tmp_path: Path) -> None:
    build_ways(tmp_path)
    for name in ("ddp-8", "ddp-16", "fsdp-16"):
        resolve(tmp_path / name, batch_norm_samples=int(name.partition("-")[2]))
    report = judge(tmp_path, asked={"varied": WAYS})
    assert report["fairness"]["verdict"] == AS_SEARCH and report["search"] is not None
    assert all(entry["matters"] for entry in report["fairness"]["differences"] if entry["varied"])
    assert report["winners"]["samples_per_s"] is None and suggest(judge(tmp_path)) == []


def test_beside_a_search_ways_are_one_point_and_other_seeds_make_no_search(tmp_path: Path) -> None:
    runs = {
        f"ddp-{lr}-{micro}": {
            "lr": lr,
            "micro_batch_size": micro,
            "loss_shift": lr,
            "validation_accuracy_pct": accuracy,
        }
        for lr, accuracy in ((0.001, 95.0), (0.01, 60.0))
        for micro in (8, 16)
    }
    report = judge(tmp_path / "a", runs, {"varied": ["lr", "micro_batch_size"]}, validation_samples=10_000)
    assert report["fairness"]["verdict"] == AS_SEARCH and len(report["search"]["points"]) == 2
    assert report["search"]["varied"] == ["lr"] and report["search"]["best"] == {"lr": 0.001}
    seeds = {
        f"ddp-{seed}-{micro}": {"seed": seed, "micro_batch_size": micro, "loss_shift": float(seed)}
        for seed in (0, 1)
        for micro in (8, 16)
    }
    report = judge(tmp_path / "b", seeds, {"varied": ["micro_batch_size"]})
    assert report["search"] is None and [len(group) for group in report["fairness"]["groups"]] == [4]


def test_a_way_is_suggested_where_that_helps(tmp_path: Path) -> None:
    rates = build(tmp_path / "lr", {f"ddp-{i}": {"lr": i / 10, "micro_batch_size": 8 * i} for i in (1, 2)})
    assert suggest(judge(rates)) == []
    assert suggest(judge(rates, asked={"varied": ["lr"]})) == ["lr,micro_batch_size"]
    old = build(tmp_path / "old", ["ddp-a", "ddp-b"], compile=True)
    edit(old / "ddp-b" / "config.json", lambda config: config["config"].pop("compile"))
    assert suggest(judge(old)) == [], "what is not known stays so"
    place = build(tmp_path / "place", ["ddp-device", "ddp-host"])
    for run in ("device", "host"):
        resolve(place / f"ddp-{run}", data_residence=run)
    assert suggest(judge(place)) == [], "nobody has asked for it"
    for run in ("device", "host"):
        change = {"data_residence": run}
        edit(place / f"ddp-{run}" / "config.json", lambda config, to=change: config["config"].update(to))
    assert suggest(judge(place)) == ["data_residence"]
    report = judge(place, asked={"varied": ["data_residence"]})
    assert report["fairness"]["verdict"] == "comparable"
    assert [row["way"].partition("=")[2] for row in report["runs"]] == ["device", "host"]


def test_two_words_for_one_place_are_repeats(tmp_path: Path) -> None:
    build(tmp_path, {"ddp-auto": {"peak_memory_gib": 1.8}, "ddp-device": {"peak_memory_gib": 1.7}})
    edit(tmp_path / "ddp-device/config.json", lambda config: config["config"].update(data_residence="device"))
    report = compare(load_runs(tmp_path), varied=["data_residence"])
    assert [row["way"] for row in report["runs"]] == ["", ""] and report["origin"]["repeats"] == 2
    assert report["winners"]["peak_memory_gib"] is None


def test_what_does_not_change_the_training_does_not_keep_a_run_from_going_on() -> None:
    assert {*CARRIED_OUT} <= {*MAY_DIFFER}
