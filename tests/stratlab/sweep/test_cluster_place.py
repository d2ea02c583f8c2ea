"""A sweep's place: what has ended is not brought again, and who compares gets the tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.run_sources import read_varied
from stratlab.sweep import cluster_sweep as module
from stratlab.sweep.cluster_sweep import ClusterPlace
from stratlab.sweep.helm_release import Site
from stratlab.sweep.rehearsed_sweep import RehearsedPlace
from stratlab.sweep.state import Decision, State, read_state
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.sweep.stand_ins import Heard, plan

SITE = Site(None, "lab", Path("helm"))  # type: ignore[arg-type]


def test_only_what_has_not_ended_is_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def decide_all(plans: Any, state: State, site: Site, retry_failed: bool, progress: Any) -> list[Any]:
        given["retry_failed"] = retry_failed
        return [(each, Decision("skip" if each.release.name == "a" else "install", "")) for each in plans]

    def work(todo: Any, state: State, site: Site, display: Any, **options: Any) -> tuple[State, list[str]]:
        given.update(options, names=[planned.release.name for planned, _ in todo])
        return state, ["b: not known"]

    monkeypatch.setattr(module, "decide_all", decide_all)
    monkeypatch.setattr(module, "work", work)
    display: Any = Heard()
    state = read_state(tmp_path / "s.json", "demo-tuning", "lab")
    plans = [plan(name) for name in "abc"]
    found = ClusterPlace(SITE, 3, display).bring(plans, state, retry_failed=True, stop_on_failure=False)
    assert found == (state, ["b: not known"]) and len(display.lines) == 1
    assert given == {"retry_failed": True, "parallel": 3, "stop_on_failure": False, "names": ["b", "c"]}
    state = state.record("a", stage="succeeded", asked=plans[0].asked)
    place = RehearsedPlace(tmp_path, "", display)
    assert place.bring(plans[:1], state, retry_failed=False, stop_on_failure=False) == (state, [])


def test_a_rehearsal_keeps_beside_its_runs_what_they_are_meant_to_differ_in(tmp_path: Path) -> None:
    for run, lr in (("a", 0.001), ("b", 0.01)):
        build_run_dir(tmp_path / "runs" / "demo", run, "ddp", lr=lr, hosts=["n"], loss_shift=lr)
    display: Any = Heard()
    report = RehearsedPlace(tmp_path, "", display).compare([], "demo", tmp_path / "report", None, ("lr",))
    assert report["fairness"]["verdict"] == "comparable as a search"
    assert read_varied(tmp_path / "runs" / "demo") == ("lr",)
