from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare import compare, load_runs
from stratlab.compare.rules import IMPLIED, RULES, TASKS, Rule
from tests.stratlab.example_run import build_run_dir

Report = dict[str, Any]

OF_IMAGES = [rule for rule in RULES if rule.task != "text"]  # those of text: test_text_runs.py


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


@pytest.mark.parametrize("rule", OF_IMAGES, ids=lambda rule: rule.field)
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


@pytest.mark.parametrize("rule", [r for r in OF_IMAGES if r.matters], ids=lambda rule: rule.field)
def test_a_fact_that_nobody_recorded_is_unknown_and_not_equal(root: Path, rule: Rule) -> None:
    for run in ("ddp", "fsdp", "zero2"):
        _plant(run=root / run, rule=rule, remove=True)
    report = _report(root)
    if rule.absent or rule.field == "image":  # the commit stands in for the image that the example lacks
        assert report["fairness"]["verdict"] == "comparable"
        return
    entry = _difference(report, rule.field)
    assert set(entry["values"].values()) == {"unknown"}
    assert entry["matters"] is True and "not recorded by ddp, fsdp, zero2" in entry["why"]
    assert report["fairness"]["verdict"] == "not comparable"
    assert [len(group) for group in report["fairness"]["groups"]] == [1, 1, 1]


def test_the_table_has_each_field_once_and_a_reason() -> None:
    assert len({rule.field for rule in RULES}) == len(RULES)
    assert len({(rule.source, rule.path) for rule in RULES}) == len(RULES)
    assert all(rule.why for rule in RULES)
    assert {rule.task for rule in RULES} == {"", *TASKS}


def test_every_fact_of_the_example_is_judged_by_the_table(root: Path) -> None:
    config = json.loads((root / "ddp" / "config.json").read_text())
    named = {rule.path for rule in RULES if rule.source == "config"}
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


def test_another_library_is_compared(root: Path) -> None:
    build_run_dir(root, "fsdp", "fsdp", hosts=["node-1"], numpy="1.26.4")
    assert _difference(_report(root), "numpy")["values"] == {
        "ddp": "2.4.6",
        "fsdp": "1.26.4",
        "zero2": "2.4.6",
    }


def test_what_is_wrong_in_all_runs_is_a_difference_too(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, skipped_steps=2)
    report = _report(tmp_path / "demo")
    assert _difference(report, "skipped_steps")["values"] == {"ddp": 2, "fsdp": 2}
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["groups"] == [["ddp"], ["fsdp"]]


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
