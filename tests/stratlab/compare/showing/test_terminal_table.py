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


def test_the_best_of_each_group_is_named_in_its_line(tmp_path: Path) -> None:
    """Runs of two batches: in all nobody can be best, in each group somebody is."""
    for rows in (4, 8):
        for strategy, share in (("ddp", 4.0), ("fsdp", 2.0)):
            held = {"parameters": share, "gradients": share, "optimizer": 2 * share}
            build_run_dir(tmp_path, f"{strategy}-{rows}", strategy, state_memory_gib=held, lr=rows / 1000)
    page = io.StringIO()
    Console(file=page, width=200).print(terminal_table(compare(load_runs(tmp_path))))
    lines = [line.strip() for line in page.getvalue().splitlines()]
    for rows in (4, 8):
        (told,) = [
            line for line in lines if line.startswith(f"comparable with each other: ddp-{rows}, fsdp-{rows};")
        ]
        assert told.endswith(f"least memory held by the state: fsdp-{rows}")
    assert "best: nobody is named" not in lines


def test_on_a_terminal_of_80_columns_no_number_is_broken(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path, strategy, strategy)
    report = compare(load_runs(tmp_path))
    pages = {}
    for width in (80, 200):
        page = io.StringIO()
        Console(file=page, width=width).print(terminal_table(report, width))
        pages[width] = page.getvalue()
    numbers = [
        word for row in pages[200].splitlines() if row.startswith("│") for word in row.split("│")[4:-1]
    ]
    assert len(numbers) == 12 and all(number.strip() in pages[80] for number in numbers)
    assert max(map(len, pages[80].splitlines())) <= 80
