"""The headline of a comparison: what its runs answer, in the same words on page, terminal, MLflow and in JSON."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stratlab import cli
from stratlab.api import compare as compare_folders
from stratlab.compare.comparison import compare
from stratlab.compare.judging.headline import NO_RUN, ONE_RUN, PER_GROUP
from stratlab.compare.judging.same_training import FIELD
from stratlab.compare.mlflow_entry import describe
from stratlab.compare.reading.comparison_folder import load_comparisons, load_runs
from stratlab.compare.showing.report_files import render_page
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.terminal_table import terminal_table
from stratlab.user_error import UserError
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.example_text import LAYOUTS, TextLayout, build_text_run

FP32, BOTH = ["float32"], ["bfloat16", "float32"]


def judge(folder: Path, **asked: Any) -> dict[str, Any]:
    return compare(load_runs(folder), **asked)


def build(root: Path, run: str, ranks: int, speed: float, **changes: Any) -> None:
    given = {"hosts": ["n"], "device": "cuda", "processes_per_node": ranks, "world_size": ranks}
    build_run_dir(root, run, run.partition("-")[0], **{**given, "samples_per_s": speed, **changes})


def change(folder: Path, kind: str, types: Sequence[str]) -> None:
    """What every rank has seen of one kind."""
    for path in folder.glob("ranks/*.json"):
        facts = json.loads(path.read_text())
        facts["dtypes"][kind] = list(types)
        path.write_text(json.dumps(facts))


def set_resolved(folder: Path, **facts: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["resolved"] |= facts
    (folder / "config.json").write_text(json.dumps(config))


def build_layouts(root: Path, reduced: str = "fp32", shift: float = 0.0) -> None:
    """As the trainer records 1D to 4D in bf16: tensor parallelism adds activations in the products' type."""
    for name in ("llm-1d", "llm-2d", "llm-3d", "llm-4d"):
        folder = build_text_run(
            root, name, LAYOUTS[name], loss_shift=shift * (LAYOUTS[name].axes.get("tp", 1) > 1)
        )
        split = LAYOUTS[name].axes.get("tp", 1) > 1
        change(folder, "products", ["bfloat16"])
        change(folder, "reductions", BOTH if split else FP32)
        set_resolved(folder, precision="bf16", knobs={"reduce_dtype": reduced if split else "fp32"})


def test_activations_that_tensor_parallelism_adds_are_implied(tmp_path: Path) -> None:
    build_layouts(tmp_path)
    report = judge(tmp_path)
    assert report["headline"]["verdict"] == "comparable", report["headline"]
    assert report["fairness"]["groups"] == [["llm-1d", "llm-2d", "llm-3d", "llm-4d"]]
    (shown,) = [one for one in report["fairness"]["differences"] if one["field"].startswith("activation ")]
    assert shown["values"]["llm-3d"] == ["bfloat16"] and not shown["matters"], "still shown as observed"


def test_of_context_parallelism_alike_and_where_no_gradient_is_added_up(tmp_path: Path) -> None:
    for name, axes, types in (
        ("llm-a", {"dp_replicate": 8}, FP32),
        ("llm-b", {"dp_shard": 4, "cp": 2}, BOTH),
        ("llm-c", {"tp": 8}, ["bfloat16"]),
    ):
        folder = build_text_run(tmp_path, name, TextLayout(name, 2, axes))
        change(folder, "products", ["bfloat16"])
        change(folder, "reductions", types)
    assert judge(tmp_path)["headline"]["verdict"] == "comparable"


def test_gradients_in_another_type_are_still_a_reason(tmp_path: Path) -> None:
    build_layouts(tmp_path, reduced="bf16")
    report = judge(tmp_path)
    assert "reduction dtypes" in report["headline"]["reason"]
    assert sorted(map(sorted, report["fairness"]["groups"])) == [["llm-1d", "llm-2d"], ["llm-3d", "llm-4d"]]


def test_the_losses_hold_what_tensor_parallelism_does(tmp_path: Path) -> None:
    build_layouts(tmp_path, shift=1.0)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == "not comparable" and FIELD in headline["reason"], "a finding stays one"


def test_scaling_is_headlined_by_its_efficiency(tmp_path: Path) -> None:
    for strategy, speeds in (("ddp", (1000.0, 1500.0)), ("fsdp", (800.0, 1440.0))):
        for ranks, speed in zip((2, 4), speeds, strict=True):
            build(tmp_path, f"{strategy}-{ranks}", ranks, speed, grad_accum_steps=8 // ranks)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == "strong scaling"
    assert "2 to 4" in headline["reason"]
    assert "ddp 75 %" in headline["reason"] and "fsdp 90 %" in headline["reason"]
    assert len(headline["answers"]) == 4, "two series, and who is best on each number of processes"


def test_weak_scaling_and_both(tmp_path: Path) -> None:
    build(tmp_path, "ddp-b", 4, 1900.0, global_batch_size=64, grad_accum_steps=1)
    less = {"global_batch_size": 32, "grad_accum_steps": 1, "steps": 30, "data_order_sha256": "other"}
    build(tmp_path, "ddp-c", 2, 1000.0, **less)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == "weak scaling" and "95 %" in headline["reason"]
    build(tmp_path, "ddp-a", 2, 1900.0, global_batch_size=64, grad_accum_steps=2)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == "strong and weak scaling"
    assert "50 %" in headline["reason"] and "95 %" in headline["reason"]


def test_one_process_is_where_scaling_begins(tmp_path: Path) -> None:
    build(tmp_path, "single-1", 1, 500.0, grad_accum_steps=2)
    build(tmp_path, "ddp-2", 2, 900.0, grad_accum_steps=1)
    build(tmp_path, "fsdp-2", 2, 800.0, grad_accum_steps=1)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == "strong scaling"
    assert "single" in headline["reason"]
    assert "ddp 90 %" in headline["reason"] and "fsdp 80 %" in headline["reason"]


def test_strategies_on_one_device_are_no_scaling(tmp_path: Path) -> None:
    for strategy in ("single", "ddp", "fsdp"):
        build(tmp_path, f"{strategy}-1", 1, 500.0, grad_accum_steps=2)
    report = judge(tmp_path)
    assert report["scaling"] == [] and report["headline"]["verdict"] == "comparable"


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"model": "vit_base"}])
def test_what_differs_besides_the_number_of_processes_is_no_scaling(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    build(tmp_path, "ddp-a", 2, 1000.0)
    build(tmp_path, "ddp-b", 4, 1500.0)
    build(tmp_path, "fsdp-a", 2, 1000.0, **change)
    build(tmp_path, "fsdp-b", 4, 1500.0, **change)
    report = judge(tmp_path)
    assert len(report["scaling"]) == 2
    assert (
        "scaling" not in report["headline"]["verdict"] and next(iter(change)) in report["headline"]["reason"]
    )


def test_other_losses_on_more_processes_are_no_scaling(tmp_path: Path) -> None:
    """With the same global batch and the same order of the data they are of one training."""
    build(tmp_path, "ddp-a", 2, 1000.0)
    build(tmp_path, "ddp-b", 4, 1500.0, loss_shift=1.0)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == "not comparable" and FIELD in headline["reason"]


def test_groups_that_are_judged_apart_are_answered_each(tmp_path: Path) -> None:
    for rows in (4, 8):
        for strategy, share in (("ddp", 4.0), ("fsdp", 2.0)):
            held = {"parameters": share, "gradients": share, "optimizer": 2 * share}
            build(tmp_path, f"{strategy}-{rows}", 2, 1000.0, micro_batch_size=rows, state_memory_gib=held)
    report = judge(tmp_path)
    headline = report["headline"]
    assert headline["verdict"] == PER_GROUP and "micro_batch_size" in headline["reason"]
    assert len(headline["answers"]) == 2
    for rows, said in zip((4, 8), headline["answers"], strict=True):
        assert f"ddp-{rows}, fsdp-{rows}" in said and said.endswith(f"fsdp-{rows}")
    build(tmp_path, "zero2-odd", 2, 1000.0, micro_batch_size=4, lr=0.5)
    headline = judge(tmp_path)["headline"]
    assert headline["verdict"] == PER_GROUP and "zero2-odd" in headline["answers"][-1], "left alone, and said"
    meant = judge(tmp_path, varied=("micro_batch_size",))
    assert meant["headline"]["verdict"] == PER_GROUP and "lr" in meant["headline"]["reason"]


def test_runs_that_differ_one_by_one_are_not_comparable(tmp_path: Path) -> None:
    build(tmp_path, "ddp", 2, 1000.0, lr=0.1)
    build(tmp_path, "fsdp", 2, 1000.0, lr=0.2)
    headline = judge(tmp_path)["headline"]
    assert (headline["verdict"], headline["answers"]) == ("not comparable", [])


def test_one_run_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    build(tmp_path, "ddp", 2, 1000.0)
    report = judge(tmp_path)
    assert report["headline"]["verdict"] == ONE_RUN
    assert not any("not comparable" in reason for reason in report["winner_reasons"].values())
    build_text_run(tmp_path / "of", "whole", LAYOUTS["llm-1d"])
    lacking = replace(LAYOUTS["llm-2d"], missing=("data",))
    build_text_run(tmp_path / "of", "lacking", lacking)
    headline = judge(tmp_path / "of")["headline"]
    assert headline["verdict"] == ONE_RUN and "lacking" in headline["reason"]
    build_run_dir(tmp_path / "none", "ddp", "ddp", status="failed")
    assert judge(tmp_path / "none")["headline"]["verdict"] == NO_RUN


def test_it_is_the_same_everywhere(tmp_path: Path) -> None:
    build(tmp_path, "ddp-2", 2, 1000.0)
    build(tmp_path, "ddp-4", 4, 1500.0)
    runs = load_runs(tmp_path)
    report = compare(runs)
    headline = report["headline"]
    shown = io.StringIO()
    Console(file=shown, width=400).print(terminal_table(report, 400))
    assert not any("not comparable" in reason for reason in report["winner_reasons"].values())
    places = (shown.getvalue(), render_page(report, runs), build_markdown(report), describe(report))
    for text in places:
        plain = html.unescape(text).replace("**", "").replace("\\", "")
        assert headline["verdict"] in plain and headline["reason"] in plain
        assert all(plain.count(said) == 1 for said in headline["answers"]), "each answer once"


def build_series(root: Path) -> list[Path]:
    """Language models on 2, 4 and 8 processes, in a comparison each."""
    batch: dict[str, Any] = {"global_batch_size": 64, "micro_batch_size": 1, "device": "cuda"}
    for ranks, speed in ((2, 100.0), (4, 190.0), (8, 320.0)):
        layout = TextLayout(f"dp{ranks}x1", 1, {"dp_replicate": ranks})
        build_text_run(root / f"llm-{ranks}", f"llm-1d-{ranks}", layout, samples_per_s=speed, **batch)
    split = TextLayout("pp2.dp4", 2, {"pp": 2, "dp_shard": 4})
    build_text_run(root / "llm-8", "llm-2d", split, samples_per_s=200.0, **batch)
    return [root / f"llm-{ranks}" for ranks in (2, 4, 8)]


def test_several_folders_are_one_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = build_series(tmp_path)
    report = compare(load_comparisons(folders))
    (series,) = report["scaling"]
    assert [point["world_size"] for point in series["points"]] == [2, 4, 8]
    headline = report["headline"]
    assert headline["verdict"] == "strong scaling" and "80 %" in headline["reason"]
    assert any("llm-1d-8, llm-2d" in said for said in headline["answers"])
    place = tmp_path / "out"
    for folder in folders:
        for run in folder.glob("*/mlflow.json"):
            run.unlink()
    monkeypatch.setattr(
        "sys.argv", ["stratlab", "compare", *map(str, folders), "--output", str(place), "--json"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code and json.loads(capsys.readouterr().out)["headline"] == headline
    assert (place / "report.html").is_file()
    assert compare_folders(*folders)["headline"] == headline


def test_names_that_several_folders_have_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "x/a", "b"):
        build(tmp_path / folder, "ddp", 2, 1000.0)
    build(tmp_path / "b", "fsdp", 2, 1000.0)

    def name(*folders: str) -> list[str]:
        return [run.name for run in load_comparisons([tmp_path / folder for folder in folders])]

    assert name("a", "b") == ["a/ddp", "b/ddp", "fsdp"]
    assert name("b", "x/a") == ["b/ddp", "fsdp", "a/ddp"]
    assert len(set(name("a", "x/a"))) == 2
    with pytest.raises(UserError, match="twice"):
        name("a", "b/../a")
