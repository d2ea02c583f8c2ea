"""The loop of a tuning with real charts and helm; the place where candidates run is a stand-in with known speeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stratlab.rendering.helm import REPOSITORY, find_helm
from stratlab.sweep.definition import Sweep
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import State, read_state
from stratlab.sweep.tuning.candidates import name_candidate
from stratlab.sweep.tuning.tuning_loop import Workbench, tune_strategies
from stratlab.user_error import UserError
from tests.stratlab.sweep.test_work import Silent

SWEEP: dict[str, Any] = {
    "comparison": "demo",
    "charts": str(REPOSITORY / "charts"),
    "matrix": {"strategy": ["ddp", "fsdp"]},
    "repeats": 2,
    "set": {"run.accelerator": "", "run.config.dataset": "digits", "run.config.global_batch_size": 128},
    "tune": {
        "knobs": {"ddp": {"reduce_bucket_mib": [50, 100], "reduce_dtype": ["bf16"]}},
        "steps": 20,
        "candidates": 4,
    },
}


class Display(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def pass_by(self, text: str) -> None:
        pass


@dataclass
class StandInPlace:
    """Runs what has not ended; `speed` of the settings, in samples per s, an exception where the run fails."""

    speed: Callable[[Mapping[str, Any]], float]
    ran: list[str] = field(default_factory=list)
    unfinished: str = ""
    compared: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        assert not stop_on_failure, "one bad candidate ends no tuning"
        for planned in plan:
            name, config = planned.release.name, planned.values["run"]["config"]
            assert config["comparison"] == "demo-tuning" and config["steps"] == 20
            before = state.releases.get(name)
            if not before or before.stage == "running":
                self.ran.append(name)
                try:
                    value = self.speed(config)
                    self.rows[name] = {
                        "run": name,
                        "status": "finished",
                        "attempts": 1,
                        "samples_per_s": value,
                    }
                    stage, sentence = "succeeded", ""
                except MemoryError as failure:
                    stage, sentence = "failed", str(failure)
                stage = "running" if name == self.unfinished else stage
                state = state.record(name, stage=stage, asked=planned.asked, sentence=sentence)
        return state, []

    def compare(
        self, plan: Sequence[Planned], comparison: str, output: Path, tuning: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        assert comparison == "demo-tuning" and tuning is None
        self.compared.append(comparison)
        return {"runs": list(self.rows.values()), "origin": {"backend": "none", "device": "stand-in"}}


def build_bench(display: Any = None) -> Workbench:
    display = display or Display()
    return Workbench(Sweep.model_validate(SWEEP), Path("/"), find_helm(), display)


def tune(place: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of each release of the comparison, and the record."""
    state = read_state(folder / "s.json", "demo-tuning", "lab")
    releases, record = tune_strategies(build_bench(), place, state, folder / "report", retry_failed=False)
    return {release.name: release.values["run"]["config"] for release in releases}, record


def prefer_large_buckets(config: Mapping[str, Any]) -> float:
    return 100.0 + config.get("reduce_bucket_mib", 25) / 5 - 20 * ("reduce_dtype" in config)


def test_the_best_candidate_goes_into_every_repeat_of_the_comparison(tmp_path: Path) -> None:
    place = StandInPlace(prefer_large_buckets)
    settings, record = tune(place, tmp_path)
    assert place.ran == [
        "demo-ddp-defaults",
        "demo-ddp-reduce-bucket-mib-50",
        "demo-ddp-reduce-bucket-mib-100",
        name_candidate("demo-ddp", {"reduce_bucket_mib": 100, "reduce_dtype": "bf16"}),
    ], "one knob after the other, each on top of the best so far"
    assert {name: config.get("reduce_bucket_mib") for name, config in settings.items()} == {
        "demo-ddp": 100,
        "demo-ddp-r2": 100,
        "demo-fsdp": None,
        "demo-fsdp-r2": None,
    }
    assert all("reduce_dtype" not in config for config in settings.values())
    of_ddp, of_fsdp = record["searches"]
    assert of_ddp["chosen"] == {"reduce_bucket_mib": 100} and len(of_ddp["tried"]) == 4
    assert of_fsdp["tried"] == [] and "no knob to try" in of_fsdp["why_not"]
    assert record["origin"]["device"] == "stand-in"


def test_what_was_chosen_is_said_and_kept_before_a_run_of_the_comparison(tmp_path: Path) -> None:
    display = Display()
    bench = build_bench(display)
    state = read_state(tmp_path / "s.json", "demo-tuning", "lab")
    place = StandInPlace(prefer_large_buckets)
    _, record = tune_strategies(bench, place, state, tmp_path / "report", retry_failed=False)
    assert display.said[-1] == (
        "demo-ddp is tuned: reduce_bucket_mib=100 120 samples per s; as it comes, 105; reduce_bucket_mib=50 110; "
        "reduce_bucket_mib=100,reduce_dtype=bf16 100"
    )
    kept = json.loads((tmp_path / "report" / "tuning.json").read_text())
    assert kept["searches"][0]["chosen"] == record["searches"][0]["chosen"] == {"reduce_bucket_mib": 100}
    assert kept["searches"][0]["not_tried"] == []


def test_a_second_start_runs_nothing_again_and_chooses_the_same(tmp_path: Path) -> None:
    place = StandInPlace(prefer_large_buckets)
    first = tune(place, tmp_path)
    place.ran.clear()
    assert tune(place, tmp_path) == first and place.ran == []


def test_a_candidate_that_fails_is_out_and_the_search_goes_on(tmp_path: Path) -> None:
    def speed(config: Mapping[str, Any]) -> float:
        if config.get("reduce_bucket_mib") == 100:
            raise MemoryError("out of memory on rank 1")
        return prefer_large_buckets(config)

    settings, record = tune(StandInPlace(speed), tmp_path)
    assert settings["demo-ddp"]["reduce_bucket_mib"] == 50
    out = [each for each in record["searches"][0]["tried"] if each["value"] is None]
    assert [(each["knobs"], each["why"]) for each in out] == [
        ({"reduce_bucket_mib": 100}, "out of memory on rank 1")
    ]


def test_where_nothing_works_the_strategy_stays_as_it_comes(tmp_path: Path) -> None:
    def speed(config: Mapping[str, Any]) -> float:
        raise MemoryError("out of memory")

    place = StandInPlace(speed)
    settings, record = tune(place, tmp_path)
    assert "reduce_bucket_mib" not in settings["demo-ddp"] and place.compared == []
    assert record["searches"][0]["why_not"] == "none of its candidates gave a number"


def test_what_has_not_ended_stops_the_tuning_and_the_next_start_goes_on(tmp_path: Path) -> None:
    place = StandInPlace(prefer_large_buckets, unfinished="demo-ddp-reduce-bucket-mib-50")
    with pytest.raises(UserError, match="demo-ddp-reduce-bucket-mib-50: has not ended"):
        tune(place, tmp_path)
    place.ran.clear()
    place.unfinished = ""
    settings, _ = tune(place, tmp_path)
    assert place.ran[0] == "demo-ddp-reduce-bucket-mib-50" and "demo-ddp-defaults" not in place.ran
    assert settings["demo-ddp"]["reduce_bucket_mib"] == 100
