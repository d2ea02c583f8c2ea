"""Use runs and comparisons from Python, in scripts and notebooks: the commands as functions with values.

    from stratlab.api import compare, open_run, run_experiment

    folder = run_experiment(strategy="ddp", comparison="mine", run="ddp")
    run = open_run(folder)
    report = compare(folder.parent)

`open_run`, `compare` and `analyze_traces` belong to this package. `run_experiment`, `load_model`, `load_data` and
`deepspeed_config` are the trainer's own functions (trainer.api) with their errors, available if the trainer is
installed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratlab import UserError
from stratlab.analysis.foreign_traces import Analysed, analyze_foreign, name_output, parse_pattern
from stratlab.analysis.run_analysis import NoTraces
from stratlab.compare.comparison import compare as compare_runs
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import load_folders, read_tuning, read_varied_of
from stratlab.compare.variants import parse_varied
from stratlab.run_directory.record import RunRecord, read_run
from stratlab.traces.archives import ArchiveError
from stratlab.trainer_program import explain_trainer

if TYPE_CHECKING:  # for editors and mypy; at run time `__getattr__` imports them
    from trainer.api import (
        ConfigError,
        DataMissing,
        ExperimentFailed,
        LoadedData,
        deepspeed_config,
        load_data,
        load_model,
        run_experiment,
    )

__all__ = [
    "Analysed",
    "ConfigError",
    "DataMissing",
    "ExperimentFailed",
    "LoadedData",
    "RunRecord",
    "UserError",
    "analyze_traces",
    "compare",
    "deepspeed_config",
    "load_data",
    "load_model",
    "open_run",
    "run_experiment",
]


OF_THE_TRAINER = (
    *("ConfigError", "DataMissing", "ExperimentFailed", "LoadedData"),
    *("deepspeed_config", "load_data", "load_model", "run_experiment"),
)
if not TYPE_CHECKING and find_spec("trainer") is None:  # `import *` imports only the available names
    __all__ = [name for name in __all__ if name not in OF_THE_TRAINER]


def __getattr__(name: str) -> Any:
    """Return the trainer's functions on first use; this package never imports the trainer itself.

    Raises:
        UserError: the trainer is not installed, or another `trainer` is.
    """
    if name not in OF_THE_TRAINER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("trainer.api"), name)
    except ModuleNotFoundError as missing:
        if why := explain_trainer(sys.executable, os.environ):
            raise UserError(f"{name}: {why} [SL-api-no-trainer]") from missing
        raise


def open_run(folder: str | Path) -> RunRecord:
    """Return the files of a run: config, summary, evaluation, metrics, attempts, and its missing or wrong files.

    Raises:
        UserError: `folder` does not hold a run.
    """
    run = read_run(_read_path("folder", folder))
    if run.status == "not a run":
        raise UserError(f"{folder}: not a run: {run.ending} [SL-api-no-run]")
    return run


def analyze_traces(
    source: str | Path, output: str | Path | None = None, *, rank_pattern: str = ""
) -> list[Analysed]:
    """Analyze the traces of another program, as `stratlab analyze`; then `compare(output)` compares the experiments.

    Args:
        source: a folder, an archive or one trace; it is only read. output: receives a folder for each experiment; None
        = NAME-analysis here. rank_pattern: a regular expression whose group is the rank in a path; "" = read it from
        the traces and their names.

    Returns:
        Each experiment with its report, as in report.json, or with the reason for a missing one.

    Raises:
        UserError: `source`, `output` or `rank_pattern` cannot be used, or `source` holds no trace.
    """
    traces = _read_path("source", source)
    place = name_output(traces) if output is None else _read_path("output", output)
    try:
        return analyze_foreign(traces, place, pattern=parse_pattern(_read_text("rank_pattern", rank_pattern)))
    except (NoTraces, ArchiveError) as missing:
        raise UserError(str(missing)) from missing


def compare(
    folder: str | Path,
    *others: str | Path,
    baseline: str | None = None,
    memory_limit_gib: float | None = None,
    varied: str = "",
    output: str | Path | None = None,
) -> dict[str, Any]:
    """Return the report of a comparison, as in report.json.

    Args:
        folder: holds the runs.
        others: further folders with runs to compare with these.
        baseline: the run that explains the others' differences; None = the fastest.
        memory_limit_gib: of one device, for the goal "fastest within".
        varied: settings that differ on purpose between the runs, `lr,optimizer`.
        output: a folder for report.html and the other files; None = no file is written.

    Raises:
        UserError: the folders hold no run, or an argument cannot be used.
    """
    folders = [_read_path("folder", each) for each in (folder, *others)]
    place = None if output is None else _read_path("output", output)
    named = parse_varied(_read_text("varied", varied))
    if not isinstance(memory_limit_gib, Real | None):
        raise UserError(f"memory_limit_gib={memory_limit_gib!r}: expected a number [SL-api-no-number]")
    runs = load_folders(folders)
    report = compare_runs(
        runs,
        baseline=baseline,
        memory_limit_gib=memory_limit_gib,
        tuning=read_tuning(folders[0]) if len(folders) == 1 else None,
        varied=named or read_varied_of(folders),
    )
    if place is not None:
        write_report(report, runs, place)
    return report


def _read_path(name: str, given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{name}={given!r}: expected one path [SL-api-no-path]")
    return Path(given)


def _read_text(name: str, given: object) -> str:
    if not isinstance(given, str):
        raise UserError(f"{name}={given!r}: expected a text [SL-api-no-text]")
    return given
