"""The README of each experiment: short, with every part, and with lines that can be typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.catalogue import FOLDER, Experiment, list_experiments
from experiments.prepared import PREPARED
from tests.documents.commands import FENCE, split
from tests.documents.test_commands import find_problems

EXPERIMENTS = list_experiments()
HEADINGS = ("**Purpose.**", "**Compared.**", "**GPUs.**", "## Start", "## Look at", "## Expected")
MOST_LINES = 60
"""One screen, or little more."""


def commands(readme: Path) -> list[str]:
    lines = "\n".join(FENCE.findall(readme.read_text())).replace("\\\n", " ").splitlines()
    return [" ".join(line.split("  #")[0].split()) for line in lines if line.startswith(("helm", "stratlab"))]


def prepared_by(line: str) -> str:
    """The name below _prepared/ that a line of helm fills, with what is known to go there."""
    given = dict(re.findall(r"prepare\.(\w+)=([^, ]+)", line))
    name = given.get("name") or split(line)[2]
    known = PREPARED[name]
    assert given[known.kind] == known.source, line
    return name


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[e.name for e in EXPERIMENTS])
def test_it_says_what_a_reader_needs_and_starts_each_part_behind_what_it_reads(
    experiment: Experiment,
) -> None:
    text, lines = experiment.readme.read_text(), commands(experiment.readme)
    assert [word for word in HEADINGS if word not in text] == [] and len(text.splitlines()) <= MOST_LINES
    names = [prepared_by(line) for line in lines if line.startswith("helm install")]
    begun = lines[len(names) :]
    wanted = {
        f"stratlab sweep experiments/{experiment.name}/full/{part.full.name}" for part in experiment.parts
    }
    assert set(begun) == wanted and len(begun) == len(wanted)
    assert set(names) == {name for part in experiment.parts for name in part.prepared()}


def test_their_programs_take_the_lines() -> None:
    for readme in (FOLDER / "README.md", *(experiment.readme for experiment in EXPERIMENTS)):
        assert [problem for line in commands(readme) for problem in find_problems(line)] == []
