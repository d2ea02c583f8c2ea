"""Energy, use of the GPUs and the time to a target, by hand: unequal ranks, a restart, odd intervals."""

import json
from typing import Any

import pytest

from trainer.metrics.final import build_course


def course(*found: dict[str, Any], ranks: int = 1, **target: float) -> dict[str, Any]:
    """The course of attempts that have `ranks`, the second of two."""
    lines = [json.dumps(line).encode() + b"\n" for line in found]
    return build_course(lines, {1: ranks, 2: 2}, next(iter(target.items()), None))


def train(t: float, step: int, attempt: int = 1, ms: float = 1000.0) -> dict[str, Any]:
    return {"t": t, "attempt": attempt, "step": step, "kind": "train", "loss": 1.0, "step_time_ms": ms}


def system(t: float, powers: list[float], attempt: int = 1, **more: list[float]) -> dict[str, Any]:
    values = {
        "power_w": powers,
        "utilisation_pct": [50.0] * len(powers),
        "temperature_c": [60.0] * len(powers),
    }
    named = {f"rank{i}_gpu_{n}": v for n, found in (values | more).items() for i, v in enumerate(found)}
    return {"t": t, "attempt": attempt, "step": 1, "kind": "system", "rank0_host_memory_gib": 1.0, **named}


def validation(t: float, step: int, accuracy: float, seconds: float, attempt: int = 1) -> dict[str, Any]:
    found = {"validation_loss": 1.0, "validation_accuracy_pct": accuracy, "train_time_s": seconds}
    return {"t": t, "attempt": attempt, "step": step, "kind": "eval", **found}


def test_power_is_summed_over_ranks_and_time() -> None:
    found = course(
        train(102.0, 1, ms=2000.0),  # began at 100
        train(103.0, 2),
        system(110.0, [300.0, 500.0], utilisation_pct=[80.0, 100.0], temperature_c=[60.0, 71.0]),
        {"t": 111.0, "attempt": 1, "step": 2, "kind": "system", "checkpoint_ms": 5.0},
        system(113.0, [100.0, 200.0], utilisation_pct=[10.0, 20.0], temperature_c=[65.0, 61.0]),
        ranks=2,
    )
    joules, nothing = 10 * 800 + 3 * 300, ("epoch_time_s", "train_accuracy_pct", "time_to_target_s")
    assert found == dict.fromkeys(nothing) | {
        "train_energy_wh": pytest.approx(joules / 3600), "train_power_w": pytest.approx(joules / 13),
        "gpu_utilisation_pct": pytest.approx((10 * 90 + 3 * 15) / 13), "gpu_temperature_c": 71.0,
        "not_finite_steps": 0,
    }  # fmt: skip


def test_an_earlier_attempt_has_used_energy_too_and_the_pause_between_them_none() -> None:
    found = course(
        train(101.0, 1), system(110.0, [360.0]), train(1001.0, 1, attempt=2),
        system(1005.0, [100.0, 260.0], attempt=2),  # restarted with another number of ranks
    )  # fmt: skip
    assert found["train_energy_wh"] == pytest.approx((10 * 360 + 5 * 360) / 3600)
    assert found["train_power_w"] == pytest.approx(360)


def test_the_first_validation_that_reaches_the_target_counts() -> None:
    found = (
        train(1.0, 1), validation(2.0, 10, 70.0, 11.0), validation(3.0, 20, 91.0, 22.0),
        validation(4.0, 30, 89.0, 33.0), validation(5.0, 40, 95.0, 44.0),
    )  # fmt: skip
    times = {p: course(*found, validation_accuracy_pct=p)["time_to_target_s"] for p in (60, 90, 92, 99)}
    assert times == {60: 11.0, 90: 22.0, 92: 44.0, 99: None}


def test_steps_and_epochs_that_were_made_again_count_as_made_again() -> None:
    found = (
        train(1.0, 1), validation(3.0, 20, 91.0, 22.0), train(5.0, 11, attempt=2),
        validation(6.0, 20, 89.0, 25.0, attempt=2), validation(7.0, 30, 92.0, 36.0, attempt=2),
    )  # fmt: skip
    assert course(*found, validation_accuracy_pct=90)["time_to_target_s"] == 36.0

    def epoch(number: int, seconds: float, accuracy: float, attempt: int) -> dict[str, Any]:
        told = {"epoch": number, "epoch_time_s": seconds, "epoch_train_accuracy_pct": accuracy}
        return {"t": 9.0, "attempt": attempt, "step": 9, "kind": "epoch", **told}

    found = course(train(1.0, 1), epoch(1, 10.0, 50.0, 1), epoch(2, 30.0, 60.0, 1), epoch(2, 20.0, 61.0, 2))
    assert (found["epoch_time_s"], found["train_accuracy_pct"]) == (15.0, 61.0)


def test_steps_that_were_not_finite_are_counted_over_all_attempts() -> None:
    def event(attempt: int, step: int, **more: object) -> dict[str, Any]:
        return {"t": 1.0, "attempt": attempt, "step": step, "kind": "event", "name": "not finite", **more}

    told = [event(1, 3, not_finite_steps=1), event(1, 9, not_finite_steps=4), event(2, 5, not_finite_steps=2)]
    others = [event(2, 6), event(2, 7, not_finite_steps="many"), train(2.0, 8)]
    assert course(*told, *others)["not_finite_steps"] == 6
