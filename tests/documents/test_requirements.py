"""docs/requirements.md: each thing that was asked for is there once, and what it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stratlab_spec.settings.config import Config
from tests.documents.commands import ROOT
from tests.documents.test_commands import find_problems as find_command_problems

PAGE = ROOT / "docs/requirements.md"
ASKED = {"P": 11, "M": 18, "D": 12, "S": 19, "O": 11, "L": 21, "W": 7, "X": 16, "T": 13, "E": 8, "G": 9}
"""Rows of the source's eleven tables; beside them there are twelve decisions."""
IDS = [
    *(f"S-{table}{i}" for table, rows in ASKED.items() for i in range(1, rows + 1)),
    *(f"C{i}" for i in range(1, 13)),
]
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
SOURCES_OWN = {
    *("stratlab doctor", "--config", "launch_distributed.sh", "launch_multi_node.sh", "hostfile.txt"),
    "model_config.yaml",
}
"""What does not exist, and is said not to."""


def find_problems(text: str) -> set[str]:
    """What is wrong with the page: a row's name, and with which word."""
    lines = [line for line in text.splitlines() if re.match(r"\| (S-|C\d)", line)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    told = [row[0] for row in rows]
    found = {f"{name}: row" for name in {*IDS, *told} if told.count(name) != 1 or name not in IDS}
    return found | {f"{row[0]}: {problem}" for row in rows for problem in _judge(row)}


def _judge(row: list[str]) -> Iterator[str]:
    if len(row) != 4 or not all(row):
        yield "cell"
        return
    _, _, where, state = row
    word, _, rest = state.partition(" ")
    known = {"open:": len(rest.split()) >= 3, "here": not rest}
    known["GPU"] = bool(re.fullmatch(r"`(stratlab sweep|make gpu) [^`]+`", rest))
    if not known.get(word) or not (SPAN.search(where) or LINK.search(where)):
        yield "state"
    yield from (
        span for span in SPAN.findall(f"{where} {state}") if span not in SOURCES_OWN and not _exists(span)
    )
    yield from (target for target in LINK.findall(where) if not (PAGE.parent / target).exists())


def _exists(span: str) -> bool:
    if span.startswith("run.config."):
        return span.removeprefix("run.config.") in Config.model_fields
    if span.startswith(("stratlab ", "python ", "make ")):
        return not [*find_command_problems(span)]
    return re.fullmatch(r"[A-Za-z_.]+(/[A-Za-z0-9_.-]+)*/?", span) is not None and (ROOT / span).exists()


def test_everything_is_there_once_and_what_it_names_exists() -> None:
    assert len(IDS) == 157 and find_problems(PAGE.read_text()) == set()
