"""The verdict by hand, and which courses are run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab_spec.strategies import STRATEGIES
from tests.convergence import __main__ as command
from tests.convergence.course import LAYOUTS, MODELS, PRECISIONS, SEEDS, Course, list_courses
from tests.convergence.verdict import judge

ALONE = Course("vit_tiny", "single", "fp32", 0)
DDP = replace(ALONE, layout="ddp")


def losses(course: Course, *values: float) -> dict[str, float]:
    return {replace(course, seed=seed).name: value for seed, value in zip(SEEDS, values, strict=True)}


def test_a_quarter_of_what_the_seeds_differ_is_allowed_for_each_seed() -> None:
    """Seeds end at 1, 1.5 and 2: a spread of 1."""
    for last, passes in ((2.24, True), (2.26, False), (1.74, False)):
        known = losses(ALONE, 1.0, 1.5, 2.0) | losses(DDP, 1.01, 1.5, last)
        (verdict,) = judge([ALONE, DDP], known)
        assert verdict.passes is verdict.holds is passes
        assert verdict.share == pytest.approx(abs(last - 2.0)) and verdict.spread == 1.0
    del known[replace(DDP, seed=2).name]
    assert judge([ALONE, DDP], known) == [], "what has not been run has no verdict"


def test_a_planted_fault_must_end_elsewhere_and_is_compared_with_the_same_optimizer() -> None:
    alone = replace(ALONE, optimizer="sgd")
    faulty = replace(alone, faulty=True)
    known = losses(alone, 1.0, 1.1, 1.2) | losses(ALONE, 9.0, 9.1, 9.2)
    (seen,), (unseen,) = (judge([faulty], known | losses(faulty, 1.0, 1.1, last)) for last in (1.3, 1.21))
    assert (seen.passes, seen.holds, unseen.passes, unseen.holds) == (False, True, True, False)


def test_every_strategy_precision_and_seed_is_a_course_and_every_setting_is_allowed(tmp_path: Path) -> None:
    courses = list(list_courses())
    assert len({course.name for course in courses}) == len(courses)
    assert {name.split()[0] for name in LAYOUTS} == set(STRATEGIES)
    images = [layout for layout in LAYOUTS if not layout.startswith("nd")]
    assert len(courses) == len(SEEDS) * len(PRECISIONS) * (len(images) + len(LAYOUTS) + 2 * len(MODELS))
    for course in courses:
        config = course.config(tmp_path)
        assert (config.steps, config.seed) == (300, course.seed)


def test_a_result_holds_until_the_trainer_changes_and_a_failure_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(course: Course, data: Path, key: str) -> dict:
        runs.append(course.name)
        ended = {"failure": "out of luck"} if course.seed == 2 else {"first": 2.0, "loss": 1.0}
        return {"key": key, "seconds": 1.0} | ended

    monkeypatch.setattr(command, "_run", run)
    results, words = tmp_path / "convergence.json", ["vit_tiny", "ddp", "fp32"]
    for tree, arguments, ran in (("one", words, 6), ("one", words, 8), ("another", [*words, "seed 0"], 10)):
        monkeypatch.setattr(command, "_read_tree", lambda tree=tree: tree)
        assert command.main(arguments, results) == (0 if "seed 0" in arguments else 1) and len(runs) == ran
    assert set(json.loads(results.read_text())["courses"]) == set(runs)
    assert command.main(["no such"], results) == 2
