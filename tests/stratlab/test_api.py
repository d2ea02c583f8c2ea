from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import stratlab.api
import trainer.api
from stratlab.api import Analysed, RunRecord, UserError, analyze_traces, compare, open_run
from tests.stratlab.simulated.small import build_cpu_trace


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="no run"):
        compare(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_traces_of_another_program_are_analysed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, steps in (("ddp", 3), ("fsdp", 4)):
        build_cpu_trace(0, steps).write(tmp_path / "theirs" / name / "rank0.json")
    done = {one.name: one for one in analyze_traces(tmp_path / "theirs", tmp_path / "out")}
    assert {name: one.report["mean"]["steps"] for name, one in done.items() if one.report} == {
        "ddp": 3,
        "fsdp": 4,
    }
    assert open_run(done["ddp"].folder).is_foreign
    assert [row["run"] for row in compare(tmp_path / "out")["runs"]] == ["ddp", "fsdp"]
    monkeypatch.chdir(tmp_path)
    assert {one.folder.parent for one in analyze_traces("theirs")} == {Path("theirs-analysis")}
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.json").write_text("{}")
    with pytest.raises(UserError, match="no trace in it"):
        analyze_traces(tmp_path / "empty", tmp_path / "none")


def test_what_is_the_trainer_s_is_handed_on() -> None:
    for name in trainer.api.__all__:
        assert getattr(stratlab.api, name) is getattr(trainer.api, name)
    with pytest.raises(AttributeError, match="run_experiments"):
        _ = stratlab.api.run_experiments
    assert set(trainer.api.__all__) < set(stratlab.api.__all__)
    found: dict[str, object] = {}
    exec("from stratlab.api import *", found)
    assert set(stratlab.api.__all__) < set(found)


def test_a_type_checker_knows_what_is_the_trainer_s() -> None:
    """For it, `__getattr__` gives Any: it reads these imports, which never run."""
    tree = ast.parse(Path(stratlab.api.__file__).read_text())
    told = {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "trainer.api"
        for name in node.names
    }
    assert told == set(trainer.api.__all__)


@pytest.mark.parametrize("given", [None, ["a", "b"], 5])
def test_what_is_no_path_is_named(tmp_path: Path, given: Any) -> None:
    with pytest.raises(UserError, match="^folder=.*: expected one path"):
        open_run(given)
    with pytest.raises(UserError, match="^folder=.*: expected one path"):
        compare(given)
    with pytest.raises(UserError, match="^source=.*: expected one path"):
        analyze_traces(given)
    if given is not None:
        with pytest.raises(UserError, match="^output=.*: expected one path"):
            analyze_traces(tmp_path, given)
        with pytest.raises(UserError, match="^varied=.*: expected a text"):
            compare(tmp_path, varied=given)


def test_a_record_is_printed_in_a_line() -> None:
    lines = [{"kind": "train", "step": step, "loss": 1.0} for step in (1, 2)]
    run = RunRecord("a", Path("c/a"), "finished", summary={"strategy": "ddp"}, metrics=lines)
    assert repr(run) == "RunRecord(name='a', strategy='ddp', status='finished', steps=2, folder='c/a')"
    assert repr(Analysed("a", Path("c/a"), {"ranks": []})).endswith("why='')") and "ranks" not in repr(
        Analysed("a", Path("c/a"), {"ranks": []})
    )


def test_another_trainer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").touch()

    def find_none(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(stratlab.api, "import_module", find_none)
    with pytest.raises(ModuleNotFoundError):  # ours is there, and does not start: a bug keeps its traceback
        _ = stratlab.api.load_model
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"load_model: `trainer` is .*, which is not stratlab's"):
        _ = stratlab.api.load_model
