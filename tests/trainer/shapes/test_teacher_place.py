"""A teacher that is not where it was said to be: answered from the results folder where that knows, else by the hub."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.fake_hub import run_fake_hub
from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError
from trainer.shapes import teacher_place
from trainer.shapes.teacher_rules import teacher_problems

TEN = [str(i) for i in range(10)]
TEXT = {"model": "qwen_tiny"}


def refuse(**values) -> str:
    (found,) = teacher_problems(Config(run="student", comparison="students", **values), TEN)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whom the hub was asked for."""
    found: list[str] = []
    monkeypatch.setattr(teacher_place, "_ask", found.append)
    return found


@pytest.mark.parametrize("student", [{}, TEXT])
def test_a_run_that_its_comparison_does_not_hold(tmp_path: Path, asked: list[str], student) -> None:
    for run in ("ddp", "fsdp"):
        (tmp_path / "demo" / run).mkdir(parents=True)
    assert refuse(results=str(tmp_path), teacher="demo/large", **student) == (
        f"TRAINER_TEACHER='demo/large': no such run below TRAINER_RESULTS='{tmp_path}': the comparison 'demo' there "
        "holds ddp, fsdp; the hub was not asked, as that comparison goes before an owner of that name"
    )
    assert refuse(results=str(tmp_path), teacher="demo/ddp", **student) == (
        f"TRAINER_TEACHER='demo/ddp': the run in {tmp_path}/demo/ddp has left no weights; one leaves them at its end "
        "if it has a checkpoint, as with TRAINER_CHECKPOINT_EVERY above 0"
    )
    assert not asked


def test_a_folder_without_a_model_is_not_called_missing(tmp_path: Path) -> None:
    said = refuse(teacher=str(tmp_path))
    assert said.startswith(f"TRAINER_TEACHER='{tmp_path}': holds no config.json, expected a finished run")


@pytest.mark.parametrize(
    "named", ["students/student", "{results}/students/student", "students/student/model"]
)
def test_a_run_teaches_not_itself(tmp_path: Path, asked: list[str], named: str) -> None:
    model = tmp_path / "students" / "student" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"stratlab_model": "cnn"}))
    name = named.format(results=tmp_path)
    assert refuse(results=str(tmp_path), teacher=name) == (
        f"TRAINER_TEACHER={name!r}: is this run itself; expected another run, a finished one"
    )
    assert not asked


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A hub that has one model, of three classes, and an empty cache."""
    import huggingface_hub.constants as constants
    import huggingface_hub.file_download as download

    files = {
        "config.json": json.dumps({"model_type": "vit", "id2label": {"0": "a", "1": "b", "2": "c"}}).encode()
    }
    with run_fake_hub({"models/org/net": files}) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert download.constants is constants
        yield


def test_the_hub_is_asked_for_what_no_comparison_is_called(tmp_path: Path, hub: None) -> None:
    assert refuse(results=str(tmp_path), teacher="org/net") == (
        "TRAINER_TEACHER='org/net': tells 3 classes apart, the data set digits has 10"
    )
    said = refuse(results=str(tmp_path), teacher="org/gone")
    assert "\n" not in said and said.startswith(
        f"TRAINER_TEACHER='org/gone': no such run below TRAINER_RESULTS='{tmp_path}' and no such folder, and org/gone "
        "is neither on the hub nor in its cache: 404"
    )


@pytest.mark.parametrize("student", [{}, TEXT])
def test_a_hub_that_does_not_answer_is_told_soon_and_once(
    tmp_path: Path, hub: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, student
) -> None:
    import huggingface_hub.constants as constants

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"  # bound, not listening: refuses
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(teacher_place, "HUB_PAUSE_S", 0.1)
        start = time.monotonic()
        with caplog.at_level(logging.INFO):
            said = refuse(results=str(tmp_path), teacher="demo/large", **student)
    assert time.monotonic() - start < 5
    assert (
        f"no such run below TRAINER_RESULTS='{tmp_path}'" in said
        and "demo/large is neither on the hub" in said
    )
    assert "retry" not in caplog.text.lower()


@pytest.mark.parametrize("kind", [ConfigError, DataMissing])
def test_what_its_files_alone_tell_is_refused_in_its_name(kind: type[Exception]) -> None:
    config = Config(run="student", teacher="/models/large")
    told = "TRAINER_MODEL_PATH='/models/large': has tensors that this model does not: x"
    with pytest.raises(kind) as refused, teacher_place.naming_the_teacher(config):
        raise kind([told] if kind is ConfigError else told)
    assert str(refused.value).startswith(f"TRAINER_TEACHER='/models/large': {told}")
