"""docs/stops.md: its tables are those of the code."""

from __future__ import annotations

import re

from stratlab_spec.exit_codes import REASONS
from stratlab_spec.settings.fields import Settings
from stratlab_spec.settings.values import KINDS
from tests.documents.commands import ROOT

PAGE = (ROOT / "docs/stops.md").read_text()
IN_A_CHART = {"grace_s": 120, "wait_s": 86400, "allow_faults": False}
"""Setting -> what the charts give (charts/run/values.yaml)."""
WORDS = {False: "off", True: "on", "": ""}


def read_table(title: str, page: str = PAGE) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def find_problems(page: str) -> list[str]:
    """What the page says otherwise than the code."""
    problems = []
    told = {int(code): reason for code, reason in read_table("Exit codes", page)}
    problems += [f"exit code {code}" for code in sorted(told.keys() ^ REASONS.keys())]
    for code in told.keys() & REASONS.keys():
        if REASONS[code].split(",")[0].split(" ")[0] != re.split(r"[ ,:]", told[code])[0]:
            problems.append(f"the reason of {code}")
    kinds = [row[0].strip("`") for row in read_table("Faults on demand", page)]
    if kinds != [*KINDS]:
        problems.append("the kinds of faults")
    for cell, default, _ in read_table("Settings", page):
        name = (re.search(r"\(`(\w+)`\)", cell) or re.search(r"`([\w.]+)`", cell))[1]  # type: ignore[index]
        if name == "run.suspend":
            continue
        if name not in Settings.model_fields:
            problems.append(f"no setting {name}")
            continue
        value = IN_A_CHART.get(name, Settings.model_fields[name].default)
        word = WORDS.get(value, str(value)) if isinstance(value, bool | str) else str(value)
        if default.split(" ")[0] != word:
            problems.append(f"the default of {name}")
    return problems


def test_exit_codes_kinds_and_defaults_are_those_of_the_code() -> None:
    assert find_problems(PAGE) == []


def test_every_setting_about_stops_is_told() -> None:
    """Those of checkpoints and attempts, by their names."""
    told = {word for row in read_table("Settings") for word in re.findall(r"`(\w+)`", row[0])}
    begins = (
        *("checkpoint_", "resume", "max_attempts", "deadline_s"),
        *("collective_", "on_not_", "oom_", "fault"),
    )
    assert {name for name in Settings.model_fields if name.startswith(begins)} <= told
