"""The search: what comes next, what wins, and what is out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stratlab.compare.judging.noise import build_band
from stratlab.sweep.tuning.search import METRICS, Knobs, Measured, Search, compute_lead, name_knobs, search

THROUGHPUT = METRICS["throughput"]
VALUES: dict[str, list[Any]] = {"a": [1, 2], "b": ["x"], "c": [True]}


def follow(speed: Callable[[Knobs], float | None], most: int = 10) -> tuple[Search, list[list[str]]]:
    """To the end, with the candidates of each round."""
    measured: dict[str, Measured] = {}
    rounds: list[list[str]] = []
    while True:
        found = search(VALUES, measured, most, THROUGHPUT)
        if not found.following:
            return found, rounds
        rounds.append([name_knobs(each) for each in found.following])
        for each in found.following:
            value = speed(each)
            measured[name_knobs(each)] = Measured((value,)) if value else Measured((), "out of memory")


def test_one_knob_at_a_time_and_the_best_is_kept() -> None:
    found, rounds = follow(
        lambda knobs: 100 + 10 * (knobs.get("a") == 2) - 5 * ("b" in knobs) + 5 * ("c" in knobs)
    )
    assert rounds == [[""], ["a=1", "a=2"], ["a=2,b=x"], ["a=2,c=true"]], "b is worse: c is tried without it"
    assert found.best == {"a": 2, "c": True} and found.not_tried == ()
    assert [name_knobs(each) for each, _ in found.tried] == ["", "a=1", "a=2", "a=2,b=x", "a=2,c=true"]


def test_the_defaults_are_one_of_the_candidates_that_may_be_tried() -> None:
    found, rounds = follow(lambda knobs: 100.0, most=3)
    assert rounds == [[""], ["a=1", "a=2"]] and found.best == {}
    assert found.not_tried == ({"b": "x"}, {"c": True})
    found, rounds = follow(lambda knobs: 100.0, most=2)
    assert rounds == [[""], ["a=1"]] and found.not_tried == ({"a": 2}, {"b": "x"}, {"c": True})


def test_of_a_default_that_is_zero_there_is_no_share() -> None:
    zero, one = Measured((0.0,)), Measured((1.0,))
    band = build_band([(1.0, 1.1), (1.0, 1.2)])
    for mine, theirs, lead_pct in ((one, zero, -100.0), (zero, zero, 0.0), (zero, one, 100.0)):
        lead = compute_lead(mine, theirs, METRICS["memory"], band)
        assert lead and lead.lead_pct == lead_pct


def test_a_lead_that_chance_would_explain_changes_nothing() -> None:
    assert follow(lambda knobs: 101.9 if "a" in knobs else 100.0)[0].best == {}, "below 2 %, from one repeat"
    assert follow(lambda knobs: 102.1 if "a" in knobs else 100.0)[0].best == {"a": 1}


def test_repeats_tell_the_noise_that_a_lead_must_exceed() -> None:
    runs = {"": (100.0, 104.0), "a=1": (108.0, 112.0)}
    measured = {name: Measured(values) for name, values in runs.items()}
    band = build_band(list(runs.values()))
    lead = compute_lead(measured["a=1"], measured[""], THROUGHPUT, band)
    assert lead and lead.measured_noise and lead.lead_pct == pytest.approx(7.84, abs=0.01)
    assert lead.noise_pct > lead.lead_pct and not lead.is_real
    assert search({"a": [1]}, measured, 4, THROUGHPUT).best == {}
    measured["a=1"] = Measured((128.0, 132.0))
    assert search({"a": [1]}, measured, 4, THROUGHPUT).best == {"a": 1}


def test_what_failed_is_out_and_the_search_goes_on() -> None:
    found, _ = follow(lambda knobs: None if knobs.get("a") == 2 else 100 + 5 * ("a" in knobs))
    assert found.best == {"a": 1}
    assert dict((name_knobs(k), m.why) for k, m in found.tried)["a=2"] == "out of memory"
    found, _ = follow(lambda knobs: None if knobs == {} else 100.0)
    assert found.best == {"a": 1}, "whatever works is better than defaults that do not"
    assert follow(lambda knobs: None)[0].best == {}


def test_a_candidate_is_worth_the_median_of_its_repeats() -> None:
    assert Measured((1.0, 2.0, 30.0)).value == 2.0 and Measured(()).value is None
    keys = {name: metric.key for name, metric in METRICS.items()}
    assert keys["throughput"] == "samples_per_s" and keys["step_time"] == "step_time_ms_p50"
    assert keys["memory"] == "peak_memory_gib"
    measured = {"": Measured((100.0,)), "a=1": Measured((90.0,)), "a=2": Measured((110.0,))}
    for name, best in (("step_time", 1), ("memory", 1), ("throughput", 2)):
        assert search({"a": [1, 2]}, measured, 4, METRICS[name]).best == {"a": best}
