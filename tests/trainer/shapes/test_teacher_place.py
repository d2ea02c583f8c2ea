"""A teacher that is not where it was said to be: answered from the results folder where that knows, else by the hub."""

from __future__ import annotations

import json
import logging
import socket
import time
from pathlib import Path

import pytest

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models import teacher as teacher_place
from stratlab_spec.models.teacher import teacher_problems
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.fake_hub import run_fake_hub


def refuse(code: str, results: Path, teacher: str, **values) -> str:
    config = Config(run="student", comparison="students", results=str(results), teacher=teacher, **values)
    (found,) = teacher_problems(config, [str(i) for i in range(10)])
    assert find_codes(found) == [code] and found.startswith(f"TRAINER_TEACHER={teacher!r}: ")
    return found


@pytest.mark.parametrize("student", [{}, {"model": "qwen_tiny"}])
def test_a_run_that_its_comparison_does_not_hold_or_without_weights(
    tmp_path: Path, monkeypatch, student
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(teacher_place, "_ask", asked.append)
    for run in ("ddp", "fsdp"):
        (tmp_path / "demo" / run).mkdir(parents=True)
    assert " ddp, fsdp;" in refuse("SL-teacher-run-absent", tmp_path, "demo/large", **student)
    refuse("SL-teacher-run-no-weights", tmp_path, "demo/ddp", **student)
    refuse("SL-teacher-absent", tmp_path, str(tmp_path), **student)
    assert not asked


@pytest.mark.parametrize(
    "named", ["students/student", "{results}/students/student", "students/student/model"]
)
def test_a_run_teaches_not_itself(tmp_path: Path, named: str) -> None:
    model = tmp_path / "students" / "student" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"stratlab_model": "cnn"}))
    refuse("SL-teacher-itself", tmp_path, named.format(results=tmp_path))


def point_to(address: str, monkeypatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    url = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_the_hub_is_asked_for_what_no_comparison_is_called(tmp_path: Path, monkeypatch) -> None:
    content = {"model_type": "vit", "id2label": {"0": "a", "1": "b", "2": "c"}}
    with run_fake_hub({"models/org/net": {"config.json": json.dumps(content).encode()}}) as address:
        point_to(address, monkeypatch, tmp_path)
        assert " 3 " in refuse("SL-teacher-classes", tmp_path, "org/net")
        said = refuse("SL-teacher-unfetched", tmp_path, "org/gone")
        assert "\n" not in said and "404" in said


def test_a_hub_that_does_not_answer_is_told_soon_and_once(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(teacher_place, "HUB_PAUSE_S", 0.1)
    with socket.socket() as closed, caplog.at_level(logging.INFO):
        closed.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        point_to(f"http://127.0.0.1:{closed.getsockname()[1]}", monkeypatch, tmp_path)
        start = time.monotonic()
        refuse("SL-teacher-unfetched", tmp_path, "demo/large")
    assert time.monotonic() - start < 5 and "retry" not in caplog.text.lower()


@pytest.mark.parametrize("kind", [ConfigError, DataMissing])
def test_what_its_files_alone_tell_is_refused_in_its_name(kind: type[Exception]) -> None:
    config = Config(run="student", teacher="/models/large")
    with pytest.raises(kind) as refused, teacher_place.naming_the_teacher(config):
        raise kind(["TRAINER_MODEL_PATH: x"] if kind is ConfigError else "TRAINER_MODEL_PATH: x")
    assert str(refused.value) == "TRAINER_TEACHER='/models/large': TRAINER_MODEL_PATH: x"
