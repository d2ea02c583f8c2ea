"""The forecast of a run's step: by part, against kept runs of an H200, and without a card."""

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.settings.config import Config
from stratlab_spec.step_parts import PARTS
from stratlab_spec.step_time.kernels import CARDS, DEVICE_NAMES, find_card_of_device
from stratlab_spec.step_time.step_forecast import (
    BAND_PCT,
    HOST_BOUND_PCT,
    OF_STEP_PARTS,
    compare_parts,
    compare_step,
    forecast_step_time,
)

H200 = Path(__file__).parents[2] / "data/runs/h200"
VIT = {"run": "try", "model": "vit_base", "dataset": "synthetic", "precision": "bf16", "image_size": 224}
BATCH = {"micro_batch_size": 256, "global_batch_size": 256}


def forecast(
    strategy: str = "ddp", device: str = "NVIDIA H200", ranks: int = 1, **more: Any
) -> dict[str, Any]:
    batch = {**BATCH, "global_batch_size": 256 * ranks}
    return forecast_step_time(
        Config(**{**VIT, **batch, "strategy": strategy, **more}), ranks, min(ranks, 8), device
    )


def test_a_card_is_known_by_its_whole_name():
    assert {*DEVICE_NAMES.values()} == {*CARDS}
    assert find_card_of_device("NVIDIA H200") is CARDS["h200"]
    others = (
        "NVIDIA H100 PCIe",
        "NVIDIA H200 NVL",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "Intel(R) Xeon(R)",
        "",
    )
    assert [find_card_of_device(name) for name in others] == [None] * len(others)


@pytest.mark.parametrize(
    ("strategy", "late"),
    [("single", None), ("ddp", None), ("fsdp", None), ("zero2", None), ("zero3", "forward")],
)
def test_kept_runs_of_an_h200_are_in_their_bands_and_the_other_names_its_phase(
    strategy: str, late: str | None
):
    """zero3 took 2.2 times as long, because the host waits in each module: its band ends at twice the forecast."""
    found = forecast(strategy)
    assert sum(found["parts_ms"].values()) == pytest.approx(found["step_ms"])
    after_the_last_phase = found["step_ms"] - sum(found["phases_ms"].values())
    assert 0 <= round(after_the_last_phase, 6) <= found["parts_ms"]["comm"]
    measured = json.loads((H200 / f"vit_base-{strategy}" / "summary.json").read_text())
    told = compare_step(found, measured)
    assert told["forecast_step_deviates"] == late
    assert told["forecast_step_error_pct"] == pytest.approx(
        100 * (found["step_ms"] / measured["step_time_ms_p50"] - 1)
    )
    assert told["forecast_backward_error_ms"] == found["phases_ms"]["backward"] - measured["backward_ms_p50"]
    assert abs(told["forecast_step_error_pct"]) < (3 if strategy in ("single", "ddp", "fsdp") else 100)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"device": "Intel(R) Xeon(R)"}, "Intel(R) Xeon(R)"),
        ({"precision": "fp32"}, "precision=fp32"),
        ({"mode": "check"}, "mode=check"),
    ],
)
def test_without_a_card_or_a_recording_there_is_a_reason_and_no_number(asked: dict[str, Any], reason: str):
    found = forecast(**asked)
    assert found.keys() == {"step_ms", "reason"} and found["step_ms"] is None and reason in found["reason"]
    assert compare_step(found, {"step_time_ms_p50": 5.0}) == {}
    assert compare_parts(found, [{"part": "compute", "ms": 1.0}]) == found


def test_bands_are_wider_where_the_host_decides_and_several_nodes_name_their_network():
    assert forecast("ddp")["band_pct"] == [*BAND_PCT] and forecast("ddp", compile=True)["band_pct"] == [
        *BAND_PCT
    ]
    assert forecast("zero3")["band_pct"] == forecast("fsdp", compile=True)["band_pct"] == [*HOST_BOUND_PCT]
    assert forecast("ddp", ranks=8)["network"] is None
    several = forecast("ddp", ranks=16)
    assert several["network"] and several["parts_ms"]["comm"] > 0


KNOWN = {"step_ms": 100.0, "reason": None, "card": "h200", "network": None, "band_pct": [-30, 30]}
KNOWN |= {"parts_ms": {"compute": 90.0, "comm": 10.0, "host": 0.0, "other_idle": 0.0}}


@pytest.mark.parametrize(
    ("measured", "late"),
    [
        ({"compute": 80.0, "kernel_wait": 5.0, "copy": 5.0, "comm": 20.0, "host": 15.0}, None),
        ({"compute": 90.0, "comm": 15.0, "straggler": 10.0, "host": 20.0}, "host"),
        ({"compute": 90.0, "comm": 20.0, "straggler": 15.0, "host": 10.0}, "comm"),
        ({"compute": 80.0, "kernel_wait": 40.0, "comm": 20.0}, "compute"),
        ({"compute": 90.0, "data": 30.0, "comm": 15.0}, "other_idle"),
        ({"compute": 60.0, "comm": 9.0}, "compute"),
    ],
)
def test_recorded_parts_stand_next_to_the_forecast_and_the_one_that_deviates_is_named(
    measured: dict[str, float], late: str | None
):
    found = compare_parts(KNOWN, [{"part": name, "ms": ms} for name, ms in measured.items()])
    assert found["deviates"] == late
    assert found["error_pct"] == pytest.approx(100 * (100 / sum(measured.values()) - 1))
    assert sum(part["measured_ms"] for part in found["parts"]) == pytest.approx(sum(measured.values()))


def test_every_part_of_the_partition_is_in_one_part_of_the_forecast():
    every = [key for keys in OF_STEP_PARTS.values() for key in keys]
    assert sorted(every) == sorted(part.key for part in PARTS if part.key)


@pytest.mark.parametrize(
    "damage",
    [
        {"step_ms": "fast"},
        {"step_ms": -1},
        {"band_pct": [1]},
        {"band_pct": None},
        {"parts_ms": {"compute": None}},
    ],
)
def test_a_file_of_another_form_has_no_forecast(damage: dict[str, Any]):
    assert compare_parts(KNOWN | damage, [{"part": "compute", "ms": 1.0}])["step_ms"] is None
