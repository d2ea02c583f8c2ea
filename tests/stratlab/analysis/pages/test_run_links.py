"""The head of a run's page leads to its traces, its logs, MLflow and its comparison."""

from __future__ import annotations

from pathlib import Path

from stratlab.analysis.pages.html import build_html
from stratlab.analysis.reporting.run_facts import read_facts
from tests.stratlab.analysis.example_report import build_example, build_example_ranks
from tests.stratlab.example_run import build_run_dir


def draw(run: Path) -> str:
    report = build_example()
    return build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")


def test_what_lies_in_the_run_directory_is_linked(tmp_path: Path) -> None:
    head = draw(build_run_dir(tmp_path / "demo", "ddp", "ddp")).partition("<nav")[0]
    for place in ("merged_trace.json.gz", "../traces/rank0_trace.json", "../ranks/rank1.log"):
        assert f'<a class="file" href="{place}">' in head
    assert 'href="http://mlflow:5000/#/experiments/1/runs/id-ddp"' in head
    assert '<p class="back"></p>' in head, "no comparison yet: a place for the way back"


def test_what_is_not_there_is_not_linked(tmp_path: Path) -> None:
    run = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (tmp_path / "demo" / "report").mkdir()
    (tmp_path / "demo" / "report" / "report.html").touch()
    assert '<p class="back"><a class="file" href="../../report/report.html">' in draw(run)
    (run := tmp_path / "other" / "ddp").mkdir(parents=True)
    (run / "config.json").write_text('{"run": "run"}')
    head = draw(run).partition("<nav")[0]
    assert "Logs" not in head and "MLflow" not in head and "rank 0</a>" not in head
