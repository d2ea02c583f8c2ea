"""Rows, origin and remarks of a report, and what is no comparison at all.

The headline of a comparison: what its runs answer, the same on page, terminal, MLflow and in JSON.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import NO_RUN, ONE_RUN, PER_GROUP, compare
from stratlab.compare.fairness import FIELD
from stratlab.compare.publishing import describe
from stratlab.compare.report_files import render_page
from stratlab.compare.run_rows import SUMMARY_FIELDS, TRACE_FIELDS
from stratlab.compare.run_sources import load_comparisons, load_runs
from stratlab.compare.summary_view import build_markdown
from stratlab.compare.terminal_view import list_answers
from stratlab.run_directory.record import RunRecord
from stratlab.run_directory.step_numbers import NAMES
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import build, difference, edit_ranks, judge, resolve
from tests.stratlab.example_text import LAYOUTS, TextLayout, build_text_run


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    return load_runs(build(tmp_path / "demo", ["ddp", "fsdp", "zero2"], device="cpu"))


def test_a_row_holds_the_numbers_of_the_run_and_of_its_traces(runs: list[RunRecord]) -> None:
    runs[1].analysis["phases_present"] = {"0": ["data", "forward"], "1": []}
    row = compare(runs)["runs"][1]
    summary = json.loads((runs[1].folder / "summary.json").read_text())
    trace = runs[1].analysis
    told = set(SUMMARY_FIELDS) - set(NAMES)  # the others follow from the steps: test_run_rows.py
    assert {name: row[name] for name in told} == {name: summary[name] for name in told}
    assert {name: row[name] for name in TRACE_FIELDS} == {
        name: trace["mean"].get(name) for name in TRACE_FIELDS
    }
    held = ("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib")
    assert row["state_memory_gib"] == sum(summary[name] for name in held) and row["hta"] == trace["hta"]
    assert (row["trace_source"], row["trace_steps"], row["mlflow_run_id"]) == ("cpu", 3, "id-fsdp")
    assert row["phases_present"]["0"] == {
        "data": True,
        "forward": True,
        "backward": False,
        "optimizer": False,
    }
    runs[1].analysis.clear()
    runs[1].summary.update(comm_exposed_pct=12.5, train_loss=float("nan"))
    row = compare(runs)["runs"][1]
    assert row["comm_exposed_pct"] == 12.5, "the run's own count stands in"
    assert row["train_loss"] is None, "JSON knows no such number"
    assert row["tokens_per_s"] is row["layout"] is row["dimensions"] is row["test_perplexity"] is None
    assert row["degenerate"] is False and row["stages"] == [] and row["wire_bytes_per_axis"] == {}


def test_a_run_that_is_too_short_to_be_timed_says_so(runs: list[RunRecord]) -> None:
    before = compare(runs)["remarks"]
    runs[1].metrics[:] = [line for line in runs[1].metrics if line.get("step", 0) <= 4]
    runs[1].summary.update(steps=4, step_time_ms_p50=None, measured_steps=0)
    (said,) = [remark for remark in compare(runs)["remarks"] if remark not in before]
    assert "fsdp (4 steps)" in said


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    strange = RunRecord("ddp", tmp_path, "not a run", "has no artifacts")
    for runs in ([], [strange]):
        with pytest.raises(UserError) as refused:
            compare(runs)
        assert find_codes(refused.value) == ["SL-nothing-to-compare"]
        assert all(run.ending in str(refused.value) for run in runs)


FP32, BOTH = ["float32"], ["bfloat16", "float32"]
LESS = {"global_batch_size": 32, "grad_accum_steps": 1, "steps": 30, "data_order_sha256": "other"}


def of(ranks: int, speed: float, **changes: Any) -> dict[str, Any]:
    return {"world_size": ranks, "processes_per_node": ranks, "samples_per_s": speed, **changes}


def add_text_run(
    root: Path, name: str, layout: TextLayout, reductions: list[str], shift: float = 0.0
) -> Path:
    """As the trainer records it in bf16: tensor parallelism adds activations in the products' type."""
    folder = build_text_run(root, name, layout, loss_shift=shift)
    edit_ranks(folder, lambda rank: rank["dtypes"].update(products=["bfloat16"], reductions=reductions))
    return folder


def judge_layouts(root: Path, reduced: str = "fp32", shift: float = 0.0) -> dict[str, Any]:
    for name in ("llm-1d", "llm-2d", "llm-3d", "llm-4d"):
        split = LAYOUTS[name].axes.get("tp", 1) > 1
        folder = add_text_run(root, name, LAYOUTS[name], BOTH if split else FP32, shift * split)
        resolve(folder, precision="bf16", knobs={"reduce_dtype": reduced if split else "fp32"})
    return judge(root)


def test_activations_that_tensor_parallelism_adds_are_implied(tmp_path: Path) -> None:
    report = judge_layouts(tmp_path / "a")
    assert report["fairness"]["groups"] == [["llm-1d", "llm-2d", "llm-3d", "llm-4d"]]
    shown = difference(report, "activation reduction dtypes")
    assert shown["values"]["llm-3d"] == ["bfloat16"] and not shown["matters"], "still shown as observed"
    gradients = judge_layouts(tmp_path / "b", reduced="bf16")
    assert difference(gradients, "reduction dtypes")["matters"]
    groups = gradients["fairness"]["groups"]
    assert sorted(map(sorted, groups)) == [["llm-1d", "llm-2d"], ["llm-3d", "llm-4d"]]
    losses = judge_layouts(tmp_path / "c", shift=1.0)
    assert losses["headline"]["verdict"] == "not comparable" and FIELD in losses["headline"]["reason"]


@pytest.mark.parametrize(
    ("runs", "verdict", "named", "answers"),
    [
        (
            {f"{s}-{n}": of(n, v, grad_accum_steps=8 // n) for s, speeds in
             {"ddp": (1000.0, 1500.0), "fsdp": (800.0, 1440.0)}.items() for n, v in zip((2, 4), speeds, strict=True)},
            "strong scaling", ["2 to 4", "ddp 75 %", "fsdp 90 %"], 4,  # two series, and the best of each size
        ),
        ({"ddp-b": of(4, 1900.0, grad_accum_steps=1), "ddp-c": of(2, 1000.0, **LESS)}, "weak scaling", ["95 %"], None),
        (
            {"ddp-b": of(4, 1900.0, grad_accum_steps=1), "ddp-c": of(2, 1000.0, **LESS),
             "ddp-a": of(2, 1900.0, grad_accum_steps=2)},
            "strong and weak scaling", ["50 %", "95 %"], None,
        ),
        (
            {"single-1": of(1, 500.0, grad_accum_steps=2), "ddp-2": of(2, 900.0, grad_accum_steps=1),
             "fsdp-2": of(2, 800.0, grad_accum_steps=1)},
            "strong scaling", ["single", "ddp 90 %", "fsdp 80 %"], None,
        ),
        ({f"{s}-1": of(1, 500.0, grad_accum_steps=2) for s in ("single", "ddp", "fsdp")}, "comparable", [], None),
        # with the same global batch and the same order of the data they are of one training
        ({"ddp-a": of(2, 1000.0), "ddp-b": of(4, 1500.0, loss_shift=1.0)}, "not comparable", [FIELD], None),
        (
            {"ddp-a": of(2, 1000.0), "ddp-b": of(4, 1500.0), "fsdp-a": of(2, 1000.0, lr=0.5),
             "fsdp-b": of(4, 1500.0, lr=0.5)},
            "not comparable", ["lr"], None,
        ),
        ({"ddp": of(2, 1000.0)}, ONE_RUN, [], None),
        ({"ddp": {"status": "failed"}}, NO_RUN, [], None),
    ],
)  # fmt: skip
def test_what_the_runs_answer(
    tmp_path: Path, runs: dict[str, dict[str, Any]], verdict: str, named: list[str], answers: int | None
) -> None:
    headline = judge(tmp_path, runs)["headline"]
    assert headline["verdict"] == verdict and [one for one in named if one not in headline["reason"]] == []
    assert answers is None or len(headline["answers"]) == answers


def test_groups_that_are_judged_apart_are_answered_each(tmp_path: Path) -> None:
    runs = {
        f"{strategy}-{rows}": {
            "micro_batch_size": rows,
            "state_memory_gib": {"parameters": share, "gradients": share, "optimizer": 2 * share},
        }
        for rows in (4, 8)
        for strategy, share in (("ddp", 4.0), ("fsdp", 2.0))
    }
    headline = judge(tmp_path, runs)["headline"]
    assert headline["verdict"] == PER_GROUP and "micro_batch_size" in headline["reason"]
    for rows, said in zip((4, 8), headline["answers"], strict=True):
        assert f"ddp-{rows}, fsdp-{rows}" in said and said.endswith(f"fsdp-{rows}")
    odd = {"zero2-odd": {"micro_batch_size": 4, "lr": 0.5}}
    assert "zero2-odd" in judge(tmp_path, odd)["headline"]["answers"][-1], "left alone, and said"
    meant = judge(tmp_path, asked={"varied": ("micro_batch_size",)})["headline"]
    assert meant["verdict"] == PER_GROUP and "lr" in meant["reason"]


def test_it_is_the_same_everywhere(tmp_path: Path) -> None:
    runs = load_runs(build(tmp_path, {"ddp-2": of(2, 1000.0), "ddp-4": of(4, 1500.0)}))
    report = compare(runs)
    shown = "\n".join(told for _, told in list_answers(report))
    for text in (shown, render_page(report, runs), build_markdown(report), describe(report)):
        plain = html.unescape(text).replace("**", "").replace("\\", "")
        assert report["headline"]["verdict"] in plain and report["headline"]["reason"] in plain
        assert all(plain.count(said) == 1 for said in report["headline"]["answers"]), "each answer once"


def test_several_folders_are_one_comparison(tmp_path: Path) -> None:
    folders = [
        build(tmp_path / f"of-{ranks}", {f"ddp-{ranks}": of(ranks, speed, grad_accum_steps=8 // ranks)})
        for ranks, speed in ((2, 100.0), (4, 190.0), (8, 320.0))
    ]
    report = compare(load_comparisons(folders))
    (series,) = report["scaling"]
    assert [point["world_size"] for point in series["points"]] == [2, 4, 8]
    assert report["headline"]["verdict"] == "strong scaling" and "80 %" in report["headline"]["reason"]


def test_names_that_several_folders_have_are_told_apart(tmp_path: Path) -> None:
    for folder, runs in (("a", ["ddp"]), ("x/a", ["ddp"]), ("b", ["ddp", "fsdp"])):
        build(tmp_path / folder, runs)

    def name(*folders: str) -> list[str]:
        return [run.name for run in load_comparisons([tmp_path / folder for folder in folders])]

    assert name("a", "b") == ["a/ddp", "b/ddp", "fsdp"]
    assert name("b", "x/a") == ["b/ddp", "fsdp", "a/ddp"]
    assert len(set(name("a", "x/a"))) == 2
    with pytest.raises(UserError) as refused:
        name("a", "b/../a")
    assert find_codes(refused.value) == ["SL-compare-twice"]
