"""docs/requirements.md: each thing that was asked for is there once, and what it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main

from stratlab.cli import app
from tests.documents.commands import ROOT, split
from trainer.settings.config import Config

PAGE = ROOT / "docs/requirements.md"
IDS = (Path(__file__).with_name("requirement_ids.txt")).read_text().split()
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
NAMED = re.compile(r"[A-Za-z_.]+(/[A-Za-z0-9_.-]+)*/?")
"""A path, as code."""
SOURCES_OWN = (
    "stratlab doctor",
    "--config",
    "launch_distributed.sh",
    "launch_multi_node.sh",
    "hostfile.txt",
    "model_config.yaml",
)
"""What does not exist, and is said not to."""


def read_rows(text: str) -> list[list[str]]:
    """Cells of every row of the page's tables, without heads."""
    lines = [line for line in text.splitlines() if re.match(r"\| (S-|C\d)", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def find_problems(text: str) -> list[str]:
    """What is wrong with the page, a sentence each."""
    rows = read_rows(text)
    told = [row[0] for row in rows]
    problems = [f"{name} is missing" for name in IDS if name not in told]
    problems += [
        f"{name} is there {told.count(name)} times" for name in sorted(set(told)) if told.count(name) > 1
    ]
    problems += [f"{name} was never asked for" for name in told if name not in IDS]
    for row in rows:
        problems += [f"{row[0]}: {problem}" for problem in _judge(row)]
    return problems


def _judge(row: list[str]) -> Iterator[str]:
    if len(row) != 4 or not all(row):
        yield "a cell is empty"
        return
    _, _, where, state = row
    word, _, rest = state.partition(" ")
    if not SPAN.search(where) and not LINK.search(where):
        yield "names no place"
    if word == "open:" and len(rest.split()) < 3:
        yield "does not say what is missing"
    elif word == "GPU" and not re.fullmatch(r"`(stratlab sweep|make gpu) [^`]+`", rest):
        yield "does not say which command measures it"
    elif (word == "here" and rest) or word not in ("open:", "GPU", "here"):
        yield f"is in no known state: {state}"
    for span in SPAN.findall(f"{where} {state}"):
        if span not in SOURCES_OWN:
            yield from _look_up(span)
    for target in LINK.findall(where):
        if not (PAGE.parent / target).exists():
            yield f"there is no page {target}"


def _look_up(span: str) -> Iterator[str]:
    first = span.split()[0]
    if span.startswith("run.config."):
        if span.removeprefix("run.config.") not in Config.model_fields:
            yield f"there is no setting {span}"
    elif span.startswith("stratlab "):
        yield from _parse(span)
    elif first == "python":
        module = ROOT / span.split()[2].replace(".", "/")
        if not module.with_suffix(".py").is_file() and not (module / "__main__.py").is_file():
            yield f"there is no program {span}"
    elif first == "make":
        if not re.search(rf"^{span.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
            yield f"there is no target {span}"
    elif not NAMED.fullmatch(span) or not (ROOT / span).exists():
        yield f"there is no {span}"


def _parse(command: str) -> Iterator[str]:
    _, verb, *arguments = split(command)
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    try:
        group.commands[verb].make_context(verb, list(arguments))
    except Exception as failure:
        yield f"{command} is no command: {failure}"
    for word in arguments:
        if "/" in word and not (ROOT / word).exists():
            yield f"there is no {word}"


def test_everything_is_there_once_and_what_it_names_exists() -> None:
    assert find_problems(PAGE.read_text()) == []


def test_the_list_of_ids_is_whole() -> None:
    """145 rows of eleven tables, and twelve decisions."""
    assert len(IDS) == len(set(IDS)) == 157
    assert [name for name in IDS if name.startswith("C")] == [f"C{i}" for i in range(1, 13)]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("| S-M6 |", "| S-M66 |", "S-M6 is missing"),
        ("| S-M6 |", "| S-M66 |", "S-M66 was never asked for"),
        ("| S-M7 |", "| S-M6 |", "S-M6 is there 2 times"),
        ("| `trainer/models/cnn.py` | here |", "| | here |", "S-M6: a cell is empty"),
        ("| `trainer/models/cnn.py` | here |", "| in the models | here |", "S-M6: names no place"),
        ("`trainer/models/cnn.py`", "`trainer/models/cnm.py`", "S-M6: there is no trainer/models/cnm.py"),
        ("`run.config.seq_len`", "`run.config.seqlen`", "S-D9: there is no setting run.config.seqlen"),
        ("`make faults`", "`make faultz`", "S-P9: there is no target make faultz"),
        ("`python -m trainer.evaluate RUN", "`python -m trainer.evaluat RUN", "S-L13: there is no program python -m"),
        ("full/gpus-8.yaml", "full/gpus-9.yaml", "S-P2: "),
        ("`stratlab check -n stratlab`", "`stratlab check --nspace x`", "S-W1: stratlab check --nspace x is no comm"),
        ("[memory.md](memory.md)", "[memory.md](memori.md)", "S-X3: there is no page memori.md"),
        ("models/cnn.py` | here |", "models/cnn.py` | open: later |", "S-M6: does not say what is missing"),
        ("GPU `stratlab sweep experiments/scaling/full/weak.yaml`", "GPU later", "S-X10: does not say which command"),
        ("models/cnn.py` | here |", "models/cnn.py` | nearly |", "S-M6: is in no known state: nearly"),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_seen(old: str, new: str, problem: str) -> None:
    text = PAGE.read_text()
    assert old in text
    assert any(found.startswith(problem) for found in find_problems(text.replace(old, new))), problem
