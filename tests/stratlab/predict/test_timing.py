"""Speeds of predicted runs: ranking, ties, prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratlab import UserError
from stratlab.predict.timing import TIE_PCT, Speed, Speeds, find_card
from stratlab_spec.step_time.kernels import CARDS
from stratlab_spec.step_time.measured_machine import MeasuredMachine, Origin

MACHINE = MeasuredMachine("h100", "nccl", 8, 79.2, {}, Origin("2026-11-30", "H100", 1, 32))


def speed(name: str, per_s: float, **others: Any) -> Speed:
    return Speed(name, 1000.0, "tokens", per_s, 40.0, 5.0, 1.0, gpus=4, **others)


def speeds(*found: Speed, fitting: tuple[str, ...] = ("a", "b", "c")) -> Speeds:
    return Speeds(CARDS["h100"], {one.name: one for one in found}, fitting)


def test_the_fastest_run_that_fits_comes_first() -> None:
    found = speeds(speed("a", 100), speed("b", 200), speed("large", 300))
    assert [one.name for one in found.ranked] == ["b", "a", "large"]
    assert [one.name for one in found.best] == ["b"]


def test_runs_within_the_tie_are_named_together() -> None:
    near, far = 100 * (1 - (TIE_PCT - 1) / 100), 100 * (1 - (TIE_PCT + 1) / 100)
    found = speeds(speed("a", far), speed("b", 100), speed("c", near))
    assert [one.name for one in found.best] == ["b", "c"]


def test_the_price_counts_all_gpus() -> None:
    """1,000 tokens per second on 4 GPUs at 3.6 an hour: a million takes 1,000 s = 4,000 GPU-s = 4.0."""
    assert speed("a", 1000).price_per_million(3.6) == pytest.approx(4.0)


def test_without_a_run_that_fits_no_run_is_best() -> None:
    assert speeds(speed("a", 100), fitting=()).best == []


def test_a_card_without_constants_is_refused() -> None:
    assert find_card("H100") is CARDS["h100"]
    with pytest.raises(UserError, match="SL-predict-gpu"):
        find_card("h1000")


def test_with_a_calibrated_machine_overlapping_bands_are_a_tie() -> None:
    narrow = {"band_pct": (-2, 2)}
    found = Speeds(
        CARDS["h100"],
        {
            name: replace(speed(name, per_s, **narrow), step_ms=1e5 / per_s)
            for name, per_s in (("a", 100), ("b", 97), ("c", 95))
        },
        ("a", "b", "c"),
        MACHINE,
    )
    assert [one.name for one in found.best] == ["a", "b"]
    assert found.as_dict("a", None)["speed"]["machine"]["date"] == MACHINE.origin.date
