"""The search, what its candidates are asked for, and what is kept of them."""

import pytest

from stratlab.compare.winners import build_band
from stratlab.helm import REPOSITORY
from stratlab.sweep.definition import Sweep, Tune
from stratlab.sweep.planned_release import expand
from stratlab.sweep.tuning_loop import build_record, read_measured
from stratlab.sweep.tuning_search import (
    METRICS,
    MeasuredCandidate,
    apply_choice,
    build_candidate,
    check_knobs,
    compute_lead,
    name_knobs,
    search,
)
from tests.codes import find_codes
from tests.stratlab.raised import raised

THROUGHPUT = METRICS["throughput"]
VALUES = {"a": [1, 2], "b": ["x"], "c": [True]}


def follow(speed, most=10):
    measured = {}
    rounds = []
    while True:
        found = search(VALUES, measured, most, THROUGHPUT)
        if not found.following:
            return found, rounds
        rounds.append([name_knobs(each) for each in found.following])
        for each in found.following:
            value = speed(each)
            measured[name_knobs(each)] = (
                MeasuredCandidate((value,)) if value else MeasuredCandidate((), "out of memory")
            )


def test_one_knob_at_a_time_and_the_best_is_kept():
    found, rounds = follow(
        lambda knobs: 100 + 10 * (knobs.get("a") == 2) - 5 * ("b" in knobs) + 5 * ("c" in knobs)
    )
    assert rounds == [[""], ["a=1", "a=2"], ["a=2,b=x"], ["a=2,c=true"]], "b is worse: c is tried without it"
    assert found.best == {"a": 2, "c": True} and found.not_tried == ()
    assert [name_knobs(each) for each, _ in found.tried] == ["", "a=1", "a=2", "a=2,b=x", "a=2,c=true"]


def test_a_lead_that_chance_would_explain_changes_nothing():
    assert follow(lambda knobs: 101.9 if "a" in knobs else 100.0)[0].best == {}, "below 2 %, from one repeat"
    assert follow(lambda knobs: 102.1 if "a" in knobs else 100.0)[0].best == {"a": 1}


def test_repeats_tell_the_noise_that_a_lead_must_exceed():
    runs = {"": (100.0, 104.0), "a=1": (108.0, 112.0)}
    measured = {name: MeasuredCandidate(values) for name, values in runs.items()}
    band = build_band(list(runs.values()))
    lead = compute_lead(measured["a=1"], measured[""], THROUGHPUT, band)
    assert lead and lead.measured_noise and lead.lead_pct == pytest.approx(7.84, abs=0.01)
    assert lead.noise_pct > lead.lead_pct and not lead.is_real
    assert search({"a": [1]}, measured, 4, THROUGHPUT).best == {}
    measured["a=1"] = MeasuredCandidate((128.0, 132.0))
    assert search({"a": [1]}, measured, 4, THROUGHPUT).best == {"a": 1}


def test_what_failed_is_out_and_the_search_goes_on():
    found, _ = follow(lambda knobs: None if knobs.get("a") == 2 else 100 + 5 * ("a" in knobs))
    assert found.best == {"a": 1}
    assert dict((name_knobs(k), m.why) for k, m in found.tried)["a=2"] == "out of memory"
    found, _ = follow(lambda knobs: None if knobs == {} else 100.0)
    assert found.best == {"a": 1}, "whatever works is better than defaults that do not"
    assert follow(lambda knobs: None)[0].best == {}


def test_a_candidate_is_worth_the_median_of_its_repeats():
    assert MeasuredCandidate((1.0, 2.0, 30.0)).value == 2.0 and MeasuredCandidate(()).value is None
    keys = {name: metric.key for name, metric in METRICS.items()}
    assert keys["throughput"] == "samples_per_s" and keys["step_time"] == "step_time_ms_p50"
    assert keys["memory"] == "peak_memory_gib"
    measured = {
        "": MeasuredCandidate((100.0,)),
        "a=1": MeasuredCandidate((90.0,)),
        "a=2": MeasuredCandidate((110.0,)),
    }
    for name, best in (("step_time", 1), ("memory", 1), ("throughput", 2)):
        assert search({"a": [1, 2]}, measured, 4, METRICS[name]).best == {"a": best}


SWEEP = {
    "comparison": "demo",
    "matrix": {"strategy": ["ddp", "fsdp"], "run.config.seed": [7]},
    "set": {"run.config.warmup_steps": 20, "run.config.precision": "bf16", "run.nodes": 2},
    "repeats": 2,
}
TUNE = Tune(knobs={"ddp": {"reduce_bucket_mib": [50]}}, steps=30, repeats=2)


def test_only_knobs_and_the_length_differ_from_the_comparison():
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


def test_the_comparison_gets_what_was_chosen_under_the_names_that_it_had():
    releases = expand(Sweep.model_validate(SWEEP))
    names = {release.name: release.name.removesuffix("-r2") for release in releases}
    tuned = apply_choice(releases, {"demo-ddp-seed7": {"reduce_bucket_mib": 50}}, names)
    assert [release.name for release in tuned] == [release.name for release in releases]
    asked = [release.values["run"]["config"].get("reduce_bucket_mib") for release in tuned]
    assert asked == [50, None, 50, None]


def sweep(**knobs):
    return Sweep.model_validate(
        {
            "comparison": "demo",
            "matrix": {"strategy": ["ddp", "fsdp", "single", "llm-2d"]},
            "charts": str(REPOSITORY / "charts"),
            "tune": {
                "steps": 30,
                "knobs": {name.replace("_", "-"): values for name, values in knobs.items()},
            },
        }
    )


def test_every_wrong_knob_is_told_with_what_is_allowed():
    check_knobs(sweep(ddp={"static_graph": [True]}, llm_2d={"prefetch_blocks": [2]}), REPOSITORY)
    wrong = sweep(
        ddp={"prefetch_blocks": [2], "activation_checkpointing": ["blocks"]},
        fsdp={"reduce_dtype": ["bf16"]},
        single={"static_graph": [True]},
    )
    lines = str(raised(check_knobs, wrong, REPOSITORY)).splitlines()[1:]
    assert find_codes(lines) == ["SL-tune-no-knob", "SL-tune-no-knob", "SL-tune-rounding", "SL-tune-no-knob"]
    assert "ddp: prefetch_blocks" in lines[0] and "reduce_bucket_mib, static_graph" in lines[0]
    assert "fsdp: reduce_dtype" in lines[2] and "single: static_graph" in lines[3]


def read(beside="none", **row):
    rows = {"a": {"status": "finished", "attempts": 1, "samples_per_s": 5.0} | row}
    return read_measured(["a"], rows, {}, METRICS["throughput"], {"a": beside})


def test_a_whole_run_counts_and_others_are_out_with_their_reason():
    assert read() == MeasuredCandidate((5.0,)) and read().value == 5.0
    assert read(status="failed", ending="exit code 5") == MeasuredCandidate((), "exit code 5")
    assert read(attempts=2).values == () and read(beside="b").values == () and "b " in read(beside="b").why
    assert read(beside="unknown").value == 5.0, "where the pods' nodes are not known"
    assert read(samples_per_s=None).values == () and "samples_per_s" in read(samples_per_s=None).why
    left_nothing = read_measured(["a"], {}, {"a": "no image"}, METRICS["throughput"], {})
    assert left_nothing == MeasuredCandidate((), "no image"), "the sweep has seen it"


def test_what_is_kept_of_a_search():
    tune = Tune(knobs={"ddp": {"reduce_bucket_mib": [50, 100, 200]}}, steps=30, candidates=3)
    matrix = {"strategy": ["ddp", "fsdp"]}
    releases = {
        each.name: [each] for each in expand(Sweep.model_validate({"comparison": "demo", "matrix": matrix}))
    }
    measured = {
        "": MeasuredCandidate((100.0,)),
        "reduce_bucket_mib=50": MeasuredCandidate((), "out of memory"),
        "reduce_bucket_mib=100": MeasuredCandidate((125.0,)),
    }
    found = search(tune.knobs["ddp"], measured, 3, METRICS["throughput"])
    report = {"origin": {"backend": "nccl", "other": 1}}
    strategies = {"ddp": "ddp", "fsdp": "fsdp"}
    record = build_record(tune, "demo", releases, strategies, {"demo-ddp": found}, report)
    ddp, fsdp = record["searches"]
    assert (ddp["strategy"], ddp["runs"], ddp["point"]) == ("ddp", ["demo-ddp"], {"strategy": "ddp"})
    assert [each["knobs"].get("reduce_bucket_mib") for each in ddp["tried"]] == [None, 50, 100]
    assert [each["lead_pct"] for each in ddp["tried"]] == [0.0, None, pytest.approx(25.0)]
    assert [each["value"] for each in ddp["tried"]] == [100.0, None, 125.0]
    assert [each["runs"] for each in ddp["tried"]][1] == ["demo-ddp-reduce-bucket-mib-50"]
    assert ddp["chosen"] == {"reduce_bucket_mib": 100} and ddp["not_tried"] == [{"reduce_bucket_mib": 200}]
    assert ddp["why_not"] == "" and fsdp["why_not"] != "" and fsdp["tried"] == [] and fsdp["chosen"] == {}
    assert record["origin"]["backend"] == "nccl" and "other" not in record["origin"]
    asked = tuple(record[name] for name in ("comparison", "tuning", "steps", "repeats", "candidates"))
    assert asked == ("demo", "demo-tuning", 30, tune.repeats, 3)
