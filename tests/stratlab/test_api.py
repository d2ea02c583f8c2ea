from pathlib import Path

import pytest

import stratlab.api
from stratlab import UserError
from stratlab.analysis import run_analysis as analyze
from stratlab.analysis.hta_bridge import HtaRun
from stratlab.api import analyze_traces, compare, open_run
from tests.codes import find_codes
from tests.stratlab.compare.building import build
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import build_cpu_trace


def test_traces_of_another_program_are_analysed_and_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(analyze, "run_hta", lambda *_, **__: HtaRun([], [], ""))
    for name, steps in (("ddp", 3), ("fsdp", 4)):
        build_cpu_trace(0, steps).write(tmp_path / "theirs" / name / "rank0.json")
    done = {one.name: one for one in analyze_traces(tmp_path / "theirs", tmp_path / "out")}
    found = {name: one.report["mean"]["steps"] for name, one in done.items() if one.report}
    assert found == {"ddp": 3, "fsdp": 4} and open_run(done["ddp"].folder).is_foreign
    assert [row["run"] for row in compare(tmp_path / "out")["runs"]] == ["ddp", "fsdp"]
    monkeypatch.chdir(tmp_path)
    assert {one.folder.parent for one in analyze_traces("theirs")} == {Path("theirs-analysis")}


def test_what_is_no_run_or_no_path_is_named(tmp_path):
    (tmp_path / "notes.json").write_text("{}")
    build(tmp_path / "runs", ["ddp"])
    wrong = ["a", "b"]
    for call, code, named in (
        (lambda: open_run(tmp_path), "SL-api-no-run", str(tmp_path)),
        (lambda: compare(tmp_path / "runs" / "ddp" / "ranks"), "SL-compare-no-run", "ranks"),
        (lambda: compare(tmp_path / "runs", memory_limit_gib=wrong), "SL-api-no-number", "memory_limit_gib="),
        (lambda: open_run(wrong), "SL-api-no-path", "folder="),
        (lambda: compare(wrong), "SL-api-no-path", "folder="),
        (lambda: analyze_traces(wrong), "SL-api-no-path", "source="),
        (lambda: analyze_traces(tmp_path, wrong), "SL-api-no-path", "output="),
        (lambda: compare(tmp_path, varied=wrong), "SL-api-no-text", "varied="),
    ):
        refused = raised(call)
        assert find_codes(refused) == [code] and named in str(refused)
    with pytest.raises(UserError):
        analyze_traces(tmp_path / "notes.json", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_another_trainer_is_named(tmp_path, monkeypatch):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").touch()

    def find_none(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(stratlab.api, "import_module", find_none)
    with pytest.raises(ModuleNotFoundError):  # ours is there, and does not start: a bug keeps its traceback
        _ = stratlab.api.load_model
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        _ = stratlab.api.load_model
    assert find_codes(refused.value)[-1] == "SL-api-no-trainer"
