from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.rules import IMPLIED, RULES, TASKS, Rule
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.verdict import build_fairness
from tests.stratlab.example_run import build_run_dir

Report = dict[str, Any]

OF_IMAGES = [rule for rule in RULES if rule.task != "text"]  # those of text: test_text_runs.py
OF_FEW = (
    "resumed_from",
    "rungs",
    "batch_norm_samples",
    "resolved.memory_forecast",
    *("teacher_sha256", "teacher_parameters", "teacher_flops_per_sample"),
    "activation reduction dtypes",
)  # facts that most runs do not have, and do without: MUST_MATTER below
PLANTED = [
    r
    for r in OF_IMAGES
    if r.source not in ("place", "tuning") and r.path[:1] != ("gpu",) and r.field not in OF_FEW
]  # these: test_surroundings.py, test_kept_tuning.py


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for strategy in ("ddp", "fsdp", "zero2"):
        build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["node-1"])
    return tmp_path / "demo"


def _report(root: Path) -> Report:
    return compare(load_runs(root))


def _other(value: Any) -> Any:
    """A value that differs and has the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return [*value, "other"] if isinstance(value, list) else f"{value}-other"


def _plant(run: Path, rule: Rule, remove: bool = False) -> None:
    """Changes the fact of one run in its files, or takes it away."""
    if rule.source == "attempts":
        text = (run / "attempts.jsonl").read_text()
        (run / "attempts.jsonl").write_text("" if remove else text + text)
        return
    file = {"config": "config.json", "summary": "summary.json", "ranks": "ranks/rank1.json"}[rule.source]
    content = json.loads((run / file).read_text())
    place = content
    for key in rule.path[:-1]:
        place = place[key]
    assert rule.path[-1] in place, f"the example run has no {rule.field}"
    place[rule.path[-1]] = None if remove else _other(place[rule.path[-1]])
    (run / file).write_text(json.dumps(content))


def _difference(report: Report, field: str) -> dict[str, Any]:
    found = [entry for entry in report["fairness"]["differences"] if entry["field"] == field]
    assert len(found) == 1, [entry["field"] for entry in report["fairness"]["differences"]]
    return found[0]


def test_runs_that_differ_only_in_the_strategy_are_comparable(root: Path) -> None:
    fairness = _report(root)["fairness"]
    assert fairness["verdict"] == "comparable" and fairness["differences"] == []
    assert fairness["groups"] == [["ddp", "fsdp", "zero2"]]
    assert set(fairness["same"]) >= {rule.field for rule in OF_IMAGES}
    assert not set(fairness["same"]) & {rule.field for rule in RULES if rule.task == "text"}


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.field)
def test_planted_unfairness_is_caught(root: Path, rule: Rule) -> None:
    _plant(root / "fsdp", rule)
    report = _report(root)
    entry = _difference(report, rule.field)
    assert entry["matters"] is rule.matters and rule.why in entry["why"]
    assert entry["values"]["ddp"] == entry["values"]["zero2"] != entry["values"]["fsdp"]
    if rule.matters:
        assert report["fairness"]["verdict"] == "not comparable"
        assert rule.field in report["fairness"]["reason"]
        assert report["fairness"]["groups"] == [["ddp", "zero2"], ["fsdp"]]
        assert set(report["winners"].values()) == {None}
        assert all(rule.field in reason for reason in report["winner_reasons"].values())
    else:
        assert report["fairness"]["verdict"] == "comparable"


@pytest.mark.parametrize("rule", [r for r in PLANTED if r.matters], ids=lambda rule: rule.field)
def test_a_fact_that_nobody_recorded_is_unknown_and_not_equal(root: Path, rule: Rule) -> None:
    for run in ("ddp", "fsdp", "zero2"):
        _plant(run=root / run, rule=rule, remove=True)
    report = _report(root)
    if (
        rule.absent != "" or rule.field == "image"
    ):  # the commit stands in for the image that the example lacks
        assert report["fairness"]["verdict"] == "comparable"
        return
    entry = _difference(report, rule.field)
    assert set(entry["values"].values()) == {"unknown"}
    assert entry["matters"] is True and "not recorded by ddp, fsdp, zero2" in entry["why"]
    assert report["fairness"]["verdict"] == "not comparable"
    assert [len(group) for group in report["fairness"]["groups"]] == [1, 1, 1]


@pytest.mark.parametrize("name", ["memory_snapshot", "flops_profiler", "flight_recorder"])
def test_a_run_from_before_a_setting_is_comparable_with_one_that_leaves_it_alone(
    root: Path, name: str
) -> None:
    content = json.loads((root / "fsdp" / "config.json").read_text())
    left = content["config"].pop(name)
    (root / "fsdp" / "config.json").write_text(json.dumps(content))
    fairness = _report(root)["fairness"]
    assert fairness["verdict"] == "comparable" and fairness["same"][name] in (left, str(left))


def test_the_table_has_each_field_once_and_a_reason() -> None:
    assert len({rule.field for rule in RULES}) == len(RULES)
    assert len({(rule.source, rule.path, rule.added) for rule in RULES}) == len(RULES)
    assert all(rule.why for rule in RULES)
    assert {rule.task for rule in RULES} == {"", *TASKS}


def test_every_fact_of_the_example_is_judged_by_the_table(root: Path) -> None:
    config = json.loads((root / "ddp" / "config.json").read_text())
    named = {rule.path[:2] for rule in RULES if rule.source == "config"}
    for group in ("config", "resolved"):
        assert {name for name in config[group] if (group, name) not in named} <= IMPLIED


@pytest.mark.parametrize(("group", "matters"), [("config", True), ("resolved", True)])
def test_a_setting_that_the_table_does_not_know_is_compared(root: Path, group: str, matters: bool) -> None:
    for run, value in (("ddp", 1), ("fsdp", 1), ("zero2", 2)):
        content = json.loads((root / run / "config.json").read_text())
        content[group]["new_setting"] = value
        (root / run / "config.json").write_text(json.dumps(content))
    report = _report(root)
    entry = _difference(report, f"{group}.new_setting")
    assert entry["matters"] is matters and entry["values"] == {"ddp": 1, "fsdp": 1, "zero2": 2}
    assert report["fairness"]["verdict"] == "not comparable"


def test_each_knob_has_a_row_and_strategies_without_it_say_so(root: Path) -> None:
    for run, knobs in (("ddp", {"static_graph": False}), ("fsdp", {"static_graph": True}), ("zero2", {})):
        content = json.loads((root / run / "config.json").read_text())
        content["resolved"]["knobs"] = knobs
        (root / run / "config.json").write_text(json.dumps(content))
    report = _report(root)
    entry = _difference(report, "knobs.static_graph")
    assert entry["values"] == {"ddp": False, "fsdp": True, "zero2": "has none"} and not entry["matters"]
    assert report["fairness"]["same"]["knobs.prefetch_blocks"] == "has none"
    page = str(build_fairness(report).html)
    assert "<td>false</td>" in page and "<td>true</td>" in page and "False" not in page
    content["resolved"]["knobs"] = None
    (root / "zero2" / "config.json").write_text(json.dumps(content))
    assert _difference(_report(root), "knobs.static_graph")["values"]["zero2"] == "not recorded"


def test_another_library_is_compared(root: Path) -> None:
    build_run_dir(root, "fsdp", "fsdp", hosts=["node-1"], numpy="1.26.4")
    assert _difference(_report(root), "numpy")["values"] == {
        "ddp": "2.4.6",
        "fsdp": "1.26.4",
        "zero2": "2.4.6",
    }


@pytest.mark.parametrize(("name", "matters"), [("NCCL_IB_DISABLE", True), ("NCCL_DEBUG", False)])
def test_a_variable_of_the_network_that_one_run_has_is_a_difference(
    root: Path, name: str, matters: bool
) -> None:
    config = json.loads((root / "ddp" / "config.json").read_text())
    config["provenance"]["environment"] = {name: "1"}
    (root / "ddp" / "config.json").write_text(json.dumps(config))
    report = _report(root)
    entry = _difference(report, name)
    assert entry["values"] == {"ddp": "1", "fsdp": "not set", "zero2": "not set"}
    assert entry["matters"] is matters
    assert report["fairness"]["verdict"] == ("not comparable" if matters else "comparable")


def test_what_is_wrong_in_all_runs_is_a_difference_too(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, skipped_steps=2)
    report = _report(tmp_path / "demo")
    assert _difference(report, "skipped_steps")["values"] == {"ddp": 2, "fsdp": 2}
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["groups"] == [["ddp"], ["fsdp"]]


@pytest.mark.parametrize("starts", [2, 3])
def test_runs_that_were_all_restarted_are_not_comparable(tmp_path: Path, starts: int) -> None:
    """Equally often: their times hold the first steps of an attempt all the same."""
    for strategy in ("ddp", "fsdp", "zero2"):
        folder = build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["node-1"])
        ended = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
        earlier = [
            {**line, "attempt": number, **({"exit_code": 137} if line["event"] == "ended" else {})}
            for number in range(1, starts)
            for line in ended
        ]
        lines = earlier + [{**line, "attempt": starts} for line in ended]
        (folder / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = _report(tmp_path / "demo")
    entry = _difference(report, "attempts")
    assert entry["matters"] and set(entry["values"].values()) == {starts}
    said = f"in all runs attempts is {starts} (a restarted run has other steps in its times)"
    assert (report["fairness"]["verdict"], report["fairness"]["reason"]) == ("not comparable", said)
    assert report["fairness"]["groups"] == [["ddp"], ["fsdp"], ["zero2"]]
    assert set(report["winners"].values()) == {None}


# By hand, and not by the table that is judged: what makes another training or another step of one.
MUST_MATTER = {
    "config": {
        "clip_norm": 1.0,
        "lr": 0.5,
        "lr_schedule": "linear",
        "warmup_steps": 3,
        "weight_decay": 0.5,
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": True,
        "beta1": 0.5,
        "beta2": 0.5,
        "eps": 0.5,
        "batch_norm": "synchronised",
        "label_smoothing": 0.1,
        "distil_temperature": 4.0,
        "distil_weight": 0.9,
        "seed": 7,
        "global_batch_size": 8,
        "micro_batch_size": 4,
        "activation_checkpointing": "blocks",
        "compile": True,
        "augment": "mixup",
        "model": "cnn",
        "init": "pretrained",
        "lora_rank": 4,
        "lora_alpha": 1.0,
        "model_layers": 3,
        "model_hidden": 96,
        "model_heads": 2,
        "model_kv_heads": 2,
        "model_intermediate": 96,
        "model_patch": 8,
        "model_vocab": 400,
        "lora_targets": "query",
        "dataset": "cifar100",
        "validation_fraction": 0.5,
        "profile_memory": False,
        "memory_snapshot": True,
        "flight_recorder": 0,
        "profile_steps": 5,
        "profile_shapes": True,
        "profile_warmup": 4,
    },
    "resolved": {
        "steps": 7,
        "precision": "bf16",
        "world_size": 3,
        "nodes": 2,
        "image_size": 48,
        "num_labels": 3,
        "device_name": "another",
        "device_type": "cuda",
        "backend": "nccl",
        "data_sha256": "other",
        "train_samples": 9,
        "test_samples": 9,
        "validation_samples": 9,
        "parameters": 9,
        "trainable_parameters": 9,
        "flops_per_sample": 9.0,
        "initial_weights_sha256": "other",
        "rungs": [{"rung": 1, "settings": {"micro_batch_size": 16}}],
        "batch_norm_samples": 9,
        "teacher_sha256": "another",
        "resumed_from": {"run": "demo/ddp", "step": 5, "manifest_sha256": "a"},
    },
    "summary": {"data_order_sha256": "other", "skipped_steps": 1, "not_finite_steps": 1},
}
# These may differ: they are what is compared, or change no number.
MAY_DIFFER = {
    "config": {
        "checkpoint_every": 5,
        "log_every": 3,
        "max_attempts": 9,
        "collective_timeout_s": 60,
        "flops_profiler": True,
        "on_not_finite": "warn",
        "deadline_s": 60,
        "resume": "never",
        "resume_from": "demo/ddp",
        "oom_ladder": True,
        "evaluate_every": 3,
        "checkpoint_keep": 7,
        "checkpoint_minutes": 1.0,
        "checkpoint_keep_finished": "none",
        "offload": "optimizer",
        "zeropp": "qgz",
        "dp_shard": 2,
        "dp_replicate": 2,
    },
    "resolved": {"memory_forecast": {"operations_file": "fsdp.json", "peak_gib": 15.64}},
    "summary": {"straggler": "rank 1"},
}


def _cases(table: dict[str, dict[str, Any]]) -> list[tuple[str, str, Any]]:
    return [(place, name, value) for place, facts in table.items() for name, value in facts.items()]


def _set(run: Path, place: str, name: str, value: Any) -> None:
    file = run / ("summary.json" if place == "summary" else "config.json")
    content = json.loads(file.read_text())
    facts = content if place == "summary" else content[place]
    assert facts.get(name) != value
    facts[name] = value
    file.write_text(json.dumps(content))


def test_runs_with_the_same_planted_fault_are_not_comparable_either(root: Path) -> None:
    for run in ("ddp", "fsdp", "zero2"):
        _set(root / run, "config", "fault", "slow@5:1")
    fairness = _report(root)["fairness"]
    assert fairness["verdict"] == "not comparable"
    assert "in all runs fault is slow@5:1 (a fault was planted in it)" in fairness["reason"]
    assert [len(group) for group in fairness["groups"]] == [1, 1, 1]


@pytest.mark.parametrize(("place", "name", "value"), _cases(MUST_MATTER))
def test_what_bends_the_training_or_the_step_matters(root: Path, place: str, name: str, value: Any) -> None:
    _set(root / "fsdp", place, name, value)
    fairness = _report(root)["fairness"]
    assert fairness["verdict"] == "not comparable" and name in fairness["reason"]


@pytest.mark.parametrize(("place", "name", "value"), _cases(MAY_DIFFER))
def test_what_is_compared_or_changes_no_number_may_differ(
    root: Path, place: str, name: str, value: Any
) -> None:
    _set(root / "fsdp", place, name, value)
    assert _report(root)["fairness"]["verdict"] == "comparable"


def test_a_folder_takes_the_place_of_a_data_set_s_name(root: Path) -> None:
    for run, path in (("ddp", "/data/pets"), ("fsdp", "/mnt/pets"), ("zero2", "/data/pets")):
        _set(root / run, "config", "dataset_path", path)
    _set(root / "zero2", "config", "dataset", "cifar100")  # nobody reads it
    fairness = _report(root)["fairness"]
    assert fairness["verdict"] == "comparable", fairness["reason"]
    assert fairness["same"]["dataset"] == "that of dataset_path"
    _set(root / "zero2", "config", "dataset_path", "")
    assert _report(root)["fairness"]["reason"] == "the runs differ in dataset"


def test_an_image_stands_in_for_the_commit_and_the_commit_for_an_image(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, git_sha=None, image="trainer:1", hosts=["n"])
    assert _report(tmp_path / "demo")["fairness"]["same"]["git_sha"] == "image trainer:1"
    build_run_dir(tmp_path / "demo", "fsdp", "fsdp", git_sha=None, image="trainer:2", hosts=["n"])
    assert _report(tmp_path / "demo")["fairness"]["verdict"] == "not comparable"
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, git_sha=None, image="", hosts=["n"])
    assert _difference(_report(tmp_path / "demo"), "git_sha")["values"] == {
        "ddp": "unknown",
        "fsdp": "unknown",
    }


def test_a_rank_without_facts_makes_the_observed_facts_unknown(root: Path) -> None:
    (root / "fsdp" / "ranks" / "rank1.json").unlink()
    assert _difference(_report(root), "gradient dtypes")["values"]["fsdp"] == "unknown"


def test_strategies_that_multiply_in_different_types_are_not_compared(root: Path) -> None:
    for file in (root / "fsdp" / "ranks").glob("*.json"):
        facts = json.loads(file.read_text())
        facts["dtypes"]["products"] = ["bfloat16"]
        file.write_text(json.dumps(facts))
    report = _report(root)
    assert report["fairness"]["verdict"] == "not comparable"
    assert _difference(report, "product dtypes")["values"] == {
        "ddp": ["float32"],
        "fsdp": ["bfloat16"],
        "zero2": ["float32"],
    }


def test_ranks_on_different_devices_are_seen(root: Path) -> None:
    file = root / "fsdp" / "ranks" / "rank1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"device_name": "slower"}))
    entry = _difference(_report(root), "device of every rank")
    assert entry["values"]["fsdp"] == ["Example CPU, 4 cores", "slower"]


def test_another_number_of_devices_is_never_compared(root: Path) -> None:
    build_run_dir(root, "single", "single", hosts=["node-1"])
    report = _report(root)
    assert report["fairness"]["verdict"] == "not comparable"
    assert _difference(report, "world_size")["values"]["single"] == 1
    assert report["fairness"]["groups"] == [["ddp", "fsdp", "zero2"], ["single"]]


def test_one_run_is_no_comparison(tmp_path: Path) -> None:
    build_run_dir(tmp_path / "demo", "ddp", "ddp")
    fairness = _report(tmp_path / "demo")["fairness"]
    assert (fairness["verdict"], fairness["reason"]) == (
        "not comparable",
        "1 finished run; a comparison needs two",
    )


def test_runs_that_went_on_from_the_same_checkpoint_are_comparable(root: Path) -> None:
    source = {"run": "demo/ddp", "step": 5, "manifest_sha256": "a"}
    for run in root.iterdir():
        _set(run, "resolved", "resumed_from", source)
    assert _report(root)["fairness"]["verdict"] == "comparable"
    _set(root / "fsdp", "resolved", "resumed_from", source | {"manifest_sha256": "b"})
    assert "resumed_from" in _report(root)["fairness"]["reason"]
