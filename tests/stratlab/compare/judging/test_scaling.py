from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.efficiency import SHARED_CORES
from tests.stratlab.compare.building import Report, judge, rows_of

WEAK = {"steps": 30, "data_order_sha256": "other"}
"""Of a batch twice as large."""


def scale(root: Path, runs: dict[str, tuple[int, float, dict[str, Any]]], **common: Any) -> Report:
    """Name -> processes, samples per second, changes."""
    given = {
        name: {"world_size": size, "processes_per_node": size, "samples_per_s": speed, **changes}
        for name, (size, speed, changes) in runs.items()
    }
    return judge(root, given, **common)


def test_strong_scaling_by_hand(tmp_path: Path) -> None:
    speeds = ((2, 1000.0), (4, 1800.0), (8, 2800.0))
    report = scale(tmp_path, {f"ddp-{n}": (n, speed, {"grad_accum_steps": 16 // n}) for n, speed in speeds})
    (series,) = report["scaling"]
    assert (series["strategy"], series["kind"], series["note"], series["baseline"]) == (
        "ddp",
        "strong",
        "",
        2,
    )
    found = {name: [point[name] for point in series["points"]] for name in series["points"][0]}
    assert found["world_size"] == [2, 4, 8] and found["speedup"] == pytest.approx([1.0, 1.8, 2.8])
    assert found["scaling_efficiency_pct"] == pytest.approx([100.0, 90.0, 70.0])
    assert found["samples_per_s_per_device"] == pytest.approx([500.0, 450.0, 350.0])
    assert [row["scaling_efficiency_pct"] for row in report["runs"]] == pytest.approx([100.0, 90.0, 70.0])


@pytest.mark.parametrize(
    ("small", "large", "kind", "efficiency"),
    [
        ({"micro_batch_size": 32}, {"micro_batch_size": 16}, "strong", 95.0),
        ({"global_batch_size": 64}, {"global_batch_size": 128, **WEAK}, "weak", 95.0),
        ({"global_batch_size": 64}, {"global_batch_size": 96}, "", None),  # a batch that grows otherwise
        ({}, {"model": "vit_base"}, "", None),
        ({}, {"device_name": "another"}, "", None),
    ],
)
def test_what_grows_along(
    tmp_path: Path, small: dict[str, Any], large: dict[str, Any], kind: str, efficiency: float | None
) -> None:
    found = scale(tmp_path, {"ddp-2": (2, 1000.0, small), "ddp-4": (4, 1900.0, large)})["scaling"]
    assert [series["kind"] for series in found] == [kind] * bool(kind)
    if efficiency:
        assert found[0]["points"][1]["scaling_efficiency_pct"] == pytest.approx(efficiency)


def test_strategies_are_series_of_their_own_and_repeats_one_point(tmp_path: Path) -> None:
    runs = {f"{name}-{n}": (n, 400.0 * n, {}) for name in ("ddp", "fsdp") for n in (2, 4)}
    runs |= {"ddp-again": (4, 1700.0, {"seed": 1}), "ddp-more": (4, 1500.0, {"seed": 2})}
    series = scale(tmp_path, runs, device="cpu")["scaling"]
    assert [entry["strategy"] for entry in series] == ["ddp", "fsdp"]
    assert series[0]["points"][1]["runs"] == ["ddp-4", "ddp-again", "ddp-more"]
    assert series[0]["points"][1]["samples_per_s"] == pytest.approx(1600.0)
    assert series[0]["note"] == SHARED_CORES


def test_a_run_of_two_series_shows_the_efficiency_of_the_same_batch(tmp_path: Path) -> None:
    report = scale(
        tmp_path,
        {
            "ddp-a": (2, 1000.0, {"global_batch_size": 64, "grad_accum_steps": 2}),
            "ddp-b": (4, 1600.0, {"global_batch_size": 64, "grad_accum_steps": 1}),
            "ddp-c": (2, 900.0, {"global_batch_size": 32, "grad_accum_steps": 1, **WEAK}),
        },
    )
    found = [(entry["kind"], entry["points"][1]["runs"]) for entry in report["scaling"]]
    assert found == [("strong", ["ddp-b"]), ("weak", ["ddp-b"])]
    assert rows_of(report)["ddp-b"]["scaling_efficiency_pct"] == pytest.approx(80.0)


def test_the_speed_up_by_hand_and_against_one_process(tmp_path: Path) -> None:
    """single 480, two processes 800, four 1200: 1.5 times the two, 2.5 times the one."""
    speeds = {"single": (1, 480.0), "ddp-2": (2, 800.0), "ddp-4": (4, 1200.0)}
    report = scale(
        tmp_path, {run: (n, speed, {"grad_accum_steps": 16 // n}) for run, (n, speed) in speeds.items()}
    )
    (series,) = report["scaling"]
    assert series["single"] == {"runs": ["single"], "samples_per_s": pytest.approx(480.0)}
    assert [point["speedup_vs_single"] for point in series["points"]] == pytest.approx([800 / 480, 2.5])
    assert series["points"][1]["efficiency_vs_single_pct"] == pytest.approx(62.5)
    assert (series["backend"], series["repeats"]) == ("nccl", 1)
    row = rows_of(report)["ddp-4"]
    assert (row["speedup"], row["speedup_vs_single"]) == (pytest.approx(1.5), pytest.approx(2.5))


@pytest.mark.parametrize(
    ("single", "ddp", "kind"),
    [
        ((1, {}), (2, {"grad_accum_steps": 1}), "strong"),
        ((1, {"global_batch_size": 32, "grad_accum_steps": 1}), (2, {"grad_accum_steps": 1, **WEAK}), "weak"),
        ((1, {}), (1, {"grad_accum_steps": 2}), ""),  # on one device nothing scales
        ((1, {"lr": 0.5}), (2, {"grad_accum_steps": 1}), ""),
        ((1, {"device_name": "another"}), (2, {"grad_accum_steps": 1}), ""),
    ],
)
def test_one_size_beside_single_is_a_speed_up_from_one(
    tmp_path: Path, single: tuple[int, dict[str, Any]], ddp: tuple[int, dict[str, Any]], kind: str
) -> None:
    one = (single[0], 500.0, {"grad_accum_steps": 2, **single[1]})
    found = scale(tmp_path, {"single": one, "ddp": (ddp[0], 900.0, ddp[1])})["scaling"]
    assert [series["kind"] for series in found] == [kind] * bool(kind)
    if found:
        (point,) = found[0]["points"]
        assert (point["speedup"], point["scaling_efficiency_pct"]) == (None, None), (
            "no smaller run of its own"
        )
        assert point["speedup_vs_single"] == pytest.approx(1.8)
        assert point["efficiency_vs_single_pct"] == pytest.approx(90.0)


@pytest.mark.parametrize(
    ("repeats", "of_one", "band"),
    [
        ((0.99, 1.0, 1.01), (1.0,), 4.303 * 0.01 * (1 / 1 + 1 / 3) ** 0.5),  # s = 1 %, two degrees
        (
            (0.99, 1.01),
            (0.99, 1.01),
            4.303 * 0.01 * 2**0.5 * (1 / 2 + 1 / 2) ** 0.5,
        ),  # s = 1.414 %, two degrees
    ],
)
def test_repeats_give_the_speed_up_its_noise(
    tmp_path: Path, repeats: tuple[float, ...], of_one: tuple[float, ...], band: float
) -> None:
    """t(2) = 4.303; of as many repeats as each size has."""
    runs = {
        f"ddp-{size}{'abc'[i]}": (size, speed / factor, {"seed": i, "grad_accum_steps": 16 // size})
        for size, speed, factors in ((2, 1000.0, repeats), (4, 1600.0, of_one))
        for i, factor in enumerate(factors)
    }
    (series,) = scale(tmp_path, runs)["scaling"]
    first, last = series["points"]
    assert first["speedup_noise"] is None and series["repeats"] == len(of_one)
    assert last["speedup"] == pytest.approx(1.6, rel=1e-3)
    assert last["speedup_noise"] == pytest.approx(1.6 * band, rel=0.01)
