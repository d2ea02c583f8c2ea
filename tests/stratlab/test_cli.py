"""What all verbs have in common: examples, exit codes, refusals; and `compare` as called."""

import errno
import json
import os
import sys

import pytest

from stratlab import cli
from stratlab.analysis import run_analysis as analyze
from tests.codes import find_codes
from tests.stratlab.compare.building import build

OF_RESULTS = (
    *("list", "compare", "analyze", "verify", "mlflow", "remove --yes", "metrics replay", "metrics serve"),
)
REPORT = {
    "mean": {"ranks": 2, "steps": 3, "step_ms": 12.345, "comm_overlap_pct": None},
    "source": "cpu",
    "backend": "gloo",
    "device": "a processor",
    "note": "host time",
    "hta": [],
    "parts": [
        {"part": "compute", "collective": None, "axis": None, "ms": 10.0},
        {"part": "straggler", "collective": None, "axis": None, "ms": 2.345},
    ],
    "recommendations": [{"rule": "R5", "severity": "low", "title": "waiting for rank 1"}],
}


def call(*arguments):
    """The exit code of the console script, called in this process."""
    sys.argv = ["stratlab", *map(str, arguments)]
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def argv():
    before = sys.argv
    yield
    sys.argv = before


def build_runs(root):
    for run in build(root, ["ddp", "fsdp"], device="cpu").iterdir():
        (run / "mlflow.json").unlink()
    return root


def test_wrong_input_is_one_sentence_and_exit_code_2(capsys, tmp_path):
    runs, loop = build_runs(tmp_path / "runs"), tmp_path / "itself.json"
    loop.symlink_to(loop)  # root may write everywhere else
    for arguments, codes in (
        (["compare"], ["SL-compare-source"]),
        (["compare", "--json"], ["SL-compare-source"]),
        (["compare", "x", "--experiment", "y"], ["SL-compare-source"]),
        (["compare", "--experiment", "y", "--tracking-uri", ""], ["SL-experiment-no-server"]),
        (["compare", runs, runs], ["SL-compare-several-options"]),
        (["compare", runs, "--vary", "dataset,lrr"], ["SL-varied-refused", "SL-varied-no-setting"]),
        (["compare", runs, "--memory-limit-gib", "0"], ["SL-memory-limit"]),
        (["compare", runs, "--json", tmp_path / "no" / "x.json"], ["SL-json-no-folder"]),
        (["verify", runs / "ddp", "--tracking-uri", "http://me:secretpw@h"], ["SL-tracking-uri-login"]),
        (["compare", runs, "--json", loop], None),
        (["rehearse", "charts/nope"], None),
        (["wait", runs / "ddp" / "config.json", "--deadline-s", "0.1"], None),
    ):
        assert call(*arguments) == 2, arguments
        shown = capsys.readouterr()
        assert shown.err.startswith("error: ") and shown.out == "" and "secretpw" not in shown.err
        assert codes is None or find_codes(shown.err) == codes
    assert call("rehearse", "x", "--nodes", "0") == call("nonsense") == call("analyze", runs, "--nope") == 2


@pytest.mark.parametrize("verb", OF_RESULTS)
def test_where_there_is_nothing_every_verb_ends_with_3(capsys, tmp_path, verb):
    nothing, other, file = tmp_path / "nothing", tmp_path / "other", tmp_path / "file"
    other.mkdir()
    for path in (file, other / "notes.txt"):
        path.touch()
    for place, code in ((nothing, 3), (other, 3), (file, 2)):
        if (verb, place) != ("metrics serve", other):  # which serves what will come
            assert call(*verb.split(), place) == code
            assert capsys.readouterr().err.startswith(f"error: {place}: ")


def test_analyze_shows_its_numbers_and_prints_them_as_json(monkeypatch, capsys, tmp_path):
    asked = []

    def analyze_run(run_dir, *, tracking_uri, progress, shares, **left_out):
        assert shares == 0
        asked.append(left_out or tracking_uri)
        if (run_dir / "empty").exists():
            raise analyze.NoTraces("no trace")
        return REPORT

    monkeypatch.setattr(analyze, "analyze_run", analyze_run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://m:1")
    assert call("analyze", tmp_path) == 0
    shown = capsys.readouterr().out
    told = ("3 steps", "2 ranks", "gloo", "12.3 ms", "81 %", "R5", f"{tmp_path}/analysis/report.html")
    assert [one for one in told if one not in shown] == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert call("analyze", tmp_path, "--json") == 0
    apart = capsys.readouterr()
    assert json.loads(apart.out) == REPORT and "2 ranks" in apart.err
    for name in ("attempts.jsonl", "empty"):
        (tmp_path / name).touch()
    assert call("analyze", tmp_path) == 3 and asked == ["http://m:1", None, None]
    assert call("analyze", tmp_path, "--no-hta", "--no-merge") == 3
    assert asked.pop() == {"hta_limits": None, "merge": False}
    (tmp_path / "lost" / "traces").mkdir(parents=True)
    (tmp_path / "lost" / "traces" / "rank0.json").touch()
    assert call("analyze", tmp_path / "lost", "--output", tmp_path / "out") == 2
    assert f"{tmp_path}/lost/traces" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOTDIR])
def test_a_place_that_refuses_is_a_sentence(monkeypatch, capsys, tmp_path, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number), "/data/report.html")

    monkeypatch.setattr(analyze, "analyze_run", refuse)
    assert call("analyze", tmp_path) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: /data/report.html: ") and "Errno" not in said


def test_compare_prints_its_report_or_writes_it_to_a_file(capsys, tmp_path):
    runs, file = build_runs(tmp_path / "runs"), tmp_path / "found.json"
    for words in (
        (runs, "--json"),
        ("--json", runs),
        (runs, "--json", "--baseline", "fsdp"),
        ("--json", "--baseline", "fsdp", runs),
        (runs, "--json", "-"),
        (runs, tmp_path / "more", "--output", tmp_path / "both", "--json"),
    ):
        build_runs(tmp_path / "more")
        assert call("compare", *words) == 0, words
        report = json.loads(capsys.readouterr().out)
        assert len(report["runs"]) == (4 if "--output" in words else 2)
        assert report["attribution"]["baseline"] == ("fsdp" if "--baseline" in words else None)
    for words in ((runs, "--json", file), (f"--json={file}", runs)):
        assert call("compare", *words) == 0 and f"{runs}/report/report.html" in capsys.readouterr().out
        assert file.read_text() == (runs / "report" / "report.json").read_text()
        file.unlink()
