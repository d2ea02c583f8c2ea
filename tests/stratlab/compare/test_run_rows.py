"""The step times of a row: those of the run's own rule, whichever version wrote its summary."""

import json
from pathlib import Path

import pytest

from stratlab.run_directory.record import NAMES, build_summary
from stratlab_spec.schedule import RULE
from tests.stratlab.compare.building import Report, build, edit, judge
from tests.stratlab.example_run import write_lines


def slow_down(run: Path, steps: range, ms: float) -> None:
    """In metrics.jsonl only."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "train" and line["step"] in steps:
            line["step_time_ms"] += ms
    write_lines(run / "metrics.jsonl", lines)


def race(root: Path, steps: range, ms: float, **speeds: float) -> Report:
    """Of which fsdp had slower steps."""
    build(root, {name: {"samples_per_s": speed} for name, speed in speeds.items()})
    slow_down(root / "fsdp", steps, ms)
    return judge(root)


def test_a_comparison_counts_what_is_behind_the_warm_up(tmp_path):
    report = race(tmp_path, range(1, 19), 50.0, ddp=6400.0, fsdp=6400.0)
    for row in report["runs"]:  # 64 samples in 10 ms, whatever the summary says
        times = [row[f"step_time_ms_{name}"] for name in ("p50", "mean", "p95")]
        assert times == pytest.approx([10.0] * 3) and row["samples_per_s"] == pytest.approx(6400.0)
    # the profile begins with step 58; batches of 5 end there, so one of them is steps 18 to 22
    assert report["warmup"]["fsdp"] == {"steps": 22, "first_step": 23, "method": RULE, "settled": True}
    assert [row["measured_steps"] for row in report["runs"]] == [50, 35]
    assert report["warmup"]["ddp"]["first_step"] == 8


def test_a_comparison_never_cuts_again(tmp_path):
    build(tmp_path, {"ddp": {"samples_per_s": 6400.0}})
    run = tmp_path / "ddp"
    summary = json.loads((run / "summary.json").read_text())
    edit(run / "summary.json", lambda content: content.update(step_time_ms_p50=77.0))
    (old,) = judge(tmp_path)["runs"]
    assert (old["step_times_from"], old["step_time_ms_p50"]) == ("metrics.jsonl", pytest.approx(10.0))
    by_list = build_summary({**summary, "step_time_ms_p50": 77.0}, run)
    assert {name: by_list.get(name) for name in NAMES} == {name: old[name] for name in NAMES}
    edit(run / "summary.json", lambda content: content.update(warmup=old["warmup"]))
    (new,) = judge(tmp_path)["runs"]
    assert (new["step_times_from"], new["step_time_ms_p50"]) == ("summary.json", 77.0)
    assert new["warmup"] == old["warmup"]
    (run / "metrics.jsonl").write_text("")
    edit(run / "summary.json", lambda content: content.pop("warmup"))
    (bare,) = judge(tmp_path)["runs"]
    assert (bare["step_times_from"], bare["step_time_ms_p50"], bare["warmup"]) == ("summary.json", 77.0, None)
