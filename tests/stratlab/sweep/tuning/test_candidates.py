"""What the runs of a candidate are asked for, and what they are called."""

from __future__ import annotations

from typing import Any

from stratlab.sweep.definition import Sweep
from stratlab.sweep.matrix import LONGEST_NAME, expand
from stratlab.sweep.tuning.candidates import apply_choice, build_candidate, name_candidate
from stratlab.sweep.tuning_definition import Tune

SWEEP: dict[str, Any] = {
    "comparison": "demo",
    "matrix": {"strategy": ["ddp", "fsdp"], "run.config.seed": [7]},
    "set": {"run.config.warmup_steps": 20, "run.config.precision": "bf16", "run.nodes": 2},
    "repeats": 2,
}
TUNE = Tune(knobs={"ddp": {"reduce_bucket_mib": [50]}}, steps=30, repeats=2)


def test_only_knobs_and_the_length_differ_from_the_comparison() -> None:
    base = expand(Sweep.model_validate(SWEEP))[0]
    first, again = build_candidate(base, TUNE, "demo", {"reduce_bucket_mib": 50})
    assert (first.name, again.name) == ("demo-ddp-seed7-reduce-bucket-mib-50", f"{first.name}-r2")
    assert again.values == first.values
    assert {*first.without} == {"epochs", "profile_first_step", "target_accuracy_pct", "target_perplexity"}
    before, after = base.values["run"], first.values["run"]
    assert {**after, "config": {}} == {**before, "config": {}}
    differing = {name for name, value in after["config"].items() if before["config"].get(name) != value}
    assert differing == {"comparison", "steps", "profile_steps", "warmup_steps", "reduce_bucket_mib"}
    assert after["config"]["comparison"] == "demo-tuning" and after["config"]["steps"] == 30


def test_names_fit_and_differ() -> None:
    knobs: list[dict[str, Any]] = [{}, {"reduce_bucket_mib": 50}, {"reduce_bucket_mib": 100}]
    for base in ("demo-ddp", "x" * 47):
        names = [name_candidate(base, each) for each in knobs]
        assert len(set(names)) == len(names) and all(len(f"{name}-r100") <= LONGEST_NAME for name in names)
    assert name_candidate("demo-ddp", {}) == "demo-ddp-defaults"
    assert name_candidate("x" * 40 + "a", {}) != name_candidate("x" * 40 + "b", {})


def test_the_comparison_gets_what_was_chosen_under_the_names_that_it_had() -> None:
    releases = expand(Sweep.model_validate(SWEEP))
    names = {release.name: release.name.removesuffix("-r2") for release in releases}
    tuned = apply_choice(releases, {"demo-ddp-seed7": {"reduce_bucket_mib": 50}}, names)
    assert [release.name for release in tuned] == [release.name for release in releases]
    asked = [release.values["run"]["config"].get("reduce_bucket_mib") for release in tuned]
    assert asked == [50, None, 50, None]
