"""The comparison's page leads to its runs, and they lead back to it."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import render_page, write_report
from stratlab.compare.showing.run_files import TITLE
from tests.stratlab.example_run import build_run_dir

SLOT = '<h1>ddp</h1><p class="back"></p>'


def build_comparison(root: Path) -> Path:
    for strategy in ("ddp", "fsdp"):
        run = build_run_dir(root / "demo", strategy, strategy, hosts=["n"])
        (run / "analysis" / "report.html").write_text(SLOT)
    (root / "demo" / "ddp" / "analysis" / "merged_trace.json.gz").touch()
    return root / "demo"


def list_files(page: Path) -> list[Path]:
    """What its links to files lead to."""
    found = re.findall(r'<a class="file" href="([^"]*)"', page.read_text())
    return [(page.parent / urllib.parse.unquote(address)).resolve() for address in found]


def test_pages_traces_and_logs_are_linked_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    demo = build_comparison(tmp_path)
    runs = load_runs(demo)
    page = write_report(compare(runs), runs, demo / "report")
    files = list_files(page)
    assert all(path.exists() for path in files)
    there = {str(path.relative_to(demo)) for path in files}
    assert {"ddp/analysis/report.html", "fsdp/analysis/report.html"} <= there
    assert {
        "ddp/traces/rank1_trace.json",
        "fsdp/ranks/rank0.log",
        "ddp/analysis/merged_trace.json.gz",
    } <= there
    assert "fsdp/analysis/merged_trace.json.gz" not in there
    assert '<a href="http://mlflow:5000/#/experiments/1/runs/id-ddp">run</a>' in page.read_text()
    for run in ("ddp", "fsdp"):
        assert list_files(demo / run / "analysis" / "report.html") == [page]
        assert sorted(path.name for path in (demo / run / "analysis").glob(".*")) == []


def test_nothing_is_linked_that_does_not_lie_beside_the_page(tmp_path: Path) -> None:
    demo = build_comparison(tmp_path / "a" / "b" / "c")
    for run in ("ddp", "fsdp"):
        (demo / run / "mlflow.json").write_text(
            json.dumps({"tracking_uri": "http://127.0.0.1:1", "experiment_id": "1", "run_id": "x"})
        )
    runs = load_runs(demo)
    page = write_report(compare(runs), runs, tmp_path / "elsewhere")
    assert list_files(page) == []
    assert f"{TITLE} (none lies beside this page" in page.read_text()
    assert (demo / "ddp" / "analysis" / "report.html").read_text() == SLOT
    assert 'class="file"' not in render_page(compare(runs), runs)


def test_a_page_that_cannot_be_written_costs_no_report(tmp_path: Path) -> None:
    demo = build_comparison(tmp_path)
    (demo / "ddp" / "analysis" / "report.html").write_bytes(b"\xff\xfe")
    runs = load_runs(demo)
    write_report(compare(runs), runs, demo / "report")
    assert (demo / "ddp" / "analysis" / "report.html").read_bytes() == b"\xff\xfe"
