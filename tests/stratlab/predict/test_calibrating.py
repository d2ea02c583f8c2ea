"""What becomes of measured rates and of finished runs, without starting anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab import UserError
from stratlab.predict import calibrating
from stratlab.predict.calibrating import LEAST_STEPS, SETTINGS, WARM_UP, build_known, read_step, refine
from stratlab.predict.timing import find_machine
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.measured_machine import BETWEEN, COPY, HOP, HOST, INSIDE, PRODUCT
from stratlab_spec.step_time.step_forecast import find_band, find_measured_band

RATES = {PRODUCT: [0.02, 0.03, 0.04], COPY: [0.01] * 3, INSIDE: [1.0] * 3, BETWEEN: []}
MEASURED: dict[str, Any] = {
    "device": "cpu", "hardware": "CPU", "memory_gib": 8.0, "ranks_of_node": 2, "nodes": 1, "rates": RATES,
}  # fmt: skip


def write_run(folder: Path, strategy: str, step_ms: float, steps: int = 40, **resolved: Any) -> Path:
    """Write what a finished run on two CPU ranks leaves: slow first steps, and slow ones from the profile on."""
    given = {
        **SETTINGS,
        "strategy": strategy,
        "run": strategy,
        "global_batch_size": "8",
        "profile_steps": "3",
    }
    config = Config.from_env({f"TRAINER_{name.upper()}": value for name, value in given.items()})
    folder.mkdir(parents=True)
    profiled = steps - 5
    facts = {
        "world_size": 2,
        "processes_per_node": 2,
        "backend": "gloo",
        "profile_first_step": profiled,
        **resolved,
    }
    (folder / "config.json").write_text(json.dumps({"config": config.model_dump(), "resolved": facts}))
    rows = [
        {"kind": "train", "step": number, "step_time_ms": step_ms * (1 if WARM_UP < number < profiled else 9)}
        for number in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_rates_become_scalars_with_the_spread_of_their_repeats() -> None:
    found = build_known(MEASURED, "")
    assert (found.card_name, found.backend) == ("cpu", "gloo")
    assert set(found.scalars) == {PRODUCT, COPY, HOST, HOP}
    value, uncertainty = found.scalars[PRODUCT]
    assert (value, uncertainty) == (0.03, pytest.approx(100 * 1.48 / 3))
    on_gpus = build_known(
        {**MEASURED, "device": "cuda", "nodes": 2, "rates": {**RATES, BETWEEN: [40.0]}}, "h100"
    )
    assert on_gpus.scalars[PRODUCT].uncertainty_pct > uncertainty  # one rate for products of all shapes
    assert set(on_gpus.scalars) == {PRODUCT, COPY, HOST, INSIDE, BETWEEN} and on_gpus.backend == "nccl"


@pytest.mark.parametrize(("device", "gpu"), [("cpu", "h100"), ("cuda", ""), ("cuda", "cpu")])
def test_another_card_than_was_measured_is_refused(device: str, gpu: str) -> None:
    with pytest.raises(UserError, match="SL-calibrate-gpu"):
        build_known({**MEASURED, "device": device}, gpu)


def test_a_finished_run_counts_without_its_warm_up_and_its_profile(tmp_path: Path) -> None:
    assert read_step(write_run(tmp_path / "ddp", "ddp", 30.0), WARM_UP, 5.0).measured_ms == 30.0


def test_finished_runs_move_the_host_and_others_are_named(tmp_path: Path) -> None:
    machine = build_known(MEASURED, "")
    usual = read_step(write_run(tmp_path / "a" / "ddp", "ddp", 1.0), WARM_UP, 5.0).predict_ms(machine)
    slow = write_run(tmp_path / "b" / "ddp", "ddp", 3 * usual)
    short = write_run(tmp_path / "b" / "short", "ddp", usual, WARM_UP + LEAST_STEPS)
    other = write_run(tmp_path / "b" / "nccl", "ddp", usual, backend="nccl")
    several = write_run(tmp_path / "b" / "nodes", "ddp", usual, processes_per_node=1)
    told: list[str] = []
    found = refine(machine, [slow, short, other, several, tmp_path], told.append)
    assert found.origin.steps == 1 and len([line for line in told if "left out" in line]) == 4
    assert read_step(slow, WARM_UP, 5.0).predict_ms(found) == pytest.approx(3 * usual, rel=0.1)
    assert found.scalars[HOST].value > 1.2
    with pytest.raises(UserError, match="SL-calibrate-no-runs"):
        refine(machine, [short], told.append)


def test_a_calibrated_machine_has_a_narrower_band_than_constants(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    run = write_run(tmp_path / "ddp", "ddp", 30.0)
    config = Config(**calibrating.list_given(json.loads((run / "config.json").read_text())["config"]))
    refine(build_known(MEASURED, ""), [run], lambda _: None).write(file)
    calibrated, constants = find_measured_band(config, 2, 2, find_machine(file, "CPU")), find_band(config)
    assert constants[0] < calibrated[0] < 0 < calibrated[1] < constants[1]
    with pytest.raises(UserError, match="SL-machine-of-another-gpu"):
        find_machine(file, "h100")
    with pytest.raises(UserError, match="SL-machine-unreadable"):
        find_machine(tmp_path / "none.json", "")
