"""Whether a strategy ends where one process ends, measured by what the choice of a seed makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.convergence.course import SEEDS, Course

ALLOWED = 0.25
"""Of the spread of one process's final losses over the seeds, per seed."""


@dataclass(frozen=True)
class Verdict:
    """Of one model, layout and precision over all seeds."""

    course: Course
    """That of the first seed."""
    differences: tuple[float, ...]
    """Final loss minus that of one process, by seed."""
    spread: float
    """Largest minus smallest final loss of one process."""

    @property
    def share(self) -> float:
        """The largest difference, of the spread."""
        return max(map(abs, self.differences)) / self.spread

    @property
    def passes(self) -> bool:
        return self.share <= ALLOWED

    @property
    def holds(self) -> bool:
        """As it should be: a planted fault must not pass."""
        return self.passes != self.course.faulty


def alone(course: Course) -> Course:
    """What it is compared with: one process, without a fault."""
    return replace(course, layout="single", faulty=False)


def judge(courses: Sequence[Course], losses: Mapping[str, float]) -> list[Verdict]:
    """Of every group whose seeds have all been run, and those of one process with them; none of one process itself."""
    verdicts = []
    for course in courses:
        if course.seed != SEEDS[0] or (course.layout == "single" and not course.faulty):
            continue
        seeds = [replace(course, seed=seed) for seed in SEEDS]
        if any(each.name not in losses for each in (*seeds, *map(alone, seeds))):
            continue
        reference = [losses[alone(each).name] for each in seeds]
        differences = [losses[each.name] - base for each, base in zip(seeds, reference, strict=True)]
        verdicts.append(Verdict(course, tuple(differences), max(reference) - min(reference)))
    return verdicts
