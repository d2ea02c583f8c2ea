"""A comparison on a terminal: what fits, what is left out, and that its amounts are those of the report."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stratlab.compare.terminal_view import MOST_PAIRS, build_screen, list_answers, list_parts
from stratlab.compare.winners import ON_CPU
from tests.stratlab.compare.building import Report, judge, read_columns

THREE = ("ddp", "fsdp", "zero2")


def print_screen(report: Report, width: int) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=width).print(build_screen(report, width))
    return page.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_three_runs_fit_on_a_screen(tmp_path: Path, width: int) -> None:
    report = judge(tmp_path, THREE)
    lines = print_screen(report, width)
    assert len(lines) <= 40 and max(map(len, lines)) <= width
    shown = read_columns(report, width)
    assert shown == read_columns(report) and "strategy" not in shown, "its name says it"
    assert all(number in "\n".join(lines) for cells in shown.values() for number in cells)
    labels = [label for label, _ in list_answers(report) if label]
    assert labels[:3] == ["Fair?", "Fastest", "Least memory"]
    assert all(f"Why {pair['run']} " in "\n".join(lines) for pair in report["attribution"]["pairs"])


def test_what_does_not_fit_is_left_out_from_the_end_and_named(tmp_path: Path) -> None:
    report = judge(tmp_path, THREE)
    (*kept, last), few = read_columns(report), read_columns(report, 40)
    assert [*few] == kept[: len(few)] and last not in few
    assert last in " ".join(print_screen(report, 40))
    assert few["run"] == ["ddp", "zero2", "fsdp"], "a terminal of any width tells runs apart"


def test_times_of_cpus_put_no_run_first(tmp_path: Path) -> None:
    gpu, cpu = (judge(tmp_path / name, ["ddp", "fsdp"], device=name) for name in ("cuda", "cpu"))
    for report in (gpu, cpu):
        report["runs"][0]["samples_per_s"] = 1.0
    assert read_columns(gpu)["run"] == ["fsdp", "ddp"] and read_columns(cpu)["run"] == ["ddp", "fsdp"]
    answers = dict(list_answers(cpu))
    assert ON_CPU in answers["Fastest"] and answers["Least memory"].startswith("fsdp")
    assert "\n".join(told for _, told in list_answers(cpu)).count(ON_CPU) == 1
    cpu["runs"][0]["peak_memory_gib"] = 41.25
    assert read_columns(cpu)["device peak GiB"] == ["41.25", "-"]


def test_a_flag_is_shown_with_the_numbers_of_its_runs(tmp_path: Path) -> None:
    report = judge(tmp_path, THREE)
    values = {"ddp": 23.456, "fsdp": 12.0}
    busy = {"flag": "busy_machine", "runs": [*values], "measure": "cpu_pressure_pct", "values": values}
    report["flags"] = [busy | {"limit": 10.0, "times_comparable": ranked} for ranked in (True, False)]
    notes = [note for _, note in list_answers(report) if "ddp 23" in note and "fsdp 12" in note]
    assert len({*notes}) == 2, "whether times are comparable"


def test_the_parts_sum_to_the_difference(tmp_path: Path) -> None:
    for pair in judge(tmp_path, THREE)["attribution"]["pairs"]:
        parts = list_parts(pair)
        assert sum(ms for _, ms in parts) == pytest.approx(pair["difference_ms"])
        assert len({name for name, _ in parts}) == len(parts) >= 3


def test_of_many_runs_the_furthest_apart_are_explained(tmp_path: Path) -> None:
    runs = {f"run{number}": {"strategy": "ddp", "micro_batch_size": number + 1} for number in range(6)}
    report = judge(tmp_path, runs)
    pairs = sorted(report["attribution"]["pairs"], key=lambda pair: abs(pair["difference_ms"]))
    assert len(pairs) > MOST_PAIRS
    assert sum(line.startswith("Why ") for line in print_screen(report, 120)) == MOST_PAIRS


def test_names_and_goals_are_shown(tmp_path: Path) -> None:
    root = tmp_path / "vit-huge-food101-eight-gpus"
    report = judge(root, {f"{root.name}-{name}": {"strategy": name} for name in THREE})
    assert any(re.match(r" ddp ", line) for line in print_screen(report, 120))
    hostile: dict[str, Any] = {"[red]": {"strategy": "ddp"}, "fsdp": {}}
    limited = judge(tmp_path / "limit", hostile, asked={"memory_limit_gib": 1.5})
    assert "[red]" in read_columns(limited)["run"] and "[red]" in "".join(print_screen(limited, 120))
    assert any("1.5" in label for label, _ in list_answers(limited))
