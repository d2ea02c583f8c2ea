from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.scaling import SHARED_CORES, say_scaling
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.tradeoffs import build_choice
from tests.stratlab.example_run import build_run_dir


def build(root: Path, world_size: int, samples_per_s: float, **changes: Any) -> None:
    name = changes.pop("run", f"{changes.pop('strategy', 'ddp')}-{world_size}")
    build_run_dir(
        root,
        name,
        name.partition("-")[0],
        **{"device": "cuda", "hosts": ["n"], "processes_per_node": world_size, **changes},
        world_size=world_size,
        samples_per_s=samples_per_s,
    )


def scale(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = compare(load_runs(root))["scaling"]
    return found


def test_strong_scaling_by_hand(tmp_path: Path) -> None:
    for world_size, speed in ((2, 1000.0), (4, 1800.0), (8, 2800.0)):
        build(tmp_path, world_size, speed, grad_accum_steps=16 // world_size)
    (series,) = scale(tmp_path)
    assert (series["strategy"], series["kind"], series["note"]) == ("ddp", "strong", "")
    assert [point["world_size"] for point in series["points"]] == [2, 4, 8]
    assert [point["scaling_efficiency_pct"] for point in series["points"]] == pytest.approx(
        [100.0, 90.0, 70.0]
    )
    assert [point["samples_per_s_per_device"] for point in series["points"]] == pytest.approx(
        [500.0, 450.0, 350.0]
    )
    rows = compare(load_runs(tmp_path))["runs"]
    assert [row["scaling_efficiency_pct"] for row in rows] == pytest.approx([100.0, 90.0, 70.0])


def test_smaller_micro_batches_are_strong_scaling_too(tmp_path: Path) -> None:
    build(tmp_path, 2, 1000.0, micro_batch_size=32)
    build(tmp_path, 4, 1500.0, micro_batch_size=16)
    (series,) = scale(tmp_path)
    assert series["kind"] == "strong" and "smaller micro-batches" in series["what"]
    assert series["points"][1]["scaling_efficiency_pct"] == pytest.approx(75.0)


def test_a_batch_that_grows_along_is_weak_scaling(tmp_path: Path) -> None:
    build(tmp_path, 2, 1000.0, global_batch_size=64)
    build(tmp_path, 4, 1900.0, global_batch_size=128, steps=30, data_order_sha256="other")
    (series,) = scale(tmp_path)
    assert series["kind"] == "weak" and series["points"][1]["scaling_efficiency_pct"] == pytest.approx(95.0)


def test_a_batch_that_grows_otherwise_is_no_series(tmp_path: Path) -> None:
    build(tmp_path, 2, 1000.0, global_batch_size=64)
    build(tmp_path, 4, 1900.0, global_batch_size=96)
    assert scale(tmp_path) == []


@pytest.mark.parametrize("change", [{"model": "vit_base"}, {"precision": "bf16"}, {"device_name": "another"}])
def test_anything_else_that_differs_is_no_series(tmp_path: Path, change: dict[str, Any]) -> None:
    build(tmp_path, 2, 1000.0)
    build(tmp_path, 4, 1900.0, **change)
    assert scale(tmp_path) == []


def test_strategies_are_series_of_their_own_and_repeats_one_point(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build(tmp_path, 2, 1000.0, strategy=strategy)
        build(tmp_path, 4, 1600.0, strategy=strategy)
    build(tmp_path, 4, 1700.0, run="ddp-again", seed=1)
    build(tmp_path, 4, 1500.0, run="ddp-more", seed=2)
    series = scale(tmp_path)
    assert [entry["strategy"] for entry in series] == ["ddp", "fsdp"]
    assert series[0]["points"][1]["runs"] == ["ddp-4", "ddp-again", "ddp-more"]
    assert series[0]["points"][1]["samples_per_s"] == pytest.approx(1600.0)


def test_on_a_cpu_the_processes_share_the_cores(tmp_path: Path) -> None:
    build(tmp_path, 2, 1000.0, device="cpu")
    build(tmp_path, 4, 1100.0, device="cpu")
    assert scale(tmp_path)[0]["note"] == SHARED_CORES


def test_a_run_of_two_series_shows_the_efficiency_of_the_same_batch(tmp_path: Path) -> None:
    build(tmp_path, 2, 1000.0, run="ddp-a", global_batch_size=64, grad_accum_steps=2)
    build(tmp_path, 4, 1600.0, run="ddp-b", global_batch_size=64, grad_accum_steps=1)
    build(
        tmp_path, 2, 900.0, run="ddp-c",
        global_batch_size=32, grad_accum_steps=1, steps=30, data_order_sha256="other",
    )  # fmt: skip
    assert [(entry["kind"], entry["points"][1]["runs"]) for entry in scale(tmp_path)] == [
        ("strong", ["ddp-b"]),
        ("weak", ["ddp-b"]),
    ]
    rows = {row["run"]: row for row in compare(load_runs(tmp_path))["runs"]}
    assert rows["ddp-b"]["scaling_efficiency_pct"] == pytest.approx(80.0)


def test_the_speed_up_by_hand_and_against_one_process(tmp_path: Path) -> None:
    """single 480, two processes 800, four 1200: 1.5 times the two, 2.5 times the one."""
    build(tmp_path, 1, 480.0, strategy="single", grad_accum_steps=16)
    build(tmp_path, 2, 800.0, grad_accum_steps=8)
    build(tmp_path, 4, 1200.0, grad_accum_steps=4)
    report = compare(load_runs(tmp_path))
    (series,) = report["scaling"]
    assert (series["baseline"], series["single"]) == (
        2,
        {"runs": ["single-1"], "samples_per_s": pytest.approx(480.0)},
    )
    assert [point["speedup"] for point in series["points"]] == pytest.approx([1.0, 1.5])
    assert [point["scaling_efficiency_pct"] for point in series["points"]] == pytest.approx([100.0, 75.0])
    assert [point["speedup_vs_single"] for point in series["points"]] == pytest.approx([800 / 480, 2.5])
    assert series["points"][1]["efficiency_vs_single_pct"] == pytest.approx(62.5)
    assert (series["backend"], series["repeats"]) == ("nccl", 1)
    assert say_scaling([series]) == [
        "ddp, strong scaling, 2 -> 4: 1.5 times as fast, efficiency 75 %",
        "ddp, strong scaling, single -> 4: 2.5 times as fast, efficiency 62 %",
    ]
    row = report["runs"][1]
    assert (row["run"], row["speedup"], row["speedup_vs_single"]) == (
        "ddp-4",
        *map(pytest.approx, (1.5, 2.5)),
    )
    (section,) = build_choice(report)
    assert "speed-up against single" in section.html and "equal but for the strategy" in section.html
    assert "ddp: strong scaling" in build_markdown(report)


def test_strategies_on_one_device_scale_nothing(tmp_path: Path) -> None:
    build(tmp_path, 1, 500.0, strategy="single", grad_accum_steps=2)
    build(tmp_path, 1, 480.0, grad_accum_steps=2)
    assert scale(tmp_path) == []


def test_one_size_beside_single_is_a_speed_up_from_one(tmp_path: Path) -> None:
    build(tmp_path, 1, 500.0, strategy="single", grad_accum_steps=2)
    build(tmp_path, 2, 900.0, grad_accum_steps=1)
    (series,) = scale(tmp_path)
    (point,) = series["points"]
    assert (point["speedup"], point["scaling_efficiency_pct"]) == (None, None), "no smaller run of its own"
    assert point["speedup_vs_single"] == pytest.approx(1.8)
    assert say_scaling([series]) == ["ddp, strong scaling, single -> 2: 1.8 times as fast, efficiency 90 %"]
    (section,) = build_choice(compare(load_runs(tmp_path)))
    assert "that of single" in section.html


@pytest.mark.parametrize(
    "change", [{"lr": 0.5}, {"precision": "bf16"}, {"model": "vit_base"}, {"device_name": "another"}]
)
def test_single_with_another_setting_is_no_baseline(tmp_path: Path, change: dict[str, Any]) -> None:
    build(tmp_path, 1, 500.0, strategy="single", grad_accum_steps=2, **change)
    build(tmp_path, 2, 900.0, grad_accum_steps=1)
    assert scale(tmp_path) == []


def test_weak_scaling_from_single(tmp_path: Path) -> None:
    build(tmp_path, 1, 500.0, strategy="single", global_batch_size=32, grad_accum_steps=1)
    build(tmp_path, 2, 900.0, global_batch_size=64, steps=30, data_order_sha256="other", grad_accum_steps=1)
    (series,) = scale(tmp_path)
    assert series["kind"] == "weak" and series["points"][0]["efficiency_vs_single_pct"] == pytest.approx(90.0)


def test_more_repeats_of_one_size_than_of_the_other(tmp_path: Path) -> None:
    """Three runs at the smallest size, one at the larger: the larger one's band is that of one run."""
    for i, factor in enumerate((0.99, 1.0, 1.01)):
        build(tmp_path, 2, 1000.0 / factor, run=f"ddp-2{'abc'[i]}", seed=i, grad_accum_steps=8)
    build(tmp_path, 4, 1600.0, run="ddp-4", grad_accum_steps=4)
    (series,) = scale(tmp_path)
    last = series["points"][-1]
    # s = 1 % with two degrees of freedom: t = 4.303
    assert last["speedup_noise"] == pytest.approx(1.6 * 4.303 * 0.01 * (1 / 1 + 1 / 3) ** 0.5, rel=0.01)


def test_repeats_give_the_speed_up_its_noise(tmp_path: Path) -> None:
    """Step times 2 % around their mean, twice at each size: s = 1.414 %, t(2) = 4.303, of means of two."""
    for world_size, speed in ((2, 1000.0), (4, 1600.0)):
        for i, factor in enumerate((0.99, 1.01)):
            build(
                tmp_path, world_size, speed / factor, run=f"ddp-{world_size}{'ab'[i]}", seed=i,
                grad_accum_steps=16 // world_size,
            )  # fmt: skip
    (series,) = scale(tmp_path)
    first, last = series["points"]
    assert first["speedup_noise"] is None and series["repeats"] == 2
    assert last["speedup"] == pytest.approx(1.6, rel=1e-3)
    assert last["speedup_noise"] == pytest.approx(
        1.6 * 4.303 * 0.01 * 2**0.5 * (1 / 2 + 1 / 2) ** 0.5, rel=0.01
    )
    assert "1.6 \N{PLUS-MINUS SIGN} 0.097 times as fast" in say_scaling([series])[0]
