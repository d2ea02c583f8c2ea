"""A run's memory before its ranks start: what is foreseen, when it may not start, and how far off it was."""

import logging
from pathlib import Path

import pytest

from stratlab_spec.exit_codes import OutOfMemory
from stratlab_spec.memory.prediction import forecast_memory
from stratlab_spec.memory.profiles import GIB
from stratlab_spec.settings.config import Config
from trainer.launch import memory_limits as foreseen_memory
from trainer.launch.preflight import Pods
from trainer.metrics.summary import BAND_PCT, compare_forecast

VIT = {"model": "vit_huge", "dataset": "synthetic", "precision": "bf16", "train_samples": 64}
BATCH = {"micro_batch_size": 32, "global_batch_size": 512}
STATE = {"data_set": 0.5, "parameters": 2.0, "gradients": 2.0, "optimizer": 4.0, "rest": 2.0}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path


def config(results: Path, **settings: object) -> Config:
    return Config(**{"run": "try", "results": str(results), "strategy": "ddp", **VIT, **BATCH, **settings})


def check(run: Config, device_gib: float | None, monkeypatch: pytest.MonkeyPatch, ranks: int = 8) -> None:
    device = device_gib and int(device_gib * GIB)
    foreseen_memory.check_memory(run, Pods(1, ranks), device)


def test_what_cannot_fit_may_not_start_and_names_causes_and_what_to_try(results: Path, monkeypatch):
    foreseen = forecast_memory(config(results), 8, 8)
    assert foreseen
    check(config(results), foreseen.least_gib + 0.01, monkeypatch)
    with pytest.raises(OutOfMemory) as refused:
        check(config(results), foreseen.least_gib - 0.01, monkeypatch)
    told = str(refused.value)
    assert f" {foreseen.on_device_gib:.2f} GiB " in told and "activations " in told
    assert "run.config.micro_batch_size=16" in told and "memory_forecast=false" in told


@pytest.mark.parametrize(
    ("device_gib", "told"),
    [
        (13.8, "run.config.activation_checkpointing=blocks"),
        (13.0, "run.config.strategy=zero1"),
        (1.0, " 1.73 GiB "),
    ],
)
def test_nothing_is_tried_that_cannot_help(results: Path, monkeypatch, device_gib: float, told: str):
    """14.01 GiB are needed for one row, 13.57 for the state alone; 1.73 for CUDA's context and communicators."""
    with pytest.raises(OutOfMemory) as refused:
        check(config(results), device_gib, monkeypatch)
    assert told in str(refused.value) and "run.config.micro_batch_size" not in str(refused.value)


def test_what_does_not_keep_it_from_starting(results: Path, monkeypatch, caplog):
    check(config(results, memory_forecast=False), 6.0, monkeypatch)
    check(config(results, oom_fallback=True), 6.0, monkeypatch)
    for run, device_gib, told in (
        (config(results), 80.0, "80.00 GiB"),
        (config(results, reduce_dtype="bf16"), 6.0, "docs/predict.md"),
        (config(results), None, None),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            check(run, device_gib, monkeypatch)
        assert len(caplog.messages) == (told is not None) and (told or "") in caplog.text


def ranks(peak_gib: float, kept: dict | None = None, **held: float) -> list[dict]:
    state = {name: gib for name, gib in {**STATE, **held}.items() if name not in ("data_set", "rest")}
    facts = {"peak_gib": peak_gib, "state_gib": state, "kept_gib": kept}
    return [{"training_memory": None}, {"training_memory": facts}]


HELD = {"parameters": 1.5, "master copies": 0.5, "optimizer state": 4.0}
FORESEEN = {
    "peak_gib": 10.0, "workspace_gib": 0.0, "at_most": False,
    "causes_gib": HELD | {"gradients": 2.0, "activations": 1.5, "other": 0.5},
    "update_gib": HELD | {"gradients": 0.5, "gradient buckets": 1.5, "other": 0.2},
}  # fmt: skip


def test_a_run_as_foreseen_is_not_marked():
    found = compare_forecast(FORESEEN, 10.4, ranks(10.9, rest=2.4))
    assert found["forecast_memory_gib"] == 10.0 and found["forecast_memory_deviates"] is None
    assert found["forecast_memory_error_pct"] == pytest.approx(-3.846, abs=1e-3)
    assert found["forecast_parameters_error_gib"] == 0
    assert found["forecast_rest_error_gib"] == pytest.approx(-0.4)


def test_cublas_own_room_lies_in_the_allocator_s_count():
    parts = ("causes_gib", "update_gib")
    small = {name: {cause: gib / 100 for cause, gib in FORESEEN[name].items()} for name in parts}
    forecast = {**FORESEEN, **small, "peak_gib": 0.1, "workspace_gib": 0.0625}
    held = {"parameters": 0.02, "gradients": 0.02, "optimizer": 0.04}
    found = compare_forecast(forecast, 0.165, ranks(0.2, **held))
    assert found["forecast_memory_gib"] == pytest.approx(0.1625) and found["forecast_memory_deviates"] is None
    assert sum(gib for name, gib in found.items() if name.endswith("_error_gib")) == pytest.approx(-0.0025)
    without = compare_forecast({**forecast, "workspace_gib": 0.0}, 0.165, ranks(0.2, **held))
    assert without["forecast_memory_deviates"] == "rest"
    assert compare_forecast(forecast, None, [])["forecast_memory_gib"] == 0.1, "on a CPU there is none"


@pytest.mark.parametrize(
    ("peak", "held", "part"),
    [
        (12.0, {"parameters": 4.0}, "parameters"),
        (12.0, {"rest": 4.0}, "rest"),
        (12.0, {"buckets": 2.0}, "gradients"),
        (12.0, {"optimizer": 3.5, "gradients": 4.0}, "gradients"),
        (12.0, {"kept": {"gradients": 2.0, "logits": 0.1}}, "gradients"),
        (12.0, {"kept": {"logits": 2.0}}, "logits"),
        (8.0, {"optimizer": 2.0}, "optimizer"),
    ],
)
def test_a_run_outside_of_the_band_is_marked_with_its_part(peak: float, held: dict, part: str):
    found = compare_forecast(FORESEEN, peak, ranks(peak + 0.5, **held))
    assert abs(found["forecast_memory_error_pct"]) > BAND_PCT and found["forecast_memory_deviates"] == part
