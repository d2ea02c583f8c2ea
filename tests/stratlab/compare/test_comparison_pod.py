"""A comparison in a pod, its report brought back. A process of this machine plays the pod, see fake_kubelet."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratlab import cli
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.compare import comparison_pod
from stratlab.compare.comparison_pod import (
    NOT_THERE,
    build_options,
    check_output,
    compare_on_cluster,
    find_mlflow,
    unpack_payload,
)
from stratlab.drawing import drop_file_links
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import PODS, Kubelet, run_kubelet
from tests.stratlab.example_run import build_run_dir

Lab = tuple[Connection, Kubelet]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with run_kubelet(FakeApi()) as pair:
        yield pair


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "volume" / "demo", strategy, strategy)
    return tmp_path / "volume"


def bring(lab: Lab, volume: Path, comparison: str, output: Path) -> dict[str, object]:
    return compare_on_cluster(
        lab[0],
        "lab",
        comparison,
        claim="stratlab-results",
        mount=str(volume),
        image="lab",
        output=output,
        progress=lambda sentence: None,
    )


def test_the_report_is_on_the_volume_and_here(lab: Lab, volume: Path, tmp_path: Path) -> None:
    report = bring(lab, volume, "demo", tmp_path / "here")
    assert [row["run"] for row in report["runs"]] == ["ddp", "fsdp"]  # type: ignore[attr-defined, index]
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {"report.html", "report.json", "comparison.csv", "summary.md"}
    for name in names:
        there = (volume / "demo" / "report" / name).read_text()
        assert (tmp_path / "here" / name).read_text() == (
            drop_file_links(there) if name == "report.html" else there
        )
    assert 'href="../ddp/ranks/rank0.log"' in (volume / "demo" / "report" / "report.html").read_text()
    assert "rank0.log" not in (tmp_path / "here" / "report.html").read_text(), "no link to what is not here"
    mounts = lab[1].created[0]["spec"]["containers"][0]["volumeMounts"]
    assert mounts[0]["readOnly"] is False
    assert lab[1].api.collections[PODS] == {}


def test_where_it_lies_in_mlflow_is_said_as_this_machine_reaches_it() -> None:
    said = (
        "best: fastest: ddp\nreport in MLflow: http://mlflow:5000/#/experiments/1/runs/a/artifacts\n"
        "charts in MLflow: http://mlflow:5000/#/experiments/1/runs?compareRunsMode=CHART\n"
    )
    assert find_mlflow(said, "lab") == [
        "report in MLflow: http://localhost:5000/#/experiments/1/runs/a/artifacts",
        "charts in MLflow: http://localhost:5000/#/experiments/1/runs?compareRunsMode=CHART",
        "  after kubectl -n lab port-forward service/mlflow 5000:5000",
    ]
    outside = "report in MLflow: https://mlflow.example/#/experiments/1"
    assert find_mlflow(outside, "lab") == [outside]
    away = f"{NOT_THERE}: http://mlflow:5000 does not answer"
    assert find_mlflow(f"{away}\nbest: nobody", "lab") == [away]
    assert find_mlflow("best: nobody", "lab") == []


def test_a_report_is_replaced_and_nothing_else_is(lab: Lab, volume: Path, tmp_path: Path) -> None:
    output = tmp_path / "here"
    bring(lab, volume, "demo", output)
    (output / "comparison.csv").write_text("of an earlier report")
    (output / "thesis.tex").write_text("years")  # somebody works where the first report went: --output .
    bring(lab, volume, "demo", output)
    assert (output / "thesis.tex").read_text() == "years"
    assert (output / "comparison.csv").read_text() != "of an earlier report"
    assert not [path.name for path in output.iterdir() if path.name.startswith(".")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "volume"], "no temporary folder stays"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    pods = len(lab[1].created)
    with pytest.raises(ValueError, match=f"--output {tmp_path}/mine: is there, and is no report"):
        bring(lab, volume, "demo", tmp_path / "mine")
    assert len(lab[1].created) == pods, "refused before a pod is started"
    check_output(tmp_path / "nothing")


def test_an_unknown_comparison_is_told_in_one_sentence(lab: Lab, volume: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as failure:
        bring(lab, volume, "dmeo", tmp_path / "here")
    assert str(failure.value).startswith(
        f"on the claim stratlab-results of namespace lab: {volume}/dmeo: no such folder; expected the folder"
    )
    with pytest.raises(ValueError, match="with --on-cluster give the name of a comparison, not a folder"):
        bring(lab, volume, "../demo", tmp_path / "here")


def test_a_report_that_is_too_large_stays_on_the_volume(
    lab: Lab, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_pod, "LARGEST_MIB", 0)
    with pytest.raises(
        ClusterError, match=rf"the report has 0 MiB, more than 0: it stays on .*{volume}/demo/report"
    ):
        bring(lab, volume, "demo", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_report_that_was_cut_is_refused(lab: Lab, volume: Path, tmp_path: Path) -> None:
    bring(lab, volume, "demo", tmp_path / "here")
    (lines,) = lab[1].api.logs.values()
    texts = [line.partition(" ")[2] for line in lines]
    start = next(number for number, text in enumerate(texts) if text.startswith("stratlab-report "))
    payload = "\n".join([texts[start].removeprefix("stratlab-report "), *texts[start + 1 :]]).encode()
    assert set(unpack_payload(payload)) == {"report.html", "report.json", "comparison.csv", "summary.md"}
    for cut in (payload[:-200], payload.replace(b"A", b"B", 1), b"", b"12 ab\n!!!"):
        with pytest.raises(ClusterError, match="did not arrive whole"):
            unpack_payload(cut)


def test_the_verb_prints_the_table(
    lab: Lab,
    volume: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from stratlab.cluster import connection

    monkeypatch.setattr(connection, "connect", lambda **_: lab[0])
    monkeypatch.chdir(tmp_path)
    lab[1].env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["stratlab", "compare", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    mount = ["--mount", str(volume)]
    assert call("demo", "--on-cluster", *mount) == 0
    shown = capsys.readouterr().out
    assert "comparison demo" in shown and "report: demo-report/report.html" in shown
    assert call("demo", "--on-cluster", *mount, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["comparison"] == "demo"
    assert (
        call("demo", "--on-cluster", *mount, "--json", "-", "--baseline", "fsdp", "--memory-limit-gib", "4")
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["attribution"]["baseline"] == "fsdp" and report["goals"]["memory_limit_gib"] == 4.0
    passed: list[dict[str, Any]] = []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://here:5000")
    monkeypatch.setattr(comparison_pod, "build_options", lambda asked: passed.append(dict(asked)) or [])
    for given in ([], ["--tracking-uri", "http://mlflow:5000"]):
        assert call("demo", "--on-cluster", *mount, *given) == 0
    assert [asked.get("tracking_uri") for asked in passed] == [None, "http://mlflow:5000"]
    monkeypatch.setattr(comparison_pod, "build_options", build_options)
    assert call("demo", "--on-cluster", *mount, "--baseline", "zero3") == 2
    assert "--baseline zero3: expected a finished run of this comparison" in capsys.readouterr().err
    assert call("--experiment", "demo", "--on-cluster", "--tracking-uri", "http://m") == 2
    assert "leave --experiment out" in capsys.readouterr().err


def test_options_travel_in_one_word_each() -> None:
    asked = {"baseline": "--json", "memory_limit_gib": 4.5, "other": None}
    assert build_options(asked) == ["--baseline=--json", "--memory-limit-gib=4.5"]
