"""A comparison of example runs in one call, and changes in files of a run."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.compare.comparison import compare
from stratlab.compare.run_rows import RunRow, build_row
from stratlab.compare.run_sources import load_runs
from stratlab.compare.terminal_view import build_table
from stratlab.run_directory.record import RunRecord
from tests.stratlab.example_run import build_run_dir

Report = dict[str, Any]
GPU: dict[str, Any] = {"device": "cuda", "hosts": ["n"]}


def build(root: Path, runs: Mapping[str, Mapping[str, Any]] | Sequence[str], **common: Any) -> Path:
    """Writes the runs into `root`: name -> its changes; its strategy is what its name begins with."""
    given = runs if isinstance(runs, Mapping) else {name: {} for name in runs}
    for name, changes in given.items():
        own = {**GPU, **common, **changes}
        build_run_dir(root, name, own.pop("strategy", name.partition("-")[0]), **own)
    return root


def judge(
    root: Path,
    runs: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
    asked: Mapping[str, Any] | None = None,
    **common: Any,
) -> Report:
    """The report over them and what is in `root` already. `asked`: options of `compare`."""
    return compare(load_runs(build(root, runs, **common)), **(asked or {}))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_ranks(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes what each rank has seen."""
    for path in sorted((run / "ranks").glob("rank*.json")):
        edit(path, change)


def resolve(run: Path, **facts: Any) -> None:
    """Sets what the settings of a run have come to."""
    edit(run / "config.json", lambda config: config["resolved"].update(facts))


def build_bare_row(run: str = "ddp", **facts: Any) -> RunRow:
    """A row of a finished run of which nothing else is known."""
    return dataclasses.replace(build_row(RunRecord(run, Path(run), "finished")), **facts)


def rows_of(report: Report) -> dict[str, dict[str, Any]]:
    return {row["run"]: row for row in report["runs"]}


def difference(report: Report, field: str) -> dict[str, Any]:
    """The one entry of the audit about this fact."""
    (entry,) = [entry for entry in report["fairness"]["differences"] if entry["field"] == field]
    return dict(entry)


def read_columns(report: Report, width: int = 400) -> dict[str, list[str]]:
    """The table of a terminal: heading -> what its rows show."""
    table = build_table(report, width)
    return {str(column.header).replace("\n", " "): [*map(str, column.cells)] for column in table.columns}
