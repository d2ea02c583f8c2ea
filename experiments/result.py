"""What a run of a small form has left: judged, and what of it is kept beside the experiment."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.catalogue import FOLDER
from experiments.kept_runs import ARCHIVE, PLACE, pack_runs, unpack_runs
from stratlab.api import compare
from stratlab.compare.terminal_view import build_screen
from stratlab.drawing import drop_file_links

FACTS = "result.json"
KEPT = ("report.json", "summary.md", "report.html")
"""Of the comparison's report; the folder of the rehearsal is called FOLDER in them."""
MOST_PAGES = 5
"""Parts of an experiment up to which pages are kept: they lie in git. With more parts a page is at FOLDER/report."""
MOST_PAGE_BYTES = 270_000
"""A larger page, that of many runs, is left at FOLDER/report, too; summary.md has the answer in text."""
TABLE_WIDTH = 200
MATTERS = (
    "trainer",
    "stratlab",
    "charts",
    "experiments/*.py",
    "experiments/*/small",
    "experiments/*/values.yaml",
)
"""What a result comes from."""
ROOT = FOLDER.parent


@dataclass(frozen=True)
class Outcome:
    """How a part went. `complaints`: what is not as it must be, a sentence each."""

    part: str
    seconds: float
    complaints: Sequence[str]
    report: Mapping[str, Any]


def read_report(folder: Path) -> dict[str, Any]:
    """report.json of a comparison; {} where there is none."""
    path = folder / "report.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def find_complaints(report: Mapping[str, Any], expected: Sequence[str]) -> list[str]:
    """What is wrong with the runs of a comparison.

    Args:
        expected: names of the runs that there must be.
    """
    rows = {row["run"]: row for row in report.get("runs", [])}
    found = [
        f"{name} is missing in the report [SL-small-run-missing]" for name in expected if name not in rows
    ]
    for name in sorted(rows.keys() & set(expected)):
        row = rows[name]
        if row["status"] != "finished" or not row["complete"]:
            rest = "" if row["complete"] else ", not complete"
            found.append(f"{name} is {row['status']}{rest} [SL-small-run-unfinished]")
    return found


def keep_result(
    report_folder: Path,
    part_folder: Path,
    outcome: Outcome,
    command: str,
    parts: int,
    form: str,
    runs: Path | None,
) -> None:
    """Fills the part's folder below result/, as a whole: runs, report, table as a text, and how it came to be.

    What was kept before stays where this outcome is not as it must be.

    Args:
        parts: of the experiment.
        form: of catalogue.Part.form.
        runs: the folder of the comparison; None = there is none.
    """
    new, old = (part_folder.with_name(f".{part_folder.name}.{age}") for age in ("new", "old"))
    if old.is_dir() and not part_folder.exists():  # somebody was stopped between two renames
        old.rename(part_folder)
    if outcome.complaints and (part_folder / FACTS).is_file():
        return
    for folder in (new, old):
        shutil.rmtree(folder, ignore_errors=True)
    new.mkdir(parents=True)
    if runs is None:
        _fill(new, report_folder, outcome.report, parts)
    else:
        pack_runs(runs, new / ARCHIVE, report_folder.parent, with_traces=False)
        draw_pages(new / ARCHIVE, new, parts)
    facts = describe_outcome(outcome, command) | {"form": form}
    (new / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    if part_folder.exists():
        part_folder.rename(old)
    new.rename(part_folder)
    shutil.rmtree(old, ignore_errors=True)


def _fill(folder: Path, report_folder: Path, report: Mapping[str, Any], parts: int) -> None:
    for name in KEPT:
        if (report_folder / name).is_file():
            text = take_folder_out((report_folder / name).read_text(), report_folder.parent)
            text = drop_file_links(text) if name.endswith(".html") else text  # they would lead to nothing
            if name != "report.html" or (parts <= MOST_PAGES and len(text.encode()) <= MOST_PAGE_BYTES):
                (folder / name).write_text(text)
    if report:
        (folder / "table.txt").write_text(draw_table(report))


def draw_pages(archive: Path, into: Path, parts: int) -> None:
    """Report, page and table from kept runs, as today's program draws them.

    Args:
        into: gets the files of KEPT and table.txt.
        parts: of the experiment.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        runs = unpack_runs(archive, place / "runs")
        report = compare(runs, output=place / "report")
        _fill(into, place / "report", report, parts)


def take_folder_out(text: str, folder: Path) -> str:
    """A report that names no folder of this machine, not even by the first letters that a page shows of a path."""
    text = text.replace(str(folder), PLACE)
    return re.sub(r'(<span title="FOLDER[^"]*">)[^<]*(</span>)', r"\1FOLDER/…\2", text)


def draw_table(report: Mapping[str, Any]) -> str:
    """The comparison as a terminal shows it."""
    page = io.StringIO()
    Console(file=page, width=TABLE_WIDTH).print(build_screen(report))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def describe_outcome(outcome: Outcome, command: str) -> dict[str, Any]:
    """When, where and from what, for result.json."""
    origin = outcome.report.get("origin", {})
    return {
        "part": outcome.part,
        "result": "failed" if outcome.complaints else "passed",
        "complaints": list(outcome.complaints),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--", *MATTERS)),
        "hardware": origin.get("hardware"),
        "cores": len(os.sched_getaffinity(0)),
        "backend": origin.get("backend"),
        "seconds": round(outcome.seconds),
        "command": command,
        "verdict": outcome.report.get("fairness", {}).get("verdict"),
        "runs": {
            row["run"]: {
                name: row.get(name)
                for name in ("strategy", "world_size", "steps", "test_accuracy_pct", "test_perplexity")
            }
            for row in outcome.report.get("runs", [])
        },
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
