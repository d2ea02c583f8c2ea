from __future__ import annotations

from pathlib import Path

import pytest

import stratlab.api
from stratlab.api import UserError, analyze_traces, compare, open_run
from tests.stratlab.simulated.small import build_cpu_trace


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="no run"):
        compare(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_traces_of_another_program_are_analysed_and_compared(tmp_path: Path) -> None:
    for name, steps in (("ddp", 3), ("fsdp", 4)):
        build_cpu_trace(0, steps).write(tmp_path / "theirs" / name / "rank0.json")
    done = {one.name: one for one in analyze_traces(tmp_path / "theirs", tmp_path / "out")}
    assert {name: one.report["mean"]["steps"] for name, one in done.items() if one.report} == {
        "ddp": 3,
        "fsdp": 4,
    }
    assert open_run(done["ddp"].folder).is_foreign
    assert [row["run"] for row in compare(tmp_path / "out")["runs"]] == ["ddp", "fsdp"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.json").write_text("{}")
    with pytest.raises(UserError, match="no trace in it"):
        analyze_traces(tmp_path / "empty", tmp_path / "none")


def test_what_is_the_trainer_s_is_handed_on() -> None:
    import trainer.api

    for name in stratlab.api.OF_THE_TRAINER:
        assert getattr(stratlab.api, name) is getattr(trainer.api, name)
    with pytest.raises(AttributeError, match="run_experiments"):
        _ = stratlab.api.run_experiments
    assert set(trainer.api.__all__) == {
        *stratlab.api.OF_THE_TRAINER,
        "ConfigError",
        "DataMissing",
        "LoadedData",
    }


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
