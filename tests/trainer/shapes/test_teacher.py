"""Where a teacher lies, and what it must have in common with its student."""

import json
from pathlib import Path

import pytest

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory import fit, model_state
from stratlab_spec.memory.fit import fit_problems
from stratlab_spec.memory.model_state import describe_ranks
from stratlab_spec.memory.profiles import GIB
from stratlab_spec.models import teacher as teacher_place
from stratlab_spec.models.decoder import count_parameters
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.teacher import count_teacher_bytes, read_channels, teacher_config, teacher_problems
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.fake_hub import run_fake_hub
from trainer.data.files import evaluated
from trainer.launch.preflight import check


def refuse(code: str, results: Path, teacher: str, **values) -> str:
    config = Config(run="student", comparison="students", results=str(results), teacher=teacher, **values)
    (found,) = teacher_problems(config, [str(i) for i in range(10)])
    assert find_codes(found) == [code] and found.startswith(f"TRAINER_TEACHER={teacher!r}: ")
    return found


@pytest.mark.parametrize("student", [{}, {"model": "qwen_tiny"}])
def test_a_run_that_its_comparison_does_not_hold_or_without_weights(tmp_path, monkeypatch, student):
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


TEN, THOUSAND = ([str(i) for i in range(count)] for count in (10, 1000))
DIGITS = {"stratlab_model": "cnn", "class_names": TEN}
WORDS = {
    "model_type": "qwen2", "hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 320,
    "max_position_embeddings": 1024,
}  # fmt: skip


def write(folder: Path, content: dict, weights: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content))
    if weights:
        (folder / "model.safetensors").touch()
    return folder


def settings(**values) -> Config:
    return Config(run="student", **values)


def refused(channels: int | None = None, **values) -> list[str]:
    found = teacher_problems(settings(**values), TEN, channels)
    assert all(each.startswith(f"TRAINER_TEACHER={str(values['teacher'])!r}: ") for each in found)
    return find_codes(found)


def test_a_run_of_the_volume_a_run_s_folder_and_a_model_s_folder_are_the_same_weights(tmp_path):
    run = RunDirectory(str(tmp_path), "demo", "large")
    write(run.model, DIGITS)
    (run.path / "config.json").write_text(json.dumps({"resolved": {}}))
    for name in ("demo/large", str(run.path), str(run.model)):
        found = teacher_config(settings(results=str(tmp_path), teacher=name))
        assert (found.model_path, found.init, found.teacher) == (str(run.model), "pretrained", "")
        assert teacher_problems(settings(results=str(tmp_path), teacher=name), TEN) == []


def test_nothing_of_the_student_s_training_is_the_teacher_s():
    own = {"model_layers": 2, "lora_rank": 4, "label_smoothing": 0.1, "compile": True}
    found = teacher_config(settings(model="vit_tiny", teacher="resnet", **own))
    assert found.model == "resnet" and not any(getattr(found, name) for name in own)
    assert found.task == "image" and teacher_config(settings(model="qwen_tiny", teacher="a/b")).task == "text"


@pytest.mark.parametrize(
    ("teacher", "student", "code"),
    [
        ("/nowhere", {}, "SL-teacher-absent"),
        ("vit_small", {}, "SL-teacher-unpublished"),
        ("qwen_tiny", {"model": "qwen2.5-0.5b"}, "SL-teacher-unpublished"),
        ("qwen2.5-0.5b", {}, "SL-teacher-kind"),
        ("resnet", {"model": "qwen_tiny"}, "SL-teacher-kind"),
        ("resnet", {}, "SL-teacher-classes"),
        (WORDS, {"model": "vit_tiny"}, "SL-teacher-folder-kind"),
        (DIGITS, {"model": "qwen_tiny"}, "SL-teacher-folder-kind"),
        (DIGITS, {}, "SL-teacher-weights-absent"),
        ({}, {}, "SL-teacher-absent"),
        (DIGITS | {"stratlab_model": "cnm"}, {}, "SL-teacher-architecture"),
        (WORDS | {"vocab_size": 400}, {"model": "qwen_tiny"}, "SL-teacher-vocabulary"),
        (WORDS, {"model": "qwen_tiny", "seq_len": 2048}, "SL-seq-len-above-model"),
        (DIGITS | {"stratlab_model": "", "model_type": "vit", "patch_size": 14}, {}, "SL-image-size-step"),
    ],
)
def test_what_cannot_teach_is_refused_in_the_teacher_s_name(tmp_path, teacher, student, code):
    if not isinstance(teacher, str):
        teacher = write(tmp_path / "m", teacher, code != "SL-teacher-weights-absent")
    assert refused(teacher=str(teacher), **({"model": "cnn"} | student)) == [code]


def test_what_is_not_known_yet_or_fits_is_not_refused(tmp_path):
    assert teacher_problems(settings(teacher="resnet"), THOUSAND) == []
    assert teacher_problems(settings(teacher="resnet")) == []
    folder = write(tmp_path / "m", WORDS | {"vocab_size": 400})
    assert teacher_problems(settings(teacher=str(folder), model="qwen_tiny", model_vocab=400)) == []
    assert evaluated(settings(teacher="gone/away"), Path("m")).teacher == ""
    assert teacher_problems(settings(teacher="/gone", mode="evaluate"), TEN) == [], "judging needs no teacher"


def test_memory_of_a_layout_has_the_teacher_where_the_loss_is(tmp_path):
    folder = write(tmp_path / "m", WORDS)
    given = {"model": "qwen_tiny", "strategy": "nd", "layout": "given", "pp": 2, "dp_shard": 2}
    config = settings(**given, teacher=str(folder), global_batch_size=64, micro_batch_size=4)
    shape, student = read_shape(teacher_config(config)), read_shape(config)
    matrices = 320 * 96 * 2 + 2 * (96 * 96 * 2 + 96 * 32 * 2 + 3 * 96 * 64)
    assert count_teacher_bytes(config) == 2 * matrices + 4 * (count_parameters(shape) - matrices)
    assert count_teacher_bytes(config.model_copy(update={"precision": "fp32"})) == 4 * count_parameters(shape)
    ranks = describe_ranks(config, student, resolve_layout(config, 4, student))
    assert [rank.teacher_bytes > 0 for rank in ranks] == [False, False, True, True]
    alone = describe_ranks(settings(**given), student, resolve_layout(config, 4, student))
    assert ranks[3].total_bytes - alone[3].total_bytes == count_teacher_bytes(config)
    for pp, ends in ((1, [0, 1, 2, 3]), (4, [3])):
        axes = Axes(pp=pp, dp_shard=4 // pp)
        assert [rank for rank in range(4) if axes.computes_loss(rank)] == ends


def test_a_teacher_that_does_not_fit_is_told(monkeypatch):
    for module in (fit, model_state):
        monkeypatch.setattr(module, "count_teacher_bytes", lambda config: 30 * GIB)
    config = settings(model="qwen2.5-0.5b", strategy="ddp", teacher="qwen2.5-3b")
    (said,) = fit_problems(config, 2, read_shape(config), 24 * GIB)
    assert "qwen2.5-0.5b" in said and "30.0 GiB" in said
    assert [*fit_problems(config, 2, read_shape(config), 38 * GIB)] == []


@pytest.mark.parametrize(
    ("content", "taken", "repeats"),
    [
        ({"stratlab_model": "cnn", "channels": 3}, 3, False),
        ({"stratlab_model": "resnet", "channels": 3}, 3, True),
        ({"model_type": "clip", "vision_config": {"num_channels": 4}}, 4, False),
        ({"model_type": "vit"}, None, True),
    ],
)
def test_images_of_other_channels_than_the_teacher_s_are_refused(tmp_path, content, taken, repeats):
    folder = write(tmp_path / "m", content | {"class_names": TEN, "num_labels": 10})
    assert read_channels(settings(model_path=str(folder))) == taken
    given = {"teacher": str(folder), "image_size": 32, "model": "cnn"}
    assert refused(1, **given) == ([] if repeats else ["SL-teacher-channels"])
    assert refused(taken or 3, **given) == []
    if not repeats:  # the check before the ranks compares them too
        with pytest.raises(ConfigError) as caught:
            check(settings(results=str(tmp_path), **given), 1, {})
        assert "SL-teacher-channels" in find_codes(caught.value)
