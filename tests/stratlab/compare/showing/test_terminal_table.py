"""The table of a terminal: sizes in a unit that suits them, the best in words."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.terminal_table import terminal_table
from tests.stratlab.example_run import build_run_dir


@pytest.mark.parametrize(
    ("parameters_gib", "unit", "told"), [(0.0007, "MiB", "2.867"), (3.0, "GiB", "12.000")]
)
def test_small_models_are_told_in_small_units(
    tmp_path: Path, parameters_gib: float, unit: str, told: str
) -> None:
    held = {"parameters": parameters_gib, "gradients": parameters_gib, "optimizer": 2 * parameters_gib}
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path, strategy, strategy, state_memory_gib=held)
    report = compare(load_runs(tmp_path))
    page = io.StringIO()
    Console(file=page, width=200).print(terminal_table(report))
    rows = [line for line in page.getvalue().splitlines() if line.startswith("│")]
    assert f"state {unit}/rank" in page.getvalue() and all(f" {told} │" in row for row in rows)
    assert f"state per rank ({unit})" in build_markdown(report)
