"""Every release is rendered by the real helm before anything starts; all mistakes come at once."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratlab.helm import REPOSITORY, find_helm
from stratlab.sweep import planned_release
from stratlab.sweep.definition import Sweep
from stratlab.sweep.planned_release import build_sweep_plan, foretell_all, hash_asked, merge_values
from stratlab.sweep.state import read_state
from stratlab.sweep.tuning_loop import Workbench, tune_strategies
from stratlab.sweep.tuning_search import name_candidate
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.sweep.stand_ins import Heard


def plan_of(folder, **changes):
    (folder / "base.yaml").write_text("run: {nodes: 2, accelerator: '', config: {lr: 0.5, steps: 20}}")
    matrix = {"strategy": ["ddp"], "run.config.model": ["cnn"]}
    asked = {"comparison": "demo", "charts": str(REPOSITORY / "charts"), "values": ["base.yaml"]}
    sweep = Sweep.model_validate(asked | {"matrix": matrix} | changes)
    return build_sweep_plan(sweep, folder, find_helm(), lambda text: None)


def refused(folder, **changes):
    return str(raised(plan_of, folder, **changes)).splitlines()[1:]


def test_the_trainer_is_told_the_processes_of_a_node(tmp_path):
    """As an operator would: 2 nodes of 3."""
    analysis = {"run.analysis.enabled": False, "run.workload.api": "trainjob"}
    (planned,) = plan_of(tmp_path, set={"run.processesPerNode": 3, **analysis})
    assert planned.facts.processes == 6 and planned.api.name == "trainjob" and not planned.has_analysis
    told = (planned.environment["PET_NNODES"], planned.environment["PET_NPROC_PER_NODE"])
    assert told == ("2", "3")


def test_the_second_file_wins_over_the_first(tmp_path):
    (tmp_path / "over.yaml").write_text("run: {config: {lr: 0.25, seed: 5}}")
    (tmp_path / "empty.yaml").write_text("")
    (planned,) = plan_of(
        tmp_path,
        values=["base.yaml", "over.yaml", "empty.yaml"],
        set={"run.config.seed": 6},
        matrix={"strategy": ["ddp"], "run.config.steps": [30]},
    )
    config = planned.values["run"]["config"]
    assert (config["lr"], config["seed"], config["steps"]) == (0.25, 6, 30)
    env = planned.environment
    assert (env["TRAINER_LR"], env["TRAINER_STEPS"], env["TRAINER_COMPARISON"]) == ("0.25", "30", "demo")


def test_what_does_not_fit_is_foretold_first(monkeypatch, tmp_path):
    plan = plan_of(tmp_path, repeats=3)
    names = [each.release.name for each in plan]
    said = dict(zip(names, ("a: fits", "", "c: does not"), strict=True))
    monkeypatch.setattr(planned_release, "foretell", lambda name, env: said[name])
    assert foretell_all(plan) == ["c: does not", "a: fits"]


def test_what_a_chart_refuses_is_told_once_for_all_releases_it_concerns(tmp_path):
    matrix = {"strategy": ["ddp"], "run.config.model": ["cnn", "cmm"], "run.nodes": [1, 0]}
    lines = refused(tmp_path, matrix=matrix)
    assert any(line.strip().startswith("demo-ddp-cnn-nodes0: ") for line in lines)
    assert any("demo-ddp-cmm-nodes1" in line for line in lines) and "demo-ddp-cnn-nodes1" not in str(lines)


def test_missing_charts_and_files_are_told_together(tmp_path):
    (tmp_path / "list.yaml").write_text("[]")
    matrix = {"strategy": ["ddp", "fdsp"]}
    lines = refused(tmp_path, values=["base.yaml", "nope.yaml", "list.yaml"], matrix=matrix)
    assert find_codes(lines) == ["SL-chart-missing", "SL-values-unreadable", "SL-values-no-map"]
    told = lines[0].partition("there is ")[2].partition(" [")[0].split(", ")
    folders = {path.parent.name for path in (REPOSITORY / "charts").glob("*/Chart.yaml")}
    assert set(told) == folders - {"prepare", "run"} and told == sorted(told)
    assert "fdsp" in lines[0] and f"{tmp_path}/nope.yaml" in lines[1]


def test_merging_is_that_of_helm(tmp_path):
    base = {"run": {"env": [{"name": "A"}], "nodes": 1, "config": {"lr": 1}}}
    over = {"run": {"env": [], "nodes": 2, "config": {"model": "cnn"}}, "more": {"a": 1}}
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: probe, version: 0.1.0}")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "a.yaml").write_text("{{ .Values | toJson }}")
    for name, values in (("a", base), ("b", over)):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    command = [str(find_helm()), "template", "r", str(tmp_path)]
    command += ["-f", str(tmp_path / "a.json"), "-f", str(tmp_path / "b.json")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seen = json.loads(next(line for line in rendered.splitlines() if line.startswith("{")))
    assert merge_values(base, over) == {key: value for key, value in seen.items() if key != "global"}
    assert base["run"]["nodes"] == 1, "the base is left as it was"


def test_the_hash_does_not_depend_on_how_helm_keeps_numbers():
    typed, stored = {"a": 1.0, "b": [{"c": 2.0}], "d": 0.1}, {"d": 0.1, "b": [{"c": 2}], "a": 1}
    assert hash_asked("ddp", typed) == hash_asked("ddp", stored)
    assert hash_asked("ddp", typed) != hash_asked("fsdp", typed)
    assert hash_asked("ddp", typed) != hash_asked("ddp", typed | {"d": 0.2})
    assert hash_asked("ddp", {"a": True}) != hash_asked("ddp", {"a": 1})


SWEEP = {
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


def prefer_large_buckets(config):
    return 100.0 + config.get("reduce_bucket_mib", 25) / 5 - 20 * ("reduce_dtype" in config)


@dataclass
class StandInPlace:
    """Runs what has not ended; `speed` of the settings, in samples per s, an exception where the run fails."""

    speed: Callable[[Mapping[str, Any]], float] = prefer_large_buckets
    unfinished: str = ""
    ran: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def bring(self, plan, state, *, retry_failed, stop_on_failure):
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

    def compare(self, plan, comparison, output, tuning):
        assert comparison == "demo-tuning" and tuning is None
        return {"runs": list(self.rows.values()), "origin": {"backend": "none", "device": "stand-in"}}


def tune(place, folder):
    """The bucket of each release of the comparison, and the record."""
    display = Heard()
    bench = Workbench(Sweep.model_validate(SWEEP), Path("/"), find_helm(), display)
    state = read_state(folder / "s.json", "demo-tuning", "lab")
    releases, record = tune_strategies(bench, place, state, folder / "report", retry_failed=False)
    configs = {release.name: release.values["run"]["config"] for release in releases}
    assert all("reduce_dtype" not in config for config in configs.values())
    return {name: config.get("reduce_bucket_mib") for name, config in configs.items()}, record


def test_the_best_candidate_goes_into_every_repeat_of_the_comparison(tmp_path):
    place = StandInPlace()
    found = buckets, record = tune(place, tmp_path)
    last = name_candidate("demo-ddp", {"reduce_bucket_mib": 100, "reduce_dtype": "bf16"})
    assert place.ran == [FIRST, SMALL, LARGE, last], "one knob after the other, on top of the best so far"
    assert buckets == {"demo-ddp": 100, "demo-ddp-r2": 100, "demo-fsdp": None, "demo-fsdp-r2": None}
    of_ddp, of_fsdp = record["searches"]
    assert of_ddp["chosen"] == {"reduce_bucket_mib": 100} and len(of_ddp["tried"]) == 4
    assert of_fsdp["tried"] == [] and of_fsdp["why_not"] and record["origin"]["device"] == "stand-in"
    kept = json.loads((tmp_path / "report" / "tuning.json").read_text())
    assert kept["searches"] == record["searches"], "kept before a run of the comparison"
    place.ran.clear()
    assert tune(place, tmp_path) == found and place.ran == [], "a second start chooses the same"


def test_what_has_not_ended_stops_the_tuning_and_the_next_start_goes_on(tmp_path):
    place = StandInPlace(unfinished=SMALL)
    failure = raised(tune, place, tmp_path)
    assert find_codes(failure) == ["SL-candidate-not-ended"] and SMALL in str(failure)
    place.ran.clear()
    place.unfinished = ""
    buckets, _ = tune(place, tmp_path)
    assert place.ran[0] == SMALL and FIRST not in place.ran and buckets["demo-ddp"] == 100
