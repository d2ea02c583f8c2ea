from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from stratlab import cli
from stratlab.analysis import analyze
from stratlab.tracking.server import run_server
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.simulated.small import build_gpu_trace, write_run

VERBS = (
    "rehearse",
    "wait",
    "watch",
    "list",
    "logs",
    "fetch",
    "check",
    "sweep",
    "remove",
    "analyze",
    "verify",
    "compare",
    "mlflow",
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


def call(*arguments: str) -> int:
    """The exit code of the console script, called in this process."""
    sys.argv = ["stratlab", *arguments]
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def argv() -> Iterator[None]:
    before = sys.argv
    yield
    sys.argv = before


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(verb, "--help") == 0
    assert f"Example: stratlab {verb} " in capsys.readouterr().out


def test_what_has_verbs_of_its_own_shows_examples_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("metrics", "replay", "--help") == 0
    assert "Example: stratlab metrics replay " in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, stratlab.cli; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"mlflow", "torch", "pandas", "numpy", "yaml", "psutil", "rich", "trainer"}
    heavy |= {"stratlab.analysis.analyze", "stratlab.compare.comparison", "stratlab.drawing"}
    assert not heavy & set(modules.stdout.split())


def test_wrong_input_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, sentence in (
        (["rehearse", "charts/nope"], "charts/nope: no such chart"),
        (["compare"], "give either DIR or --experiment NAME"),
        (["compare", "x", "--experiment", "y"], "give either DIR or --experiment NAME"),
        (["compare", "--experiment", "y", "--tracking-uri", ""], "--experiment needs --tracking-uri"),
    ):
        assert call(*arguments) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith(f"error: {sentence}")
        assert shown.out == ""
    assert call("rehearse", "x", "--nodes", "0") == 2
    assert call("compare", str(tmp_path), "--memory-limit-gib", "-1") == 2
    assert call("nonsense") == 2


OF_RESULTS = (
    *(["list"], ["compare"], ["analyze"], ["verify"], ["mlflow"], ["remove", "--yes"]),
    *(["metrics", "replay"], ["metrics", "serve"]),
)


@pytest.mark.parametrize("words", OF_RESULTS, ids=lambda words: words[-1])
def test_where_there_is_nothing_every_verb_ends_with_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    """A folder that is not there, and one that holds no run; a file in place of a folder is typed wrongly."""
    nothing, other, file = tmp_path / "nothing", tmp_path / "other", tmp_path / "file"
    assert call(*words, str(nothing)) == 3
    assert capsys.readouterr().err.startswith(f"error: {nothing}: no such folder")
    if words != ["metrics", "serve"]:  # which serves what will come
        other.mkdir()
        (other / "notes.txt").touch()
        assert call(*words, str(other)) == 3
        assert capsys.readouterr().err.startswith(f"error: {other}: ")
    file.touch()
    assert call(*words, str(file)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and "expected " in said


def test_a_file_is_not_waited_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    assert call("wait", str(tmp_path / "run"), "--deadline-s", "0.1") == 2
    assert "run: not a folder; expected the folder of a run" in capsys.readouterr().err


def test_wait_ends_with_1_at_the_deadline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("wait", str(tmp_path / "run"), "--deadline-s", "0.1", "--poll-s", "0.05") == 1
    assert f"error: not ended after 0.1 s: {tmp_path}/run: no such folder yet" in capsys.readouterr().err
    (tmp_path / "attempts.jsonl").write_text('{"event": "ended", "exit_code": 10}\n')
    assert call("wait", str(tmp_path)) == 0


def test_analyze_shows_where_its_numbers_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from stratlab.analysis import analyze
    from stratlab.analysis.reporting.run_facts import NoRun

    asked: list[tuple[Path, str | None]] = []

    def analyze_run(run_dir: Path, *, tracking_uri: str | None, progress: Any, shares: int) -> dict[str, Any]:
        assert shares == 0
        asked.append((run_dir, tracking_uri))
        if not run_dir.is_dir():
            raise NoRun(f"{run_dir}: not a run")
        if (run_dir / "empty").exists():
            raise analyze.NoTraces("no trace")
        return REPORT

    monkeypatch.setattr(analyze, "analyze_run", analyze_run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://m:1")
    assert call("analyze", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "mean of 3 steps on 2 ranks (cpu traces, backend gloo, a processor):" in shown
    assert "A recorded step takes 12.3 ms of host time: compute 10.0 ms (81 %)" in shown
    assert "  low, R5: waiting for rank 1" in shown
    assert f"report: {tmp_path}/analysis/report.html" in shown
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert call("analyze", str(tmp_path), "--json") == 0
    shown_apart = capsys.readouterr()
    assert json.loads(shown_apart.out) == REPORT and "mean of 3 steps on 2 ranks" in shown_apart.err
    assert call("analyze", str(tmp_path / "nope")) == 3, "a run that was refused leaves no folder"
    assert call("analyze", str(tmp_path), "--nope") == 2
    for name in ("attempts.jsonl", "empty"):
        (tmp_path / name).touch()
    assert call("analyze", str(tmp_path)) == 3
    assert [uri for _, uri in asked] == ["http://m:1", None, None, None]


def test_analyze_says_that_a_folder_holds_no_traces(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert call("analyze", str(tmp_path / "empty")) == 3
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}/empty: holds neither a run nor traces, the folder is empty\n"
    )
    (tmp_path / "lost" / "traces").mkdir(parents=True)
    (tmp_path / "lost" / "traces" / "rank0.json").touch()
    assert call("analyze", str(tmp_path / "lost"), "--output", str(tmp_path / "out")) == 2
    assert f"{tmp_path}/lost may be a run; give {tmp_path}/lost/traces" in capsys.readouterr().err


def test_only_what_a_user_did_wrong_ends_with_2_and_without_a_traceback(tmp_path: Path) -> None:
    """Exit code 2 is final for the analysis Job: what a library stumbles over must not get it."""
    program = (
        "import sys; from stratlab import cli; from stratlab.analysis import analyze\n"
        "def fails(*a, **k): raise ValueError('Exceeds the limit (4300 digits)')\n"
        "analyze.analyze_run = fails; sys.argv = ['stratlab', 'analyze', 'run']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and done.stderr.endswith(
        "ValueError: Exceeds the limit (4300 digits)\n"
    )
    full = program.replace(
        "ValueError('Exceeds the limit (4300 digits)')", "OSError(28, 'No space left on device')"
    )
    done = subprocess.run([sys.executable, "-c", full], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (13, False)
    assert done.stderr.startswith("error: storage full: [Errno 28] No space left on device")
    done = subprocess.run(
        [sys.executable, "-m", "stratlab", "verify", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 3 and done.stderr.startswith(f"error: {tmp_path}: has none of config.json")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR])
def test_a_place_that_refuses_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), "/data/report.html")

    monkeypatch.setattr(analyze, "analyze_run", refuse)
    assert call("analyze", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: /data/report.html: ") and "Errno" not in said


def test_a_share_that_cannot_be_left_is_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    (run / ".analysis-shares").touch()
    for job in ([], ["--job", "j"]):
        assert call("analyze", str(run), "--share", "0/2", *job) == 2
        assert f"error: {run}/.analysis-shares" in capsys.readouterr().err


def test_a_file_for_json_that_cannot_be_written_is_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "runs", strategy, strategy, hosts=["n"])
        (tmp_path / "runs" / strategy / "mlflow.json").unlink()
    file = tmp_path / "itself.json"
    file.symlink_to(file)  # root may write everywhere else
    assert call("compare", str(tmp_path / "runs"), "--json", str(file)) == 2
    assert f"error: {file}: " in capsys.readouterr().err


def test_compare_writes_and_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from stratlab.compare import comparison, mlflow_entry
    from stratlab.compare.reading import comparison_folder, experiment
    from stratlab.compare.showing import report_files, terminal_table

    def write_report(report: dict[str, Any], runs: list[str], folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps(report))
        return folder / "report.html"

    def build_table(report: dict[str, Any], width: int) -> Table:
        return Table("a column", title="a table")

    monkeypatch.setattr(comparison_folder, "load_runs", lambda folder: [str(folder)])
    monkeypatch.setattr(experiment, "load_experiment", lambda name, uri, into: [name, uri, str(into)])
    monkeypatch.setattr(comparison, "compare", lambda runs, **asked: {"runs": runs})
    monkeypatch.setattr(report_files, "write_report", write_report)
    monkeypatch.setattr(terminal_table, "terminal_table", build_table)
    logged: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        mlflow_entry, "log_for_user", lambda *given: logged.append(given) or "report in MLflow: there"
    )
    assert call("compare", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "report in MLflow: there" in shown
    assert "a table" in shown and f"report: {tmp_path}/report/report.html" in shown
    out = tmp_path / "out"
    assert (
        call(
            "compare", "--experiment", "e", "--tracking-uri", "http://m", "--json", "-", "--output", str(out)
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"runs": ["e", "http://m", str(out / "runs")]}
    assert [given[2:] for given in logged] == [
        (tmp_path / "report", None, "", None),
        (out, "e", "http://m", None),
    ]


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"--port {port}: cannot be used \(Address already in use\)"):
            with run_server(tmp_path, port):
                pass


def test_compare_ranks_over_what_is_varied_and_only_a_sweep_leaves_it_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for run, lr in (("a", 0.001), ("b", 0.01)):
        build_run_dir(
            tmp_path, run, "ddp", lr=lr, hosts=["n"], loss_shift=lr, validation_accuracy_pct=90 + 100 * lr
        )
        (tmp_path / run / "mlflow.json").unlink()

    def judge(*options: str) -> str:
        assert call("compare", str(tmp_path), "--json", "-", *options) == 0
        return str(json.loads(capsys.readouterr().out)["fairness"]["verdict"])

    assert judge() == "not comparable"
    assert judge("--varied", "run.config.lr") == "comparable as a search"
    assert judge() == "not comparable", "the user's wish is of one call"
    assert judge("--varied", "lr", "--keep-varied") == judge() == "comparable as a search"
    assert call("compare", str(tmp_path), "--varied", "dataset,lrr") == 2
    said = capsys.readouterr().err
    assert "dataset cannot be varied" in said and "lrr is no setting of these runs, did you mean lr?" in said
    assert said.endswith("; these runs differ in lr\n")


def test_compare_prints_its_report_or_writes_it_to_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """--json as that of other commands, wherever it stands; FILE and - as ever."""
    runs, file = tmp_path / "runs", tmp_path / "found.json"
    for strategy in ("ddp", "fsdp"):
        build_run_dir(runs, strategy, strategy, hosts=["n"])
        (runs / strategy / "mlflow.json").unlink()
    for words in (
        (str(runs), "--json"),
        ("--json", str(runs)),
        (str(runs), "--json", "--baseline", "fsdp"),
        ("--json", "--baseline", "fsdp", str(runs)),
        (str(runs), "--json", "-"),
    ):
        assert call("compare", *words) == 0, words
        report = json.loads(capsys.readouterr().out)
        assert [run["run"] for run in report["runs"]] == ["ddp", "fsdp"]
        assert report["attribution"]["baseline"] == ("fsdp" if "--baseline" in words else None)
    for words in ((str(runs), "--json", str(file)), (f"--json={file}", str(runs))):
        assert call("compare", *words) == 0
        assert "report: " in capsys.readouterr().out
        assert file.read_text() == (runs / "report" / "report.json").read_text()
        file.unlink()
    assert call("compare", "--json") == 2
    assert "give either DIR or --experiment NAME" in capsys.readouterr().err


def test_a_rehearsal_tells_its_runs_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from stratlab.rehearse import rehearsal
    from stratlab.rehearse.summary import RunEnd

    def rehearse(request: Any, display: Any) -> list[RunEnd]:
        display.say("training")
        return [RunEnd("ddp", tmp_path / "demo" / "ddp", 0), RunEnd("fsdp", tmp_path / "demo" / "fsdp", 10)]

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    assert call("rehearse", "charts/ddp", "charts/fsdp", "--json") == 10
    shown = capsys.readouterr()
    assert [(run["run"], run["exit_code"]) for run in json.loads(shown.out)] == [("ddp", 0), ("fsdp", 10)]
    assert "training" in shown.err


@pytest.mark.parametrize(
    "interrupted",
    ["sys.meta_path.insert(0, Verbs())", "import stratlab.cli; stratlab.cli.app = end"],
    ids=["while verbs are imported", "in a verb"],
)
def test_ctrl_c_on_any_verb_is_told_in_one_line(interrupted: str) -> None:
    code = (
        "import os, signal, sys\n"
        "from stratlab.__main__ import main\n"
        "def end(): os.kill(os.getpid(), signal.SIGINT)\n"
        "class Verbs:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'stratlab.cli': end()\n"
        f"{interrupted}\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped by SIGINT\n")
