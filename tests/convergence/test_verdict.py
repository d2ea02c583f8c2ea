"""The verdict by hand, and which courses are run."""

from dataclasses import replace
from pathlib import Path

import pytest

from stratlab_spec.strategies import STRATEGIES
from tests.convergence.course import LAYOUTS, MODELS, PRECISIONS, SEEDS, Course, judge, list_courses

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


def test_every_strategy_precision_and_seed_is_a_course_and_every_setting_is_allowed(tmp_path: Path) -> None:
    courses = list(list_courses())
    assert len({course.name for course in courses}) == len(courses)
    assert {name.split()[0] for name in LAYOUTS} == set(STRATEGIES)
    images = [layout for layout in LAYOUTS if not layout.startswith("nd")]
    assert len(courses) == len(SEEDS) * len(PRECISIONS) * (len(images) + len(LAYOUTS) + 2 * len(MODELS))
    for course in courses:
        config = course.config(tmp_path)
        assert (config.steps, config.seed) == (300, course.seed)
