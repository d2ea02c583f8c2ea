"""Runs that are meant to differ: what is accepted, what is still caught, who is best and when nobody is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.fairness import AS_SEARCH
from stratlab.compare.judging.ranking import ON_TEST, say_search
from stratlab.compare.judging.rules import RULES
from stratlab.compare.judging.varied import FOLLOWING, REFUSED, parse_varied
from stratlab.compare.mlflow_entry import describe
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.reading.kept_varied import keep_varied, read_varied
from stratlab.compare.showing.report_files import render_page
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.terminal_table import terminal_table
from stratlab.user_error import UserError
from tests.stratlab.example_run import build_run_dir

RATES = {"a": 0.001, "b": 0.01, "c": 0.1}


def build(root: Path, run: str, accuracy: float | None, strategy: str = "ddp", **changes: Any) -> None:
    status, optimizer = changes.pop("status", "finished"), changes.pop("optimizer", "adamw")
    changes = {"validation_samples": 10_000, "validation_accuracy_pct": accuracy, **changes}
    build_run_dir(root, run, strategy, hosts=["n"], status=status, **changes)
    file = root / run / "config.json"  # `optimizer` is also a kind of what a rank holds
    config = json.loads(file.read_text())
    config["config"]["optimizer"] = optimizer
    file.write_text(json.dumps(config))
    for file in (root / run / "ranks").glob("rank*.json"):
        rank = json.loads(file.read_text())
        rank["dtypes"]["optimizer"] = ["float32"] if optimizer == "adamw" or changes.get("momentum") else []
        file.write_text(json.dumps(rank))


def search_rates(root: Path, *accuracies: tuple[float, ...], **changes: Any) -> dict[str, Any]:
    """One point for each rate, one run for each seed."""
    for (name, lr), values in zip(RATES.items(), accuracies, strict=False):
        for seed, accuracy in enumerate(values):
            build(root, f"{name}{seed}", accuracy, lr=lr, seed=seed, loss_shift=lr + seed, **changes)
    return compare(load_runs(root), varied=["lr"])


def test_names_with_and_without_their_prefix() -> None:
    assert parse_varied("lr, run.config.optimizer,lr") == ("lr", "optimizer")
    assert parse_varied("") == ()


def test_every_fact_that_follows_is_one_of_the_audit() -> None:
    fields = {rule.field for rule in RULES}
    assert {field for follows in FOLLOWING.values() for field in follows} <= fields


def test_a_search_ranks_and_names_the_best(tmp_path: Path) -> None:
    report = search_rates(tmp_path, (90.0, 90.2), (94.0, 94.2), (80.0, 80.2))
    assert report["fairness"]["verdict"] == AS_SEARCH
    assert report["fairness"]["reason"] == (
        "the runs differ in lr, seed, as they are meant to, and in nothing else that matters"
    )
    search = report["search"]
    assert [point["settings"] for point in search["points"]] == [{"lr": 0.01}, {"lr": 0.001}, {"lr": 0.1}]
    assert [point["value"] for point in search["points"]] == pytest.approx([94.1, 90.1, 80.1])
    assert search["best"] == {"lr": 0.01} and search["left_out"] == []
    # s = 0.1414 in each point, t(3) = 3.182, of the difference of two means of two
    assert search["points"][1]["noise"] == pytest.approx(3.182 * 0.02**0.5)
    assert "ahead by more than the noise of 0.45 %" in search["reason"]
    assert set(report["winners"].values()) == {None}, "speed is not ranked over other settings"


def test_without_the_names_the_same_runs_are_not_comparable(tmp_path: Path) -> None:
    search_rates(tmp_path, (90.0,), (94.0,))
    report = compare(load_runs(tmp_path))
    assert report["fairness"]["verdict"] == "not comparable" and report["search"] is None
    assert report["fairness"]["search_groups"] == []


def test_inside_the_noise_of_seeds_nobody_is_best(tmp_path: Path) -> None:
    search = search_rates(tmp_path, (93.0, 95.0), (94.0, 96.0), (80.0, 82.0))["search"]
    assert search["best"] is None
    assert "within the noise of" in search["reason"]
    assert "not told apart: lr=0.01; lr=0.001" in search["reason"] and "lr=0.1;" not in search["reason"]
    assert [point["within_noise"] for point in search["points"]] == [True, True, False]


def test_runs_of_one_seed_are_no_repeats(tmp_path: Path) -> None:
    """Three equal runs of one seed would show no spread at all."""
    for lr, accuracy in ((0.001, 94.0), (0.01, 94.3)):
        for i in range(3):
            build(tmp_path, f"r{lr}-{i}", accuracy, lr=lr, loss_shift=lr)
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert [point["seeds"] for point in search["points"]] == [1, 1] and search["noise"]["degrees"] == 0
    assert search["best"] is None and "another 10000 samples would change by chance" in search["reason"]


def test_a_few_validation_samples_decide_little(tmp_path: Path) -> None:
    few = search_rates(tmp_path / "few", (90.0,), (94.0,), validation_samples=144)["search"]
    many = search_rates(tmp_path / "many", (90.0,), (94.0,), validation_samples=10_000)["search"]
    assert few["best"] is None and many["best"] == {"lr": 0.01}
    assert few["points"][1]["noise"] == pytest.approx(196 * ((0.94 * 0.06 + 0.9 * 0.1) / 144) ** 0.5)


def test_runs_of_one_seed_that_differ_by_more_than_their_lead(tmp_path: Path) -> None:
    for strategy, values in (("ddp", (90.0, 93.0)), ("fsdp", (92.5, 91.0))):
        for lr, accuracy in zip((0.001, 0.01), values, strict=True):
            build(tmp_path, f"{strategy}-{lr}", accuracy, strategy, lr=lr, loss_shift=lr)
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert search["best"] is None and "within the noise of 2.5 %" in search["reason"]
    assert search["points"][0]["strategies"] == ["ddp", "fsdp"]


def test_with_seeds_too_a_lead_must_exceed_what_one_seed_differs_by(tmp_path: Path) -> None:
    """Seeds spread by 0.1 %, but two strategies of one seed by 3 %."""
    for lr, base in ((0.001, 90.0), (0.01, 92.0)):
        for seed in (0, 1):
            for strategy, shift in (("ddp", 1.5), ("fsdp", -1.5)):
                build(
                    tmp_path, f"{strategy}-{lr}-{seed}", base + 0.1 * seed + shift, strategy,
                    lr=lr, seed=seed, loss_shift=lr + seed,
                )  # fmt: skip
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert search["noise"]["degrees"] == 2 and search["best"] is None
    assert search["points"][1]["noise"] == pytest.approx(3.0)


def test_a_setting_that_a_run_does_not_tell_excuses_nothing(tmp_path: Path) -> None:
    build(tmp_path, "a", 90.0, lr=0.001)
    build(tmp_path, "b", 94.0, lr=None)
    report = compare(load_runs(tmp_path), varied=["lr"])
    assert report["fairness"]["verdict"] == "not comparable" and report["search"]["best"] is None


def test_what_goes_along_with_a_varied_setting_does_not_follow_from_it(tmp_path: Path) -> None:
    """Each optimizer has a rate of its own, and nobody said that rates differ."""
    build(tmp_path, "adamw", 90.0, optimizer="adamw", lr=0.001)
    build(tmp_path, "sgd", 94.0, optimizer="sgd", lr=0.1, loss_shift=1.0)
    report = compare(load_runs(tmp_path), varied=["optimizer"])
    assert (
        report["fairness"]["verdict"] == "not comparable" and "differ in lr" in report["fairness"]["reason"]
    )


def test_equal_runs_are_plainly_comparable_whatever_may_be_varied(tmp_path: Path) -> None:
    build(tmp_path, "ddp", 90.0)
    build(tmp_path, "fsdp", 90.0, "fsdp")
    report = compare(load_runs(tmp_path), varied=["lr"])
    assert report["fairness"]["verdict"] == "comparable"
    assert report["search"]["reason"] == "only one point of the search is left to rank"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"weight_decay": 0.5}, "weight_decay"),
        ({"model": "vit_base"}, "model"),
        ({"data_sha256": "other"}, "data_sha256"),
        ({"initial_weights_sha256": "other"}, "initial_weights_sha256"),
        ({"torch": "2.12.1"}, "torch"),
        ({"global_batch_size": 32, "grad_accum_steps": 1}, "global_batch_size"),
        ({"momentum": 0.9}, "momentum"),
    ],
)
def test_a_run_that_differs_in_something_else_is_not_ranked(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    build(tmp_path, "a", 90.0, lr=0.001)
    build(tmp_path, "b", 92.0, lr=0.01, loss_shift=0.01)
    build(tmp_path, "odd", 99.0, lr=0.1, loss_shift=0.1, **change)
    report = compare(load_runs(tmp_path), varied=["lr"])
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["reason"].startswith(f"the runs differ in {field}")
    assert report["fairness"]["reason"].endswith("; the runs differ in lr, as they are meant to")
    search = report["search"]
    assert [run for point in search["points"] for run in point["runs"]] == ["b", "a"]
    (left_out,) = search["left_out"]
    assert left_out["run"] == "odd" and field in left_out["why"]
    assert search["best"] == {"lr": 0.01}, "the odd one, with 99 %, is nobody's rival"


def test_what_follows_from_a_varied_setting_is_accepted(tmp_path: Path) -> None:
    build(tmp_path, "adamw", 90.0, optimizer="adamw")
    build(tmp_path, "sgd", 94.0, optimizer="sgd", beta1=0.5, loss_shift=1.0)
    report = compare(load_runs(tmp_path), varied=["optimizer"])
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]
    excused = {entry["field"]: entry["varied"] for entry in report["fairness"]["differences"]}
    assert excused["beta1"] == "optimizer" and excused["optimizer dtypes"] == "optimizer"
    assert report["search"]["best"] == {"optimizer": "sgd"}


def test_without_momentum_there_is_no_state(tmp_path: Path) -> None:
    build(tmp_path, "none", 90.0, optimizer="sgd", momentum=0.0)
    build(tmp_path, "some", 94.0, optimizer="sgd", momentum=0.9, loss_shift=1.0)
    report = compare(load_runs(tmp_path), varied=["momentum"])
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]
    excused = {entry["field"]: entry["varied"] for entry in report["fairness"]["differences"]}
    assert excused["optimizer dtypes"] == "momentum"
    assert report["search"]["best"] == {"momentum": 0.9}


def resolve(folder: Path, **facts: Any) -> None:
    """Writes what a run's settings have come to."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["resolved"] |= facts
    file.write_text(json.dumps(config))


def test_another_depth_is_another_number_of_weights(tmp_path: Path) -> None:
    for layers in (2, 3):
        run = f"l{layers}"
        build(
            tmp_path, run, 90.0 + layers, loss_shift=float(layers), model_layers=layers,
            initial_weights_sha256=run,
        )  # fmt: skip
        numbers = dict.fromkeys(("parameters", "trainable_parameters", "flops_per_sample"), 1000 * layers)
        resolve(tmp_path / run, **numbers)
    report = compare(load_runs(tmp_path), varied=["model_layers"])
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]


def test_another_teacher_has_other_weights(tmp_path: Path) -> None:
    for name, shift in (("one", 0.0), ("two", 0.5)):
        build(tmp_path, name, 90.0, loss_shift=shift, teacher=f"t/{name}")
        resolve(tmp_path / name, teacher_sha256=name)
    report = compare(load_runs(tmp_path), varied=["teacher"])
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]


def test_what_follows_must_be_the_same_for_the_same_value(tmp_path: Path) -> None:
    """Momentum that differs between two runs of one optimizer does not follow from it."""
    build(tmp_path, "adamw", 90.0, optimizer="adamw", lr=0.001)
    build(tmp_path, "sgd", 94.0, optimizer="sgd", momentum=0.9, lr=0.001, loss_shift=1.0)
    build(tmp_path, "odd", 99.0, optimizer="sgd", momentum=0.5, lr=0.1, loss_shift=2.0)
    report = compare(load_runs(tmp_path), varied=["optimizer", "lr"])
    assert report["fairness"]["verdict"] == "not comparable" and "momentum" in report["fairness"]["reason"]
    (entry,) = [e for e in report["fairness"]["differences"] if e["field"] == "momentum"]
    assert entry["why"].endswith("not the same in all runs of the same optimizer")


def test_optimizers_without_any_state_are_known(tmp_path: Path) -> None:
    for run in ("one", "two"):
        build(tmp_path, run, 90.0, optimizer="sgd")
    report = compare(load_runs(tmp_path))
    assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]


def test_strategies_at_one_point_must_compute_the_same(tmp_path: Path) -> None:
    for lr in (0.001, 0.01):
        for strategy in ("ddp", "fsdp", "zero2"):
            bent = 0.3 if (lr, strategy) == (0.01, "zero2") else 0.0
            build(tmp_path, f"{strategy}-{lr}", 90.0 + lr, strategy, lr=lr, loss_shift=lr + bent)
    report = compare(load_runs(tmp_path), varied=["lr"])
    assert report["fairness"]["verdict"] == "not comparable"
    assert [entry["run"] for entry in report["search"]["left_out"]] == ["zero2-0.01"]
    assert "losses of the first steps" in report["search"]["left_out"][0]["why"]


def test_of_two_that_disagree_neither_is_ranked(tmp_path: Path) -> None:
    build(tmp_path, "other", 80.0, lr=0.1, loss_shift=0.1)
    for strategy, bent in (("ddp", 0.0), ("fsdp", 0.3)):
        build(tmp_path, strategy, 90.0, strategy, lr=0.001, loss_shift=bent)
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert [point["runs"] for point in search["points"]] == [["other"]] and search["best"] is None
    assert {entry["run"] for entry in search["left_out"]} == {"ddp", "fsdp"}


def test_a_run_that_failed_says_so(tmp_path: Path) -> None:
    build(tmp_path, "a", 90.0, lr=0.001)
    build(tmp_path, "b", 94.0, lr=0.01, loss_shift=0.01)
    build(tmp_path, "c", 0.0, lr=10.0, status="failed")
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert search["left_out"] == [{"run": "c", "why": "failed: out of memory (exit code 10)"}]


def test_batches_that_see_other_amounts_of_data_are_said(tmp_path: Path) -> None:
    build(tmp_path, "a", 90.0)
    build(
        tmp_path, "b", 94.0, loss_shift=0.01,
        global_batch_size=128, grad_accum_steps=2, data_order_sha256="other",
    )  # fmt: skip
    report = compare(load_runs(tmp_path), varied=["global_batch_size"])
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]
    said = "the points of the search have seen from 3,840 to 7,680 samples: "
    assert report["search"]["remarks"] == [
        said + "with run.config.epochs instead of steps they would see the same"
    ]
    for file in tmp_path.glob("*/config.json"):
        config = json.loads(file.read_text())
        config["config"] |= {"steps": 0, "epochs": 3}
        file.write_text(json.dumps(config))
    report = compare(load_runs(tmp_path), varied=["global_batch_size"])
    assert report["search"]["remarks"] == [said + "an epoch has whole batches only"]


def test_where_the_length_is_searched_nobody_is_told_to_make_it_equal(tmp_path: Path) -> None:
    build(tmp_path, "a", 90.0, epochs=3)
    build(
        tmp_path, "b", 94.0, loss_shift=0.01, epochs=6,
        global_batch_size=128, grad_accum_steps=2, data_order_sha256="other",
    )  # fmt: skip
    report = compare(load_runs(tmp_path), varied=["global_batch_size", "epochs"])
    assert report["search"]["remarks"] == ["the points of the search have seen from 3,840 to 7,680 samples"]


def test_without_a_validation_split_the_test_split_chooses_and_that_is_said(tmp_path: Path) -> None:
    build(tmp_path, "a", None, lr=0.001, test_accuracy_pct=70.0, test_samples=10_000)
    build(tmp_path, "b", None, lr=0.01, test_accuracy_pct=90.0, test_samples=10_000, loss_shift=0.01)
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert search["goal"]["key"] == "test_accuracy_pct" and search["remarks"] == [ON_TEST]
    assert search["best"] == {"lr": 0.01}


def test_without_any_measure_nothing_is_ranked(tmp_path: Path) -> None:
    for run, lr in (("a", 0.001), ("b", 0.01)):
        build(tmp_path, run, None, lr=lr, test_accuracy_pct=None, validation_loss=None, loss_shift=lr)
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert search["goal"] is None and search["best"] is None and "no measure" in search["reason"]


def test_losses_are_ranked_from_below(tmp_path: Path) -> None:
    for run, lr, loss in (("a", 0.001, 0.5), ("b", 0.01, 0.4), ("c", 0.1, 0.402)):
        build(tmp_path, run, None, lr=lr, test_accuracy_pct=None, validation_loss=loss, loss_shift=lr)
    search = compare(load_runs(tmp_path), varied=["lr"])["search"]
    assert [point["settings"]["lr"] for point in search["points"]] == [0.01, 0.1, 0.001]
    assert search["best"] is None and "differences below 2 % count as none" in search["reason"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_varied(tmp_path: Path, name: str) -> None:
    build(tmp_path, "a", 90.0)
    with pytest.raises(UserError, match=f"{name} cannot be varied: "):
        compare(load_runs(tmp_path), varied=[name])


def test_a_misspelt_name_is_told_with_the_nearest(tmp_path: Path) -> None:
    build(tmp_path, "a", 90.0)
    with pytest.raises(UserError, match="optimiser is no setting of these runs, did you mean optimizer?"):
        compare(load_runs(tmp_path), varied=["optimiser", "lr"])


def test_every_page_says_it(tmp_path: Path) -> None:
    report = search_rates(tmp_path, (90.0, 90.2), (94.0, 94.2))
    said = say_search(report["search"])[0]
    assert said.startswith(
        "best of what was varied: lr=0.01 (validation accuracy 94.1 % against 90.1 % of lr=0.001"
    )
    page = render_page(report, load_runs(tmp_path))
    assert (
        "<h2>Search</h2>" in page and "told apart from the best" in page and "comparable as a search" in page
    )
    assert said in describe(report) and said in str(terminal_table(report).caption)
    text = build_markdown(report)
    assert "## Search" in text and "| 1 | 0.01 | 94.1 |" in text
    for shown in (page, text):
        assert "2 seeds for each point of the search" in shown and "per strategy" not in shown


def test_the_names_lie_beside_the_runs(tmp_path: Path) -> None:
    assert read_varied(tmp_path) == ()
    keep_varied(tmp_path, ("lr", "optimizer"))
    assert read_varied(tmp_path) == ("lr", "optimizer")
    (tmp_path / "varied.json").write_text('{"varied": "lr"}')
    with pytest.raises(UserError, match="no list of names"):
        read_varied(tmp_path)
