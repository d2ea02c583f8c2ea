"""Names on a page: without what begins all of them, in tables, charts and sentences; paths and links stay."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import render_page
from stratlab.compare.showing.short_names import shorten_names
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.terminal_table import terminal_table
from tests.stratlab.example_run import build_run_dir


def test_the_comparisons_name_is_told_once(tmp_path: Path) -> None:
    root = tmp_path / "vit-food101"
    for strategy in ("ddp", "fsdp"):
        build_run_dir(root, f"vit-food101-{strategy}", strategy)
    runs = load_runs(root)
    report = compare(runs)
    page = render_page(report, runs)
    assert "Names of runs are shown without vit-food101-, which begins all of them." in page
    said = re.sub(r"<[^>]*>", " ", page)
    assert not re.findall(r"(?<![-/\w])vit-food101-(?:ddp|fsdp)(?![-/\w])", said)
    assert "fsdp is" in said and "than ddp" in said, "sentences too"
    text = build_markdown(report)
    assert "| fsdp | fsdp |" in text and "Names of runs are shown without" in text
    assert report["runs"][0]["run"].startswith("vit-"), "the report itself keeps them"


@pytest.mark.parametrize("width", [60, 110, 200])
def test_a_terminal_of_any_width_tells_runs_apart(tmp_path: Path, width: int) -> None:
    root = tmp_path / "vit-huge-food101-eight-gpus"
    strategies = ("ddp", "fsdp", "zero2", "hsdp")
    for strategy in strategies:
        build_run_dir(root, f"{root.name}-{strategy}", strategy)
    page = io.StringIO()
    Console(file=page, width=width).print(terminal_table(compare(load_runs(root))))
    first = [line.split("│")[1] for line in page.getvalue().splitlines() if line.startswith("│")]
    assert "".join(cell.strip() for cell in first) == "".join(sorted(strategies))
    assert "…" not in page.getvalue().partition("└")[0]
    assert f"Names of runs are shown without {root.name}-" in " ".join(page.getvalue().split())


def report_of(comparison: str, *names: str) -> dict[str, object]:
    return {"comparison": comparison, "runs": [{"run": name} for name in names]}


def test_only_where_a_name_stands_by_itself() -> None:
    report = report_of("example", "example-ddp", "example-ddp-r2") | {
        "winners": {"example-ddp": 1},
        "why": "example-ddp is slower than example-ddp-r2: example-ddp.",
        "folder": "/results/a/example-ddp/analysis example-ddp/x x-example-ddp",
    }
    shown, _, prefix = shorten_names(report, [])
    assert prefix == "example-"
    assert shown["winners"] == {"ddp": 1}
    assert shown["why"] == "ddp is slower than ddp-r2: ddp."
    assert shown["folder"] == report["folder"]


@pytest.mark.parametrize("names", [("a-ddp",), ("a-ddp", "fsdp"), ("a-", "a-ddp"), ("b-ddp", "b-fsdp"), ()])
def test_else_names_stay(names: tuple[str, ...]) -> None:
    report = report_of("example", *names)
    assert shorten_names(report, []) == (report, [], "")


@pytest.mark.parametrize(
    ("comparison", "begin"),
    [("vit_food101", "vit-food101-"), ("ViT-Food101", "vit-food101-"), ("1d-to-5d", "s-1d-to-5d-")],
)
def test_names_as_a_sweep_writes_them(comparison: str, begin: str) -> None:
    report = report_of(comparison, f"{begin}ddp", f"{begin}fsdp")
    shown, _, prefix = shorten_names(report, [])
    assert prefix == begin and [row["run"] for row in shown["runs"]] == ["ddp", "fsdp"]


def test_a_place_stays_that_is_called_like_a_run() -> None:
    report = report_of("example", "example-ddp", "example-fsdp")
    report |= {"not_runs": [{"folder": "example-ddp.old"}], "sources": [{"run_dir": "example-ddp"}]}
    shown, _, _ = shorten_names(report, [])
    assert shown["not_runs"] == report["not_runs"] and shown["sources"] == report["sources"]


def test_a_short_name_in_front_stays() -> None:
    report = report_of("llm", "llm-1d", "llm-2d")
    assert shorten_names(report, []) == (report, [], "")
