"""The verdict by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.convergence import __main__ as command
from tests.convergence.course import LAYOUTS, MODELS, PRECISIONS, SEEDS, Course, list_courses
from tests.convergence.verdict import judge

ALONE = Course("vit_tiny", "single", "fp32", 0)


def losses(course: Course, *values: float) -> dict[str, float]:
    return {replace(course, seed=seed).name: value for seed, value in zip(SEEDS, values, strict=True)}


@pytest.mark.parametrize(("last", "passes"), [(2.24, True), (2.26, False), (1.76, True), (1.74, False)])
def test_a_quarter_of_what_the_seeds_differ_is_allowed_for_each_seed(last, passes):
    """Seeds end at 1, 1.5 and 2: a spread of 1."""
    ddp = replace(ALONE, layout="ddp")
    known = losses(ALONE, 1.0, 1.5, 2.0) | losses(ddp, 1.01, 1.5, last)
    (verdict,) = judge([ALONE, ddp], known)
    assert verdict.passes is verdict.holds is passes
    assert verdict.share == pytest.approx(abs(last - 2.0)) and verdict.spread == 1.0


def test_a_planted_fault_must_end_elsewhere_and_is_compared_with_the_same_optimizer():
    alone = replace(ALONE, optimizer="sgd")
    faulty = replace(alone, faulty=True)
    known = losses(alone, 1.0, 1.1, 1.2) | losses(ALONE, 9.0, 9.1, 9.2)
    (seen,) = judge([faulty], known | losses(faulty, 1.0, 1.1, 1.3))
    (unseen,) = judge([faulty], known | losses(faulty, 1.0, 1.1, 1.21))
    assert (seen.passes, seen.holds, unseen.passes, unseen.holds) == (False, True, True, False)


def test_what_has_not_been_run_has_no_verdict():
    ddp = replace(ALONE, layout="ddp")
    known = losses(ALONE, 1.0, 1.5, 2.0) | losses(ddp, 1.0, 1.5, 2.0)
    del known[replace(ddp, seed=2).name]
    assert judge([ALONE, ddp], known) == []


def test_every_strategy_precision_and_seed_is_a_course_and_every_setting_is_allowed(tmp_path):
    courses = list(list_courses())
    assert len({course.name for course in courses}) == len(courses)
    images = [layout for layout in LAYOUTS if not layout.startswith("nd")]
    assert len(courses) == len(SEEDS) * len(PRECISIONS) * (len(images) + len(LAYOUTS) + 2 * len(MODELS))
    for course in courses:
        config = course.config(tmp_path)
        assert (config.steps, config.seed) == (300, course.seed)
        assert config.global_batch_size == MODELS[course.model]["global_batch_size"]


def test_a_result_holds_until_the_trainer_changes_and_a_failure_is_told(tmp_path, monkeypatch, capsys):
    runs = []

    def run(course, data, key):
        runs.append(course.name)
        return {"key": key, "seconds": 1.0} | (
            {"failure": "out of luck"} if course.seed == 2 else {"first": 2.0, "loss": 1.0}
        )

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(command, "_read_tree", lambda: "one")
    results = tmp_path / "convergence.json"
    assert command.main(["vit_tiny", "ddp", "fp32"], results) == 1
    assert len(runs) == 6 and "out of luck" in capsys.readouterr().out
    assert command.main(["vit_tiny", "ddp", "fp32"], results) == 1
    assert len(runs) == 8, "those that failed, again"
    monkeypatch.setattr(command, "_read_tree", lambda: "another")
    command.main(["vit_tiny", "ddp", "fp32", "seed 0"], results)
    assert len(runs) == 10
    assert set(json.loads(results.read_text())["courses"]) == set(runs)
    assert command.main(["no such"], results) == 2
