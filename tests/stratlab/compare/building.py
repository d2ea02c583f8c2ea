"""A comparison of example runs in one call, and changes in files of a run."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from stratlab.compare.comparison import compare
from stratlab.compare.run_rows import build_row
from stratlab.compare.run_sources import load_runs
from stratlab.compare.terminal_view import build_table
from stratlab.run_directory.record import RunRecord
from tests.stratlab.example_run import build_run_dir

GPU = {"device": "cuda", "hosts": ["n"]}


def build(root, runs, **common):
    """Writes the runs into `root`: name -> its changes; its strategy is what its name begins with."""
    given = runs if isinstance(runs, Mapping) else {name: {} for name in runs}
    for name, changes in given.items():
        own = {**GPU, **common, **changes}
        build_run_dir(root, name, own.pop("strategy", name.partition("-")[0]), **own)
    return root


def judge(root, runs=(), asked=None, **common):
    """The report over them and what is in `root` already. `asked`: options of `compare`."""
    return compare(load_runs(build(root, runs, **common)), **(asked or {}))


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_ranks(run, change):
    for path in sorted((run / "ranks").glob("rank*.json")):
        edit(path, change)


def resolve(run, **facts):
    edit(run / "config.json", lambda config: config["resolved"].update(facts))


def build_bare_row(run="ddp", **facts):
    """A row of a finished run of which nothing else is known."""
    return dataclasses.replace(build_row(RunRecord(run, Path(run), "finished")), **facts)


def rows_of(report):
    return {row["run"]: row for row in report["runs"]}


def difference(report, field):
    (entry,) = [entry for entry in report["fairness"]["differences"] if entry["field"] == field]
    return dict(entry)


def read_columns(report, width=400):
    """The table of a terminal: heading -> what its rows show."""
    table = build_table(report, width)
    return {str(column.header).replace("\n", " "): [*map(str, column.cells)] for column in table.columns}
