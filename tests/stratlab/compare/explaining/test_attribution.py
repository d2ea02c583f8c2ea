"""The attribution of whole comparisons: who is explained against whom, and when nothing may be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir


def change_analysis(run: Path, **changes: Any) -> None:
    file = run / "analysis" / "report.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def build_report(root: Path, *runs: str, device: str = "cuda", **options: Any) -> dict[str, Any]:
    for name in runs:
        build_run_dir(root, name, name.partition("-")[0], device=device, hosts=["n"])
    return compare(load_runs(root), **options)


def test_the_fastest_is_the_baseline_and_the_parts_sum_to_the_measured_difference(tmp_path: Path) -> None:
    report = build_report(tmp_path, "ddp", "fsdp", "zero2")
    found, rows = report["attribution"], {row["run"]: row for row in report["runs"]}
    assert [(pair["run"], pair["baseline"]) for pair in found["pairs"]] == [("fsdp", "ddp"), ("zero2", "ddp")]
    for pair in found["pairs"]:
        measured = rows[pair["run"]]["step_time_ms_p50"] - rows["ddp"]["step_time_ms_p50"]
        assert pair["difference_ms"] == measured and pair["comparable"] is True
        assert sum(row["ms"] for row in pair["parts"]) == pytest.approx(measured, abs=1e-9)
        assert pair["main_cause"] == "more_communication" == rows[pair["run"]]["main_cause"]
    assert rows["fsdp"]["speedup_vs_baseline"] == pytest.approx(11.31 / 13.81, rel=1e-3)
    assert "no band" not in found["pairs"][0]["origin"] and "GPU events" in found["pairs"][0]["origin"]


def test_a_baseline_may_be_called_as_a_page_shows_it(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path, f"demo-long-{strategy}", strategy, device="cuda", hosts=["n"])
    report = compare(load_runs(tmp_path), baseline="fsdp")
    assert [pair["baseline"] for pair in report["attribution"]["pairs"]] == ["demo-long-fsdp"]


def test_a_baseline_can_be_asked_for(tmp_path: Path) -> None:
    report = build_report(tmp_path, "ddp", "fsdp", "zero2", baseline="fsdp")
    pairs = report["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"]) for pair in pairs] == [("ddp", "fsdp"), ("zero2", "fsdp")]
    assert pairs[0]["sentence"].startswith(
        "ddp is 2.5 ms (18 %) faster per step than fsdp: 2.6 ms less exposed"
    )
    assert pairs[0]["remedy"] == "" and pairs[0]["main_cause"] == "more_communication"
    with pytest.raises(
        ValueError,
        match="--baseline zero3: did you mean zero2. expected a finished run of this comparison: ddp, fsdp",
    ):
        build_report(tmp_path, baseline="zero3")


def test_runs_that_are_not_comparable_are_explained_with_a_warning_only(tmp_path: Path) -> None:
    report = build_report(tmp_path, "ddp", "fsdp", "single")
    pairs = {pair["run"]: pair for pair in report["attribution"]["pairs"]}
    assert pairs["fsdp"]["comparable"] and not pairs["single"]["comparable"]
    assert pairs["single"]["sentence"].startswith("Not comparable, no finding: they differ in world_size, ")
    assert pairs["single"]["main_cause"] is None and pairs["single"]["remedy"] == ""
    assert {row["run"]: row["main_cause"] for row in report["runs"]}["single"] is None


def test_a_run_with_an_unknown_fact_is_not_compared_with_anybody(tmp_path: Path) -> None:
    build_run_dir(tmp_path, "zero2", "zero2", device="cuda", hosts=["n"], data_sha256=None)
    pairs = {pair["run"]: pair for pair in build_report(tmp_path, "ddp", "fsdp")["attribution"]["pairs"]}
    assert pairs["zero2"]["differing"] == ["data_sha256"]


def test_an_old_analysis_is_not_attributed_and_says_so(tmp_path: Path) -> None:
    build_report(tmp_path, "ddp", "fsdp", "zero2")
    change_analysis(tmp_path / "fsdp", parts=None)
    (tmp_path / "zero2" / "analysis" / "report.json").unlink()
    found = compare(load_runs(tmp_path))["attribution"]
    assert found["pairs"] == []
    why = {entry["run"]: entry["why"] for entry in found["not_attributed"]}
    assert why["fsdp"] == "fsdp was analysed by an older version, without parts; analyze it again"
    assert why["zero2"] == "zero2 has no analysed traces"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([{"part": "compute", "ms": None}], "cannot be read"),
        ([7], "cannot be read"),
        ([{"part": "compute", "ms": 3.0}], "do not sum to its step"),
    ],
)
def test_parts_that_are_wrong_are_not_subtracted(tmp_path: Path, parts: list[Any], why: str) -> None:
    build_report(tmp_path, "ddp", "fsdp")
    change_analysis(tmp_path / "fsdp", parts=parts)
    found = compare(load_runs(tmp_path))["attribution"]
    assert found["pairs"] == [] and why in found["not_attributed"][0]["why"]


def test_traces_of_another_source_are_not_subtracted(tmp_path: Path) -> None:
    build_report(tmp_path, "ddp", "fsdp")
    change_analysis(tmp_path / "fsdp", source="cpu")
    found = compare(load_runs(tmp_path))["attribution"]
    assert (
        found["pairs"] == []
        and found["not_attributed"][0]["why"] == "fsdp has cpu traces, ddp has gpu traces"
    )


def test_on_a_cpu_the_sentence_says_so_first_and_advises_nothing(tmp_path: Path) -> None:
    pair = build_report(tmp_path, "ddp", "fsdp", device="cpu")["attribution"]["pairs"][0]
    assert pair["sentence"].startswith(
        "On a CPU (host operator time on gloo; says nothing about GPUs): fsdp is "
    )
    assert "says nothing about GPUs" in pair["origin"] and "remedy" not in pair["sentence"]


def test_of_repeats_the_one_in_the_middle_speaks(tmp_path: Path) -> None:
    for i, speed in enumerate((1000.0, 1010.0, 990.0)):
        for strategy, factor in (("ddp", 1.0), ("fsdp", 0.8)):
            run = f"{strategy}-{i}"
            build_run_dir(tmp_path, run, strategy, device="cuda", hosts=["n"], samples_per_s=factor * speed)
    pairs = compare(load_runs(tmp_path))["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"]) for pair in pairs] == [("fsdp-0", "ddp-0")]
    assert pairs[0]["noise_ms"] == pytest.approx(2.776 * 0.01 * (64**2 + 80**2) ** 0.5, rel=1e-3)


def test_a_repeat_with_another_seed_does_not_hide_what_is_comparable(tmp_path: Path) -> None:
    """`again` repeats ddp with another seed, and is faster: fsdp is explained against the run that it may be."""
    build_run_dir(tmp_path, "again", "ddp", device="cuda", hosts=["n"], seed=1, samples_per_s=9000.0)
    pairs = build_report(tmp_path, "ddp", "fsdp")["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"], pair["comparable"]) for pair in pairs] == [("fsdp", "ddp", True)]
    pairs = build_report(tmp_path, baseline="again")["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"], pair["comparable"]) for pair in pairs] == [
        ("fsdp", "again", False)
    ]
