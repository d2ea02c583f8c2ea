"""Runs that are meant to differ: what is accepted, what is still caught, who is best and when nobody is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.fairness import AS_SEARCH
from stratlab.compare.publishing import describe
from stratlab.compare.report_files import render_page
from stratlab.compare.rules import RULES
from stratlab.compare.run_sources import keep_varied, load_runs, read_varied
from stratlab.compare.search_ranking import ON_TEST, say_search
from stratlab.compare.summary_view import build_markdown
from stratlab.compare.terminal_view import list_answers
from stratlab.compare.variants import FACTS_FOLLOWING, parse_varied
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import Report, difference, edit, edit_ranks, judge, resolve

RATES = {"a": 0.001, "b": 0.01, "c": 0.1}


def search(root: Path, runs: Mapping[str, Mapping[str, Any]], *varied: str, **common: Any) -> Report:
    """Runs of ddp on a CPU, 10,000 validation samples; each rate and each seed has losses of its own."""
    for name, given in runs.items():
        changes = {"strategy": "ddp", "lr": 0.001, "validation_samples": 10_000, **common, **given}
        optimizer = changes.pop("optimizer", "adamw")  # also a kind of what a rank holds
        shift = changes.pop("bent", 0.0) + changes["lr"] + changes.get("seed", 0) + 2.0 * (optimizer == "sgd")
        judge(root, {name: {"device": "cpu", "loss_shift": shift + changes.get("momentum", 0), **changes}})
        edit(
            root / name / "config.json", lambda config, one=optimizer: config["config"].update(optimizer=one)
        )
        kept = ["float32"] if optimizer == "adamw" or changes.get("momentum") else []
        edit_ranks(root / name, lambda rank, kept=kept: rank["dtypes"].update(optimizer=kept))
    return compare(load_runs(root), varied=varied)


def points(*accuracies: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    """One point for each rate, one run for each seed."""
    return {
        f"{name}{seed}": {"lr": lr, "seed": seed, "validation_accuracy_pct": value}
        for (name, lr), values in zip(RATES.items(), accuracies, strict=False)
        for seed, value in enumerate(values)
    }


def test_a_search_ranks_and_names_the_best_on_every_page(tmp_path: Path) -> None:
    report = search(tmp_path, points((90.0, 90.2), (94.0, 94.2), (80.0, 80.2)), "lr")
    found = report["search"]
    assert report["fairness"]["verdict"] == AS_SEARCH and "lr, seed" in report["fairness"]["reason"]
    assert [point["settings"] for point in found["points"]] == [{"lr": 0.01}, {"lr": 0.001}, {"lr": 0.1}]
    assert [point["value"] for point in found["points"]] == pytest.approx([94.1, 90.1, 80.1])
    assert found["best"] == {"lr": 0.01} and found["left_out"] == []
    # s = 0.1414 in each point, t(3) = 3.182, of the difference of two means of two
    assert found["points"][1]["noise"] == pytest.approx(3.182 * 0.02**0.5) and "0.45 %" in found["reason"]
    assert set(report["winners"].values()) == {None}, "speed is not ranked over other settings"
    said, page, text = say_search(found)[0], render_page(report, load_runs(tmp_path)), build_markdown(report)
    assert said[1:] in describe(report) and said in [told for _, told in list_answers(report)]
    assert "<h2>Search</h2>" in page and "| 1 | 0.01 | 94.1 |" in text
    apart = compare(load_runs(tmp_path))
    assert apart["fairness"]["verdict"] == "not comparable" and apart["search"] is None
    assert apart["fairness"]["search_groups"] == []


def test_inside_the_noise_of_seeds_nobody_is_best(tmp_path: Path) -> None:
    found = search(tmp_path, points((93.0, 95.0), (94.0, 96.0), (80.0, 82.0)), "lr")["search"]
    assert found["best"] is None and [point["within_noise"] for point in found["points"]] == [
        True,
        True,
        False,
    ]


def test_runs_of_one_seed_are_no_repeats(tmp_path: Path) -> None:
    """Three equal runs of one seed would show no spread at all."""
    runs = {
        f"r{lr}-{i}": {"lr": lr, "validation_accuracy_pct": value}
        for lr, value in ((0.001, 94.0), (0.01, 94.3))
        for i in range(3)
    }
    found = search(tmp_path, runs, "lr")["search"]
    assert [point["seeds"] for point in found["points"]] == [1, 1] and found["noise"]["degrees"] == 0
    assert found["best"] is None and "10000" in found["reason"]


def test_a_few_validation_samples_decide_little(tmp_path: Path) -> None:
    few = search(tmp_path / "few", points((90.0,), (94.0,)), "lr", validation_samples=144)["search"]
    many = search(tmp_path / "many", points((90.0,), (94.0,)), "lr")["search"]
    assert few["best"] is None and many["best"] == {"lr": 0.01}
    assert few["points"][1]["noise"] == pytest.approx(196 * ((0.94 * 0.06 + 0.9 * 0.1) / 144) ** 0.5)


@pytest.mark.parametrize(
    ("seeds", "shift", "degrees", "noise"), [((0,), 1.25, 0, 2.5), ((0, 1), 1.5, 2, 3.0)]
)
def test_a_lead_must_exceed_what_strategies_of_one_seed_differ_by(
    tmp_path: Path, seeds: tuple[int, ...], shift: float, degrees: int, noise: float
) -> None:
    """Seeds spread by 0.1 %, but two strategies of one seed by more."""
    runs = {
        f"{strategy}-{lr}-{seed}": {
            "strategy": strategy, "lr": lr, "seed": seed, "validation_accuracy_pct": base + 0.1 * seed + sign * shift,
        }
        for lr, base in ((0.001, 90.0), (0.01, 92.0))
        for seed in seeds
        for strategy, sign in (("ddp", 1), ("fsdp", -1))
    }  # fmt: skip
    found = search(tmp_path, runs, "lr")["search"]
    assert found["noise"]["degrees"] == degrees and found["best"] is None
    assert found["points"][1]["noise"] == pytest.approx(noise, abs=0.1)
    assert found["points"][0]["strategies"] == ["ddp", "fsdp"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"weight_decay": 0.5}, "weight_decay"),
        ({"torch": "2.12.1"}, "torch"),
        ({"global_batch_size": 32, "grad_accum_steps": 1}, "global_batch_size"),
    ],
)
def test_a_run_that_differs_in_something_else_is_not_ranked(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    runs = points((90.0,), (92.0,), (99.0,))
    runs["c0"] |= change
    report = search(tmp_path, runs, "lr")
    assert report["fairness"]["verdict"] == "not comparable" and field in report["fairness"]["reason"]
    (left_out,) = report["search"]["left_out"]
    assert left_out["run"] == "c0" and field in left_out["why"]
    assert report["search"]["best"] == {"lr": 0.01}, "the odd one, with 99 %, is nobody's rival"


SGD = {"optimizer": "sgd"}


@pytest.mark.parametrize(
    ("one", "other", "varied", "follows"),
    [
        ({}, SGD | {"beta1": 0.5}, "optimizer", ["beta1", "optimizer dtypes"]),
        (SGD | {"momentum": 0.0}, SGD | {"momentum": 0.9}, "momentum", ["optimizer dtypes"]),
        ({"seed": 0}, {"seed": 1, "data_order_sha256": "b"}, "lr", ["data_order_sha256"]),
        # nobody said that rates differ, though each optimizer has one of its own
        ({}, SGD | {"lr": 0.1}, "optimizer", None),
        ({"lr": 0.001}, {"lr": None, "bent": -1.0}, "lr", None),
    ],
)
def test_what_follows_from_a_varied_setting_is_accepted_and_what_goes_along_is_not(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], varied: str, follows: list[str] | None
) -> None:
    if "bent" in other:  # not told
        search(tmp_path, {"one": one, "other": {}})
        edit(tmp_path / "other" / "config.json", lambda config: config["config"].update(lr=None))
        report = compare(load_runs(tmp_path), varied=[varied])
    else:
        report = search(tmp_path, {"one": one, "other": other}, varied)
    assert report["fairness"]["verdict"] == ("not comparable" if follows is None else AS_SEARCH)
    for field in follows or []:
        assert difference(report, field)["varied"] == (varied if varied != "lr" else "seed")


def test_other_weights_follow_from_another_depth_and_another_teacher(tmp_path: Path) -> None:
    assert {field for follows in FACTS_FOLLOWING.values() for field in follows} <= {
        rule.field for rule in RULES
    }
    counts = ("parameters", "trainable_parameters", "flops_per_sample")
    for varied, values in (("model_layers", (2, 3)), ("teacher", ("t/a", "t/b"))):
        root = tmp_path / varied
        search(root, {str(i): {varied: value, "bent": float(i)} for i, value in enumerate(values)})
        for i in (0, 1):
            facts = {**dict.fromkeys(counts, 1000 * i + 1), "initial_weights_sha256": str(i)}
            resolve(root / str(i), **(facts if varied == "model_layers" else {"teacher_sha256": str(i)}))
        report = compare(load_runs(root), varied=[varied])
        assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]


def test_what_follows_must_be_the_same_for_the_same_value(tmp_path: Path) -> None:
    """Momentum that differs between two runs of one optimizer does not follow from it."""
    runs = {"a": {}, "b": SGD | {"momentum": 0.9}, "odd": SGD | {"momentum": 0.5, "lr": 0.1}}
    report = search(tmp_path, runs, "optimizer", "lr")
    assert report["fairness"]["verdict"] == "not comparable" and "momentum" in report["fairness"]["reason"]
    assert difference(report, "momentum")["varied"] == ""


def test_equal_runs_and_those_without_any_optimizer_state_are_plainly_comparable(tmp_path: Path) -> None:
    report = search(tmp_path, {"one": SGD, "two": SGD}, "lr")
    assert report["fairness"]["verdict"] == "comparable" and len(report["search"]["points"]) == 1


def test_strategies_at_one_point_must_compute_the_same(tmp_path: Path) -> None:
    runs = {
        f"{s}-{lr}": {"strategy": s, "lr": lr, "bent": 0.3 * ((s, lr) in (("zero2", 0.01), ("fsdp", 0.1)))}
        for lr, strategies in ((0.001, ("ddp",)), (0.01, ("ddp", "fsdp", "zero2")), (0.1, ("ddp", "fsdp")))
        for s in strategies
    }
    report = search(tmp_path, runs, "lr")
    assert report["fairness"]["verdict"] == "not comparable"
    left_out = {entry["run"] for entry in report["search"]["left_out"]}
    assert left_out == {"zero2-0.01", "ddp-0.1", "fsdp-0.1"}, "of two that disagree neither is ranked"


def test_batches_that_see_other_amounts_of_data_are_said(tmp_path: Path) -> None:
    larger = {"global_batch_size": 128, "grad_accum_steps": 2, "data_order_sha256": "other", "bent": 0.1}
    report = search(tmp_path, {"a": {}, "b": larger}, "global_batch_size")
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]
    (remark,) = report["search"]["remarks"]
    assert {"3,840", "7,680"} <= set(remark.split()) and "run.config.epochs" in remark
    for path in tmp_path.glob("*/config.json"):
        edit(path, lambda config: config["config"].update(steps=0, epochs=3))
    (remark,) = compare(load_runs(tmp_path), varied=["global_batch_size"])["search"]["remarks"]
    assert "run.config" not in remark


def test_what_is_ranked_by(tmp_path: Path) -> None:
    none = {"validation_accuracy_pct": None}
    tested = {"a": {"test_accuracy_pct": 70.0}, "b": {"lr": 0.01, "test_accuracy_pct": 90.0}}
    found = search(tmp_path / "test", tested, "lr", test_samples=10_000, **none)["search"]
    assert found["goal"]["key"] == "test_accuracy_pct" and found["remarks"] == [ON_TEST]
    assert found["best"] == {"lr": 0.01}
    losses = {
        name: {"lr": lr, "validation_loss": loss}
        for (name, lr), loss in zip(RATES.items(), (0.5, 0.4, 0.402), strict=True)
    }
    found = search(tmp_path / "loss", losses, "lr", test_accuracy_pct=None, **none)["search"]
    assert [point["settings"]["lr"] for point in found["points"]] == [0.01, 0.1, 0.001] and found[
        "best"
    ] is None
    silent = {name: {"lr": lr, "validation_loss": None} for name, lr in RATES.items()}
    found = search(tmp_path / "none", silent, "lr", test_accuracy_pct=None, **none)["search"]
    assert found["goal"] is None and found["best"] is None


def test_names_of_what_is_varied(tmp_path: Path) -> None:
    assert parse_varied("lr, run.config.optimizer,lr") == ("lr", "optimizer") and parse_varied("") == ()
    with pytest.raises(UserError) as refused:
        search(tmp_path, {"a": {}}, "dataset", "optimiser", "lr")
    assert find_codes(refused.value) == ["SL-varied-refused", "SL-varied-no-setting"]
    assert {"dataset", "optimiser", "optimizer?;"} <= set(str(refused.value).split())


def test_the_names_lie_beside_the_runs(tmp_path: Path) -> None:
    assert read_varied(tmp_path) == ()
    keep_varied(tmp_path, ("lr", "optimizer"))
    assert read_varied(tmp_path) == ("lr", "optimizer")
    (tmp_path / "varied.json").write_text('{"varied": "lr"}')
    with pytest.raises(UserError) as refused:
        read_varied(tmp_path)
    assert find_codes(refused.value) == ["SL-varied-file"]
