"""The README of each experiment: short, with every part, and with lines that can be typed."""

from __future__ import annotations

import re
import subprocess

import pytest
import typer.core
import typer.main

from experiments.catalogue import FOLDER, Experiment, list_experiments
from experiments.prepared import PREPARED
from stratlab.cli import app
from stratlab.rendering.helm import find_helm
from tests.documents.commands import FENCE, ROOT, split

EXPERIMENTS = list_experiments()
MOST_LINES = 60
"""One screen, or little more."""
each = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[e.name for e in EXPERIMENTS])


def commands(text: str) -> list[str]:
    lines = "\n".join(FENCE.findall(text)).replace("\\\n", " ").splitlines()
    return [" ".join(line.split("  #")[0].split()) for line in lines if line.startswith(("helm", "stratlab"))]


@each
def test_it_says_what_a_reader_needs(experiment: Experiment) -> None:
    text = experiment.readme.read_text()
    for word in ("**Purpose.**", "**Compared.**", "**GPUs.**", "## Start", "## Look at", "## Expected"):
        assert word in text, word
    assert len(text.splitlines()) <= MOST_LINES


def prepared_by(line: str) -> str:
    """The name below _prepared/ that a line of helm fills, rendered."""
    words = split(line)
    done = subprocess.run([find_helm(), "template", *words[2:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name = re.search(r'"--name=(.*)"', done.stdout)
    assert name, line
    known = PREPARED[name[1]]
    assert f'"--{known.kind}={known.source}"' in done.stdout, line
    return name[1]


@each
def test_each_full_form_is_started_behind_what_it_reads(experiment: Experiment) -> None:
    lines = commands(experiment.readme.read_text())
    names = [prepared_by(line) for line in lines if line.startswith("helm install")]
    begun = [line for line in lines if not line.startswith("helm install")]
    wanted = {
        f"stratlab sweep experiments/{experiment.name}/full/{part.full.name}" for part in experiment.parts
    }
    assert set(begun) == wanted and len(begun) == len(wanted)
    assert lines == [*lines[: len(names)], *begun]
    assert set(names) == {name for part in experiment.parts for name in part.prepared()}


@pytest.mark.parametrize("readme", [FOLDER / "README.md", *(e.readme for e in EXPERIMENTS)])
def test_stratlab_knows_the_lines(readme) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    for line in commands(readme.read_text()):
        words = split(line)
        if words[0] == "stratlab":
            group.commands[words[1]].make_context(words[1], words[2:])
            assert all((ROOT / word).exists() for word in words if word.startswith("experiments/")), line
