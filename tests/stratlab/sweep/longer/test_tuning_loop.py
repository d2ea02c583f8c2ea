"""The loop of a tuning with real charts and helm; the place where candidates run is a stand-in with known speeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratlab.helm import REPOSITORY, find_helm
from stratlab.sweep.definition import Sweep
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import State, read_state
from stratlab.sweep.tuning_loop import Workbench, tune_strategies
from stratlab.sweep.tuning_search import name_candidate
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.sweep.stand_ins import Heard

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
FIRST, SMALL, LARGE = (
    f"demo-ddp-{each}" for each in ("defaults", "reduce-bucket-mib-50", "reduce-bucket-mib-100")
)


def prefer_large_buckets(config: Mapping[str, Any]) -> float:
    return 100.0 + config.get("reduce_bucket_mib", 25) / 5 - 20 * ("reduce_dtype" in config)


@dataclass
class StandInPlace:
    """Runs what has not ended; `speed` of the settings, in samples per s, an exception where the run fails."""

    speed: Callable[[Mapping[str, Any]], float] = prefer_large_buckets
    unfinished: str = ""
    ran: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        assert not stop_on_failure, "one bad candidate ends no tuning"
        for planned in plan:
            name, config = planned.release.name, planned.values["run"]["config"]
            assert config["comparison"] == "demo-tuning" and config["steps"] == 20
            before = state.releases.get(name)
            if before and before.stage != "running":
                continue
            self.ran.append(name)
            stage, sentence = "succeeded", ""
            try:
                value = self.speed(config)
                row = {"run": name, "status": "finished", "attempts": 1, "samples_per_s": value}
                self.rows[name] = row
            except MemoryError as failure:
                stage, sentence = "failed", str(failure)
            stage = "running" if name == self.unfinished else stage
            state = state.record(name, stage=stage, asked=planned.asked, sentence=sentence)
        return state, []

    def compare(
        self, plan: Sequence[Planned], comparison: str, output: Path, tuning: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        assert comparison == "demo-tuning" and tuning is None
        return {"runs": list(self.rows.values()), "origin": {"backend": "none", "device": "stand-in"}}


def tune(place: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bucket of each release of the comparison, and the record."""
    display: Any = Heard()
    bench = Workbench(Sweep.model_validate(SWEEP), Path("/"), find_helm(), display)
    state = read_state(folder / "s.json", "demo-tuning", "lab")
    releases, record = tune_strategies(bench, place, state, folder / "report", retry_failed=False)
    configs = {release.name: release.values["run"]["config"] for release in releases}
    assert all("reduce_dtype" not in config for config in configs.values())
    return {name: config.get("reduce_bucket_mib") for name, config in configs.items()}, record


def test_the_best_candidate_goes_into_every_repeat_of_the_comparison(tmp_path: Path) -> None:
    place = StandInPlace()
    found = buckets, record = tune(place, tmp_path)
    last = name_candidate("demo-ddp", {"reduce_bucket_mib": 100, "reduce_dtype": "bf16"})
    assert place.ran == [FIRST, SMALL, LARGE, last], "one knob after the other, on top of the best so far"
    assert buckets == {"demo-ddp": 100, "demo-ddp-r2": 100, "demo-fsdp": None, "demo-fsdp-r2": None}
    of_ddp, of_fsdp = record["searches"]
    assert of_ddp["chosen"] == {"reduce_bucket_mib": 100} and len(of_ddp["tried"]) == 4
    assert of_fsdp["tried"] == [] and of_fsdp["why_not"]
    assert record["origin"]["device"] == "stand-in"
    kept = json.loads((tmp_path / "report" / "tuning.json").read_text())
    assert kept["searches"] == record["searches"], "kept before a run of the comparison"
    place.ran.clear()
    assert tune(place, tmp_path) == found and place.ran == [], "a second start chooses the same"


def test_what_has_not_ended_stops_the_tuning_and_the_next_start_goes_on(tmp_path: Path) -> None:
    place = StandInPlace(unfinished=SMALL)
    failure = raised(tune, place, tmp_path)
    assert find_codes(failure) == ["SL-candidate-not-ended"] and SMALL in str(failure)
    place.ran.clear()
    place.unfinished = ""
    buckets, _ = tune(place, tmp_path)
    assert place.ran[0] == SMALL and FIRST not in place.ran and buckets["demo-ddp"] == 100
