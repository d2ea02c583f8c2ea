"""Runs side by side: what each measured, whether they may be compared, and who is best in what."""

from stratlab.compare.experiment import load_experiment
from stratlab.compare.folder import load_runs
from stratlab.compare.mlflow_log import log_for_user
from stratlab.compare.record import RunRecord
from stratlab.compare.report import compare
from stratlab.compare.terminal import terminal_table
from stratlab.compare.write import write_report

__all__ = [
    "RunRecord",
    "compare",
    "load_experiment",
    "load_runs",
    "log_for_user",
    "terminal_table",
    "write_report",
]
