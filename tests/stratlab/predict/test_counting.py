"""What the trainer is asked to count, and what it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.predict import counting
from stratlab.predict.counting import NotCounted, count_operations
from stratlab.predict.question import Question


def ask(**settings: str) -> Question:
    return Question("ddp", {"strategy": "ddp", **settings}, ranks=2, per_node=2, rows=4, global_batch=8)


def test_weights_of_a_cluster_are_told_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_run_trainer", lambda *_: pytest.fail("the trainer was started"))
    with pytest.raises(NotCounted) as refused:
        count_operations(ask(model_path="/results/_prepared/vit"), tmp_path)
    said = str(refused.value)
    assert said.startswith("model_path=/results/_prepared/vit is not on this machine: name a preset")
    assert said.endswith("with --set run.config.model_path=null")


def test_folders_that_are_there_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(*_: object) -> None:
        raise Started

    monkeypatch.setattr(counting, "_run_trainer", start)
    with pytest.raises(Started):
        count_operations(ask(model_path=str(tmp_path), model=""), tmp_path)
    with pytest.raises(Started):  # of data a count reads nothing
        count_operations(ask(dataset_path="/results/_prepared/food101"), tmp_path)
