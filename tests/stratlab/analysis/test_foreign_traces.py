from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis import analyze, command
from stratlab.analysis.analyze import NoTraces
from stratlab.analysis.foreign_places import is_foreign
from stratlab.analysis.foreign_traces import (
    Analysed,
    analyze_foreign,
    name_source,
    parse_pattern,
)
from stratlab.analysis.hta.bridge import HtaRun
from stratlab.analysis.pages.origin import build_answer
from stratlab.traces.archive_budget import ArchiveError
from stratlab.user_error import UserError
from tests.stratlab.real_traces import TEAM, unpack
from tests.stratlab.simulated.small import TraceWriter, build_cpu_trace, build_gpu_trace, write_run

pytestmark = pytest.mark.usefixtures("without_hta")


@pytest.fixture
def without_hta(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes seconds for every experiment; it is looked at elsewhere."""
    monkeypatch.setattr(analyze, "run_hta", lambda *_, **__: HtaRun([], [], ""))


def without_labels(trace: TraceWriter) -> TraceWriter:
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    return trace


def run(source: Path, output: Path, **options: Any) -> dict[str, Analysed]:
    return {one.name: one for one in analyze_foreign(source, output, **options)}


def report(one: Analysed) -> dict[str, Any]:
    assert one.report is not None, one.why
    return one.report


def pack(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            out.write(path, path.relative_to(folder))
    return archive


def test_every_experiment_of_a_zip_has_its_report(tmp_path: Path) -> None:
    """Real traces of eight ranks beside others; the source stays as it is."""
    source = tmp_path / "source"
    for rank, path in unpack(TEAM, tmp_path / "dlrm").items():
        (source / "dlrm").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / "dlrm" / f"worker{rank}_step_12.{1694128201545 + rank}.pt.trace.json")
    build_cpu_trace(0).write(source / "cpu" / "rank0.json.gz")
    (source / "notes.json").write_text("{}")
    for name in ("README.md", "a.txt", "b.txt", "dlrm/c.txt", "dlrm/.hidden", "zz.txt", "zzz.txt"):
        (source / name).write_text("")
    archive = pack(source, tmp_path / "traces.zip")
    before, said = archive.read_bytes(), []
    done = run(archive, tmp_path / "out", progress=said.append)
    assert archive.read_bytes() == before
    assert {name: (report(one)["source"], report(one)["mean"]["ranks"]) for name, one in done.items()} == {
        "cpu": ("cpu", 1),
        "dlrm": ("gpu", 8),
    }
    assert "no traces, left out: README.md, a.txt, b.txt, dlrm/c.txt, zz.txt and 2 more" in said
    assert sorted(path.name for path in (tmp_path / "out" / "dlrm").iterdir()) == ["analysis", "foreign.json"]
    told = json.loads((tmp_path / "out" / "dlrm" / "foreign.json").read_text())
    assert (told["source"], told["world_size"], told["folders"]) == ("traces.zip", 8, ["dlrm"])
    assert [row["rank"] for row in told["traces"]] == list(range(8))
    assert told["traces"][3]["file"] == "dlrm/worker3_step_12.1694128201548.pt.trace.json"
    assert told["traces"][3]["rank_from"] == "distributedInfo" and len(told["traces"][3]["sha256"]) == 64
    files = {row["file"] for row in report(done["dlrm"])["quality"]}
    assert "summary.json" not in files and "config.json" not in files


def test_the_numbers_are_those_of_a_run_with_the_same_traces(tmp_path: Path) -> None:
    traces = {0: build_gpu_trace(0), 1: build_gpu_trace(1, comm_start=700)}
    ours = write_run(tmp_path / "ours", traces)
    for rank, trace in traces.items():
        trace.write(tmp_path / "theirs" / f"host_{rank}.169412820154{rank}.pt.trace.json")
    expected = analyze.analyze_run(ours, tracking_uri=None)
    found = report(run(tmp_path / "theirs", tmp_path / "out")["theirs"])
    for name in ("mean", "parts", "ranks", "steps", "phases", "collectives", "kernels", "copies", "idle"):
        theirs, mine = json.dumps(found[name]), json.dumps(expected[name])
        assert theirs == mine.replace('"dp_replicate"', "null"), (
            name
        )  # the axis is told by the settings alone


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    trace = build_gpu_trace(5)
    trace.head["distributedInfo"]["world_size"] = 16
    trace.write(tmp_path / "in" / "told" / "a.json")
    for rank in (0, 2):
        silent = build_gpu_trace(None)
        silent.head["distributedInfo"] = {}
        silent.write(tmp_path / "in" / "silent" / f"rank{rank}.json")
    done = run(tmp_path / "in", tmp_path / "out")
    reasons = [row["reason"] for row in report(done["told"])["quality"]]
    assert "ranks 0-4, 6-15 of 16 have no trace, the means are over the others" in reasons
    reasons = [row["reason"] for row in report(done["silent"])["quality"]]
    assert "ranks 1 have no trace, though rank 2 has: the means are over the others" in reasons
    assert "no trace tells how many ranks there were" in reasons
    rules = [row["rule"] for row in report(done["told"])["recommendations"]]
    assert "R12" in rules


def test_what_may_be_ranks_of_one_run_is_said(tmp_path: Path) -> None:
    for pod in (0, 1):
        silent = build_gpu_trace(None, comm_start=600 + pod)
        silent.head["distributedInfo"] = {}
        silent.write(tmp_path / "in" / f"pod-{pod}_71.{1694128201540 + pod}.pt.trace.json")
    said: list[str] = []
    done = run(tmp_path / "in", tmp_path / "out", progress=said.append)
    (hint,) = [sentence for sentence in said if sentence.startswith("hint: pod-0_71")]
    assert hint.endswith(r'--rank-pattern "pod-(\d+)"')
    assert all(
        any("no rank is told" in row["reason"] for row in report(one)["quality"]) for one in done.values()
    )
    again = run(tmp_path / "in", tmp_path / "by-pod", pattern=parse_pattern(r"pod-(\d+)"))
    assert [report(one)["mean"]["ranks"] for one in again.values()] == [2]


def test_one_that_cannot_be_analysed_leaves_the_others(tmp_path: Path) -> None:
    build_gpu_trace(0).write(tmp_path / "in" / "good" / "rank0.json")
    (tmp_path / "in" / "good" / "rank1.json").write_text('{"traceEvents": [{"ph": "X", "ts"')
    build_gpu_trace(0).write(tmp_path / "in" / "twice" / "a_rank0.json")
    build_gpu_trace(0, steps=2).write(tmp_path / "in" / "twice" / "a-rank0.json")
    (tmp_path / "in" / "empty").mkdir()
    (tmp_path / "in" / "empty" / "rank0.json").write_text('{"traceEvents": []}')
    said: list[str] = []
    done = run(tmp_path / "in", tmp_path / "out", progress=said.append)
    assert report(done["good"])["mean"]["ranks"] == 1
    assert any(
        row["file"] == "rank1.json" and row["action"] == "skipped" for row in report(done["good"])["quality"]
    )
    told = json.loads((tmp_path / "out" / "good" / "foreign.json").read_text())
    assert [row["rank"] for row in told["traces"]] == [0]
    assert done["twice"].report is None and "rank 0 is in 2 files" in done["twice"].why
    assert done["empty"].report is None and "holds no event with a duration" in done["empty"].why
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["good"]


@pytest.mark.parametrize("content", (b"", b'{"traceEvents": [{"ph": "X", "ts"'))
def test_the_answer_names_the_damaged_rank(content: bytes, tmp_path: Path) -> None:
    for rank in (0, 1):
        silent = build_gpu_trace(rank)
        silent.head["distributedInfo"] = {}
        silent.write(tmp_path / "in" / f"worker{rank}.json")
    (tmp_path / "in" / "worker2.json").write_bytes(content)
    found = report(run(tmp_path / "in", tmp_path / "out")["in"])
    (said,) = [line for line in build_answer(found) if "not in it" in line]
    assert said.startswith("  not in it: worker2.json, rank 2: ")


def test_recordings_without_steps_and_without_communication(tmp_path: Path) -> None:
    trace = without_labels(build_gpu_trace(None, steps=1))
    trace.events = [event for event in trace.events if "AllReduce" not in event["name"]]
    trace.write(tmp_path / "resnet.pt.trace.json.gz")
    found = report(run(tmp_path / "resnet.pt.trace.json.gz", tmp_path / "out")["resnet"])
    assert found["steps_from"] == "recording" and found["collectives"] == []
    assert found["mean"]["comm_exposed_pct"] == 0


def test_a_second_analysis_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    build_gpu_trace(0).write(tmp_path / "in" / "rank0.json")
    out = tmp_path / "out"
    first = run(tmp_path / "in", out)["in"].folder / "analysis" / "report.json"
    text = first.read_text()
    build_gpu_trace(0, steps=2).write(tmp_path / "in" / "rank0.json")
    run(tmp_path / "in", out)
    assert first.read_text() != text
    shutil.copytree(tmp_path / "in", tmp_path / "moved" / "in")
    run(tmp_path / "moved" / "in", out)  # the same traces elsewhere
    with pytest.raises(UserError, match=r"holds the analysis of .*/moved/in; choose another --output"):
        build_gpu_trace(0).write(tmp_path / "in" / "rank0.json")
        run(tmp_path / "in", out)
    shutil.rmtree(out / "in")
    run(tmp_path / "in", out)
    (out / "in" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"holds thesis\.tex, which is of no analysis"):
        run(tmp_path / "in", out)


def test_another_source_of_the_same_name_is_refused(tmp_path: Path) -> None:
    for name, steps in (("a", 1), ("b", 2)):
        build_gpu_trace(0, steps=steps).write(tmp_path / name / "in" / "exp" / "rank0.json")
        pack(tmp_path / name / "in", tmp_path / name / "traces.zip")
    first = run(tmp_path / "a" / "traces.zip", tmp_path / "out")["exp"].folder / "analysis" / "report.json"
    text = first.read_text()
    with pytest.raises(UserError, match=r"out/exp: holds the analysis of .*/a/traces\.zip; choose another"):
        run(tmp_path / "b" / "traces.zip", tmp_path / "out")
    assert first.read_text() == text
    shutil.copy(tmp_path / "b" / "traces.zip", tmp_path / "a" / "traces.zip")
    run(tmp_path / "a" / "traces.zip", tmp_path / "out")  # changed since
    assert first.read_text() != text


def test_what_an_analysis_has_left_in_the_source_is_no_source(tmp_path: Path) -> None:
    build_gpu_trace(0).write(tmp_path / "in" / "a" / "rank0.json")
    run(tmp_path / "in", tmp_path / "in" / "out")
    said: list[str] = []
    assert list(run(tmp_path / "in", tmp_path / "in" / "out", progress=said.append)) == ["a"]
    assert not any("left out" in sentence or "warning" in sentence for sentence in said)


def test_what_cannot_be_a_source_or_a_place_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder or file"):
        run(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"expected a folder, a \.zip"):
        run(tmp_path / "notes.txt", tmp_path / "out")
    (tmp_path / "bad.zip").write_bytes(b"PK")
    with pytest.raises(ArchiveError, match=r"bad\.zip: damaged"):
        run(tmp_path / "bad.zip", tmp_path / "out")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("")
    with pytest.raises(NoTraces, match=r"no trace in it\n  no \.json and no \.gz file in it$"):
        run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "config.json").write_text("{}")
    with pytest.raises(NoTraces, match=r"no trace in it\n  config\.json: holds no traceEvents"):
        run(tmp_path / "in", tmp_path / "out")
    with pytest.raises(UserError, match="another folder than that of the traces"):
        run(tmp_path / "in", tmp_path / "in")
    with pytest.raises(UserError, match="expected a folder"):
        run(tmp_path / "in", tmp_path / "notes.txt")
    write_run(tmp_path / "demo" / "ddp", {0: build_gpu_trace(0)})
    with pytest.raises(UserError, match=r"a comparison of this lab, .*demo/ddp"):
        run(tmp_path / "demo", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_a_run_of_this_lab_stays_one(tmp_path: Path) -> None:
    ours = write_run(tmp_path / "demo" / "ddp", {0: build_gpu_trace(0)})
    build_gpu_trace(0).write(tmp_path / "traces only" / "traces" / "rank0.json")
    build_gpu_trace(0).write(tmp_path / "theirs" / "traces" / "ddp" / "rank0.json")
    (tmp_path / "empty").mkdir()
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "attempts.jsonl").touch()
    assert not is_foreign(tmp_path / "refused")
    assert not any(
        is_foreign(path) for path in (ours, tmp_path / "traces only", tmp_path / "empty", tmp_path / "x")
    )
    assert is_foreign(tmp_path / "theirs") and is_foreign(tmp_path / "theirs" / "traces" / "ddp")


def test_a_config_json_of_another_program_makes_no_run(tmp_path: Path) -> None:
    """Hugging Face writes one."""
    for folder in ("in/bert", "in/gpt", "alone"):
        build_gpu_trace(0).write(tmp_path / folder / "rank0.json")
        (tmp_path / folder / "config.json").write_text('{"architectures": ["BertModel"], "hidden_size": 768}')
    assert is_foreign(tmp_path / "in") and is_foreign(tmp_path / "alone")
    assert list(run(tmp_path / "in", tmp_path / "out")) == ["bert", "gpt"]
    assert list(run(tmp_path / "alone", tmp_path / "out")) == ["alone"]


@pytest.mark.parametrize("other", ("ddp/rank0.json", "ddp.zip"))
def test_an_experiment_called_traces_is_one(other: str, tmp_path: Path) -> None:
    build_gpu_trace(0).write(tmp_path / "in" / "traces" / "rank0.json")
    build_gpu_trace(0, steps=2).write(tmp_path / "in" / "ddp" / "rank0.json")
    if other == "ddp.zip":
        pack(tmp_path / "in" / "ddp", tmp_path / "in" / other)
        shutil.rmtree(tmp_path / "in" / "ddp")
    assert is_foreign(tmp_path / "in")
    assert list(run(tmp_path / "in", tmp_path / "out")) == ["ddp", "traces"]
    (tmp_path / "in" / "metrics.jsonl").touch()
    assert not is_foreign(tmp_path / "in")


@pytest.mark.parametrize("name", ("a.zip", "a.tar.gz", "a.json", "a.json.gz", "a.pt.trace.json.gz"))
def test_the_name_of_a_source(name: str, tmp_path: Path) -> None:
    assert name_source(tmp_path / name) == "a"


@pytest.mark.parametrize("text", ("gpu(", "gpu", r"(a)(\d+)"))
def test_a_pattern_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--rank-pattern .* one group of digits"):
        parse_pattern(text)


def test_a_pattern_whose_group_is_no_number_is_refused(tmp_path: Path) -> None:
    build_gpu_trace(0).write(tmp_path / "in" / "gpua.json")
    with pytest.raises(UserError, match=r"--rank-pattern gpu\(\.\): 'a' of gpua\.json is no rank"):
        run(tmp_path / "in", tmp_path / "out", pattern=parse_pattern("gpu(.)"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("report.nsys-rep", "Nsight Systems"),
        ("trace.pftrace", "Perfetto"),
        ("notes.txt", "expected a folder"),
        ("missing", "no such folder or file"),
        ("empty/", "holds no traces"),
    ],
)
def test_what_is_no_trace_is_named_with_output_too(tmp_path: Path, name: str, said: str) -> None:
    source = tmp_path / name
    if name.endswith("/"):
        source.mkdir()
    elif "." in name:
        source.write_bytes(b"rubbish")
    with pytest.raises(UserError, match=said):
        command.analyze(source, output=tmp_path / "out")


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"rubbish"])
def test_json_that_is_no_trace_is_named_with_output_too(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(NoTraces, match=r"no trace in it\n  a.json: holds no traceEvents"):
        run(tmp_path / "a.json", tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(analyze.Path, "mkdir", refuse)
    with pytest.raises(UserError, match=rf"^{tmp_path}: cannot be written \(Permission denied\)"):
        analyze.make_folder(tmp_path / "a" / "b")


def test_a_list_of_events_alone_is_an_experiment(tmp_path: Path) -> None:
    events = build_gpu_trace(0).events
    (tmp_path / "bare.json").write_text(json.dumps(events))
    (one,) = run(tmp_path / "bare.json", tmp_path / "out").values()
    assert len(report(one)["steps"]) == 3
