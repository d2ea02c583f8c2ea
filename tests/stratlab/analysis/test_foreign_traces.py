import json
import shutil
import zipfile

import pytest

from stratlab.analysis import run_analysis as analyze
from stratlab.analysis.foreign_traces import analyze_foreign, is_foreign, name_source, parse_pattern
from stratlab.commands import analyze as command
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import build_cpu_trace, build_gpu_trace, write_run

pytestmark = pytest.mark.usefixtures("without_hta")


def run(source, output, **options):
    return {one.name: one for one in analyze_foreign(source, output, **options)}


def report(one):
    assert one.report is not None, one.why
    return one.report


def refuse(*arguments, **options):
    return find_codes(raised(run, *arguments, **options))


def said(one):
    return {code: row["reason"] for row in report(one)["quality"] for code in find_codes(row["reason"])}


def pack(folder, archive):
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            out.write(path, path.relative_to(folder))
    return archive


def write_silent(path, **options):
    trace = build_gpu_trace(None, **options)
    trace.head["distributedInfo"] = {}
    trace.write(path)


def test_every_experiment_of_a_zip_has_its_report(tmp_path):
    source, traces = tmp_path / "source", {0: build_gpu_trace(0), 1: build_gpu_trace(1, comm_start=700)}
    for rank, trace in traces.items():
        trace.write(source / "ddp" / f"worker{rank}_step_12.{1694128201545 + rank}.pt.trace.json")
    build_cpu_trace(0).write(source / "cpu" / "rank0.json.gz")
    assert {name_source(tmp_path / name) for name in ("a.zip", "a.tar.gz", "a.pt.trace.json.gz")} == {"a"}
    for name in ("README.md", "a.txt", "b.txt", "ddp/c.txt", "ddp/.hidden", "zz.txt", "zzz.txt"):
        (source / name).write_text("")
    archive = pack(source, tmp_path / "traces.zip")
    before, told = archive.read_bytes(), []
    done = run(archive, tmp_path / "out", progress=told.append)
    assert archive.read_bytes() == before
    found = {name: (report(one)["source"], report(one)["mean"]["ranks"]) for name, one in done.items()}
    assert found == {"cpu": ("cpu", 1), "ddp": ("gpu", 2)}
    assert any("README.md, a.txt, b.txt, ddp/c.txt, zz.txt and 1 more" in sentence for sentence in told)
    assert sorted(path.name for path in (tmp_path / "out" / "ddp").iterdir()) == ["analysis", "foreign.json"]
    content = json.loads((tmp_path / "out" / "ddp" / "foreign.json").read_text())
    assert (content["source"], content["world_size"], content["folders"]) == ("traces.zip", 2, ["ddp"])
    row = content["traces"][1]
    assert (row["rank"], row["file"]) == (1, "ddp/worker1_step_12.1694128201546.pt.trace.json")
    assert row["rank_from"] == "distributedInfo" and len(row["sha256"]) == 64
    assert not {row["file"] for row in report(done["ddp"])["quality"]} & {"summary.json", "config.json"}
    expected = analyze.analyze_run(write_run(tmp_path / "ours", traces), tracking_uri=None)
    for name in ("mean", "parts", "ranks", "steps", "phases", "collectives", "kernels", "copies", "idle"):
        theirs, mine = json.dumps(report(done["ddp"])[name]), json.dumps(expected[name])
        assert theirs == mine.replace('"dp_replicate"', "null"), "the axis is told by the settings alone"


def test_missing_ranks_are_named(tmp_path):
    trace = build_gpu_trace(5)
    trace.head["distributedInfo"]["world_size"] = 16
    trace.write(tmp_path / "in" / "told" / "a.json")
    for rank in (0, 2):
        write_silent(tmp_path / "in" / "silent" / f"rank{rank}.json")
    done = run(tmp_path / "in", tmp_path / "out")
    assert "0-4, 6-15 of 16" in said(done["told"])["SL-ranks-no-trace"]
    assert {"SL-ranks-below-missing", "SL-world-size-untold"} <= set(said(done["silent"]))
    assert "R12" in [row["rule"] for row in report(done["told"])["recommendations"]]


def test_one_that_cannot_be_analysed_leaves_the_others(tmp_path):
    build_gpu_trace(0).write(tmp_path / "in" / "good" / "rank0.json")
    (tmp_path / "in" / "good" / "rank1.json").write_text('{"traceEvents": [{"ph": "X", "ts"')
    build_gpu_trace(0).write(tmp_path / "in" / "twice" / "a_rank0.json")
    build_gpu_trace(0, steps=2).write(tmp_path / "in" / "twice" / "a-rank0.json")
    (tmp_path / "in" / "empty").mkdir()
    (tmp_path / "in" / "empty" / "rank0.json").write_text('{"traceEvents": []}')
    done = run(tmp_path / "in", tmp_path / "out")
    assert report(done["good"])["mean"]["ranks"] == 1 and "SL-trace-not-json" in said(done["good"])
    told = json.loads((tmp_path / "out" / "good" / "foreign.json").read_text())
    assert [row["rank"] for row in told["traces"]] == [0]
    assert find_codes(done["twice"].why) == ["SL-rank-in-files"]
    assert "SL-trace-no-duration" in find_codes(done["empty"].why)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["good"]


def test_an_analysis_replaces_an_earlier_one_of_its_source_and_nothing_else(tmp_path):
    source, out = tmp_path / "in", tmp_path / "in" / "out"  # what it leaves in the source is no source
    build_gpu_trace(0).write(source / "exp" / "rank0.json")
    first = run(source, out)["exp"].folder / "analysis" / "report.json"
    text = first.read_text()
    build_gpu_trace(0, steps=2).write(source / "exp" / "rank0.json")
    assert list(run(source, out)) == ["exp"] and first.read_text() != text, "changed since"
    shutil.copytree(source / "exp", tmp_path / "moved" / "exp")
    run(tmp_path / "moved", out)  # the same traces elsewhere
    build_gpu_trace(0).write(source / "exp" / "rank0.json")
    assert refuse(source, out) == ["SL-output-other-source"]
    shutil.rmtree(out / "exp")
    run(source, out)
    (out / "exp" / "thesis.tex").write_text("")
    assert refuse(source, out) == ["SL-output-of-others"]


def test_what_cannot_be_a_source_or_a_place_says_so(tmp_path):
    out = tmp_path / "out"
    assert refuse(tmp_path / "nothing", out) == ["SL-source-missing"]
    (tmp_path / "notes.txt").write_text("")
    assert refuse(tmp_path / "notes.txt", out) == ["SL-source-kind"]
    (tmp_path / "bad.zip").write_bytes(b"PK")
    assert refuse(tmp_path / "bad.zip", out) == ["SL-archive-damaged"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("")
    assert refuse(tmp_path / "in", out) == ["SL-source-no-trace"]
    (tmp_path / "in" / "config.json").write_text("{}")
    assert refuse(tmp_path / "in", out) == ["SL-source-no-trace", "SL-trace-no-events"]
    assert refuse(tmp_path / "in", tmp_path / "in") == ["SL-output-is-source"]
    assert refuse(tmp_path / "in", tmp_path / "notes.txt") == ["SL-output-is-file"]
    write_run(tmp_path / "demo" / "ddp", {0: build_gpu_trace(0)})
    assert refuse(tmp_path / "demo", out) == ["SL-source-is-comparison"] and not out.exists()


def test_what_is_a_run_of_this_lab_stays_one(tmp_path):
    ours = write_run(tmp_path / "demo" / "ddp", {0: build_gpu_trace(0)})
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "attempts.jsonl").touch()
    (tmp_path / "empty").mkdir()
    for name in ("only/traces/rank0.json", "theirs/traces/ddp/rank0.json", "bert/rank0.json"):
        build_gpu_trace(0).write(tmp_path / name)
    (tmp_path / "bert" / "config.json").write_text('{"architectures": ["BertModel"], "hidden_size": 768}')
    places = (ours, *(tmp_path / name for name in ("refused", "empty", "only", "x")))
    assert not any(is_foreign(path) for path in places)
    assert all(is_foreign(tmp_path / name) for name in ("theirs", "theirs/traces/ddp", "bert"))
    assert list(run(tmp_path / "bert", tmp_path / "out")) == ["bert"]


def test_a_pattern_that_cannot_be_is_refused(tmp_path):
    for text in ("gpu(", "gpu", r"(a)(\d+)"):
        assert find_codes(raised(parse_pattern, text)) == ["SL-rank-pattern-syntax"]
    build_gpu_trace(0).write(tmp_path / "in" / "gpua.json")
    codes = refuse(tmp_path / "in", tmp_path / "out", pattern=parse_pattern("gpu(.)"))
    assert codes == ["SL-rank-pattern-no-number"]


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("trace.pftrace", {}, "SL-source-kind"),
        ("missing", {}, "SL-source-missing"),
        ("empty", {}, "SL-output-without-traces"),
        ("ddp", {}, "SL-output-for-run"),
        ("only", {}, "SL-output-for-maybe-run"),
        ("a.json", {"share": "0/2"}, "SL-option-for-runs"),
        ("ddp", {"output": None, "share": "0/2", "shares": 2}, "SL-share-and-shares"),
        ("ddp", {"output": None, "job": "x"}, "SL-job-without-share"),
    ],
)
def test_options_that_do_not_fit_the_source(tmp_path, name, options, code):
    for file in ("trace.pftrace", "a.json"):
        (tmp_path / file).write_bytes(b"rubbish")
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "ddp", {})
    build_gpu_trace(0).write(tmp_path / "only" / "traces" / "rank0.json")
    assert find_codes(raised(command.analyze, tmp_path / name, **{"output": tmp_path / "out"} | options)) == [
        code
    ]
