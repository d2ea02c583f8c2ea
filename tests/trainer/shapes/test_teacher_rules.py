"""Where a teacher lies, and what it must have in common with its student; without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.data.exported import evaluated
from trainer.launch.preflight import check
from trainer.layout.axes import Axes
from trainer.layout.decoder_memory import describe_ranks
from trainer.layout.fit import GIB, fit_problems
from trainer.layout.resolve import Layout, resolve_layout
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError
from trainer.shapes import teacher_rules as teachers
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_shapes import count_parameters
from trainer.shapes.teacher_rules import (
    count_teacher_bytes,
    read_channels,
    read_classes,
    teacher_config,
    teacher_problems,
)

TEN, THOUSAND = ([str(i) for i in range(count)] for count in (10, 1000))
DIGITS = {"stratlab_model": "cnn", "class_names": TEN}
WORDS = {
    "model_type": "qwen2",
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
}


def write(folder: Path, content: dict, weights: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content))
    if weights:
        (folder / "model.safetensors").touch()
    return folder


def settings(**values) -> Config:
    return Config(run="student", **values)


def refused(**values) -> str:
    (found,) = teacher_problems(settings(**values), TEN)
    return found


def test_a_run_of_the_volume_a_run_s_folder_and_a_model_s_folder_are_the_same_weights(tmp_path):
    run = RunDirectory(str(tmp_path), "demo", "large")
    write(run.model, DIGITS)
    (run.path / "config.json").write_text(json.dumps({"resolved": {}}))
    for name in ("demo/large", str(run.path), str(run.model)):
        found = teacher_config(settings(results=str(tmp_path), teacher=name))
        assert (found.model_path, found.init, found.teacher) == (str(run.model), "pretrained", "")
        assert teacher_problems(settings(results=str(tmp_path), teacher=name), TEN) == []


def test_nothing_of_the_student_s_training_is_the_teacher_s():
    student = settings(
        model="vit_tiny", teacher="resnet", model_layers=2, lora_rank=4, label_smoothing=0.1, compile=True
    )
    found = teacher_config(student)
    assert (found.model, found.model_layers, found.lora_rank, found.label_smoothing, found.compile) == (
        *("resnet", 0, 0, 0.0, False),
    )
    assert found.task == "image" and teacher_config(settings(model="qwen_tiny", teacher="a/b")).task == "text"


def test_a_run_without_weights_says_how_it_would_have_some(tmp_path):
    write(tmp_path / "demo" / "short", {"resolved": {}}, weights=False)
    assert refused(results=str(tmp_path), teacher="demo/short").endswith(
        "has left no weights; one leaves them at its end if it has a checkpoint, as with TRAINER_CHECKPOINT_EVERY "
        "above 0"
    )


def test_what_is_no_teacher_at_all():
    assert refused(teacher="/nowhere").startswith(
        "TRAINER_TEACHER='/nowhere': no such folder, expected a finished run"
    )
    assert "nobody has published weights of vit_small" in refused(teacher="vit_small")
    assert "is a language model" in refused(teacher="qwen2.5-0.5b")
    assert "no language model" in refused(teacher="resnet", model="qwen_tiny")


def test_another_number_of_classes_is_refused_with_both(tmp_path):
    folder = write(tmp_path / "m", DIGITS | {"class_names": ["a", "b", "c"]})
    assert refused(teacher=str(folder)) == (
        f"TRAINER_TEACHER='{folder}': tells 3 classes apart, the data set digits has 10"
    )
    assert refused(teacher="resnet") == (
        "TRAINER_TEACHER='resnet': tells 1000 classes apart, the data set digits has 10"
    )
    assert teacher_problems(settings(teacher="resnet"), THOUSAND) == []
    assert teacher_problems(settings(teacher="resnet")) == []  # not known yet


@pytest.mark.parametrize(
    ("content", "classes"),
    [({"id2label": {"0": "a", "1": "b", "2": "c"}}, 3), ({"num_labels": 7}, 7), ({"model_type": "vit"}, 2)],
)
def test_how_many_classes_a_folder_tells_apart(tmp_path, content, classes):
    folder = write(tmp_path / "m", content)
    assert len(read_classes(settings(model_path=str(folder)))) == classes


def test_another_vocabulary_is_refused_with_both(tmp_path):
    folder = write(tmp_path / "m", WORDS | {"vocab_size": 400})
    assert refused(teacher=str(folder), model="qwen_tiny") == (
        f"TRAINER_TEACHER='{folder}': has a vocabulary of 400 words, qwen_tiny has 320; expected the same"
    )
    assert teacher_problems(settings(teacher=str(folder), model="qwen_tiny", model_vocab=400)) == []


def test_rows_longer_than_the_teacher_knows(tmp_path):
    folder = write(tmp_path / "m", WORDS)
    assert "TRAINER_SEQ_LEN=2048: m knows 1024 positions" in refused(
        teacher=str(folder), model="qwen_tiny", seq_len=2048
    )


def test_a_hub_id_that_is_neither_there_nor_a_run_says_so(monkeypatch):
    def gone(*_):
        raise teachers.DataMissing("no such run or folder, and owner/name is not there")

    monkeypatch.setattr(teachers, "_fetch_json", gone)
    assert refused(teacher="owner/name") == (
        "TRAINER_TEACHER='owner/name': no such run or folder, and owner/name is not there"
    )


def test_temperature_and_weight_alone_have_no_effect():
    with pytest.raises(ConfigError) as caught:
        Config.from_env(
            {"TRAINER_RUN": "r", "TRAINER_DISTIL_TEMPERATURE": "4", "TRAINER_DISTIL_WEIGHT": "0.9"}
        )
    assert str(caught.value).splitlines() == [
        "TRAINER_DISTIL_TEMPERATURE=4: has no effect without TRAINER_TEACHER",
        "TRAINER_DISTIL_WEIGHT=0.9: has no effect without TRAINER_TEACHER",
    ]
    taught = {"TRAINER_RUN": "r", "TRAINER_TEACHER": "resnet"}
    for weight in ("1.5", "0"):
        with pytest.raises(ConfigError):
            Config.from_env({**taught, "TRAINER_DISTIL_WEIGHT": weight})
    assert Config.from_env({"TRAINER_RUN": "r", "TRAINER_TEACHER": "resnet", "TRAINER_DISTIL_WEIGHT": "1"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.01", 0.01),
        ("1e-2", 0.01),
        ("0.25", 0.25),
        ("5e-1", 0.5),
        ("4", 4),
        ("2.5e1", 25),
        ("1e2", 100),
        ("100", 100),
    ],
)
def test_a_temperature_at_which_a_teacher_has_something_to_say(text, value):
    taught = {"TRAINER_RUN": "r", "TRAINER_TEACHER": "resnet", "TRAINER_DISTIL_TEMPERATURE": text}
    assert Config.from_env(taught).distil_temperature == value


@pytest.mark.parametrize(
    "text", ["0", "1e-30", "0.001", "0.00999", "9.9e-3", "1e-3", "100.1", "101", "1e3", "-1"]
)
def test_temperatures_at_which_it_has_nothing_to_say(text):
    taught = {"TRAINER_RUN": "r", "TRAINER_TEACHER": "resnet", "TRAINER_DISTIL_TEMPERATURE": text}
    with pytest.raises(ConfigError) as caught:
        Config.from_env(taught)
    assert caught.value.problems == [
        f"TRAINER_DISTIL_TEMPERATURE={text!r}: expected a number from 0.01 to 100, written as 0.0015 or 1.5e-3"
    ]


def test_judging_a_student_needs_no_teacher():
    assert evaluated(settings(teacher="gone/away"), Path("m")).teacher == ""
    assert teacher_problems(settings(teacher="/gone", mode="evaluate"), TEN) == []


def test_memory_of_a_layout_has_the_teacher_where_the_loss_is(tmp_path):
    folder = write(tmp_path / "m", WORDS)
    given = {"model": "qwen_tiny", "strategy": "nd", "layout": "given", "pp": 2, "dp_shard": 2}
    config = settings(**given, teacher=str(folder), global_batch_size=64, micro_batch_size=4)
    shape = read_shape(teacher_config(config))
    matrices = 320 * 96 * 2 + 2 * (96 * 96 * 2 + 96 * 32 * 2 + 3 * 96 * 64)
    assert count_teacher_bytes(config) == 2 * matrices + 4 * (count_parameters(shape) - matrices)
    exact = config.model_copy(update={"precision": "fp32"})
    assert count_teacher_bytes(exact) == 4 * count_parameters(shape)
    ranks = describe_ranks(config, read_shape(config), resolve_layout(config, 4, read_shape(config)))
    assert [rank.teacher_bytes > 0 for rank in ranks] == [False, False, True, True]
    alone = describe_ranks(
        settings(**given), read_shape(config), resolve_layout(config, 4, read_shape(config))
    )
    assert ranks[3].total_bytes - alone[3].total_bytes == count_teacher_bytes(config)


def test_a_teacher_that_does_not_fit_is_told(monkeypatch):
    from trainer.layout import decoder_memory, fit

    for module in (decoder_memory, fit):
        monkeypatch.setattr(module, "count_teacher_bytes", lambda config: 30 * GIB)
    config = settings(model="qwen2.5-0.5b", strategy="ddp", teacher="qwen2.5-3b")
    (said,) = fit_problems(config, 2, read_shape(config), 24 * GIB)
    assert "of qwen2.5-0.5b and its teacher" in said and "its teacher alone takes 30.0 GiB on each" in said
    assert [*fit_problems(config, 2, read_shape(config), 38 * GIB)] == []
    assert Layout(Axes(), False, 1, (), "").axes.computes_loss(0)


@pytest.mark.parametrize(("pp", "ends"), [(1, [0, 1, 2, 3]), (2, [2, 3]), (4, [3])])
def test_who_computes_a_loss(pp, ends):
    axes = Axes(pp=pp, dp_shard=4 // pp)
    assert [rank for rank in range(4) if axes.computes_loss(rank)] == ends


@pytest.mark.parametrize(
    ("content", "taken", "repeats"),
    [
        ({"stratlab_model": "cnn", "channels": 3}, 3, False),
        ({"stratlab_model": "resnet", "channels": 3}, 3, True),
        ({"model_type": "vit", "num_channels": 3}, 3, True),
        ({"model_type": "clip", "vision_config": {"num_channels": 4}}, 4, False),
        ({"model_type": "vit"}, None, True),
    ],
)
def test_images_of_other_channels_than_the_teacher_s_are_refused_with_both(tmp_path, content, taken, repeats):
    folder = write(tmp_path / "m", content | {"class_names": [str(i) for i in range(10)], "num_labels": 10})
    assert read_channels(settings(model_path=str(folder))) == taken
    found = teacher_problems(settings(teacher=str(folder), image_size=32), TEN, 1)
    said = f"was trained on images of {taken} channels, those of digits have 1; expected the same"
    assert found == ([] if repeats else [f"TRAINER_TEACHER='{folder}': {said}"])
    assert teacher_problems(settings(teacher=str(folder), image_size=32), TEN, taken or 3) == []


def test_published_weights_take_three_channels_or_a_grey_one():
    for channels, problems in ((1, 0), (3, 0), (4, 1)):
        assert len(teacher_problems(settings(teacher="resnet"), THOUSAND, channels)) == problems


def test_the_check_before_the_ranks_compares_the_channels(tmp_path):
    folder = write(tmp_path / "m", DIGITS | {"channels": 3})
    config = settings(results=str(tmp_path), teacher=str(folder), model="cnn")
    with pytest.raises(ConfigError) as caught:
        check(config, 1, {})
    (said,) = caught.value.problems
    assert said.startswith(f"TRAINER_TEACHER='{folder}': was trained on images of 3 channels")


def test_pixels_that_the_teacher_cannot_take_are_those_of_the_student(tmp_path):
    folder = write(tmp_path / "m", DIGITS | {"model_type": "vit", "stratlab_model": "", "patch_size": 14})
    assert refused(teacher=str(folder), model="cnn") == (
        f"TRAINER_TEACHER='{folder}': TRAINER_IMAGE_SIZE=32: m needs a multiple of 14, for example 28"
    )


@pytest.mark.parametrize(
    ("teacher", "student", "said"),
    [
        ("cnn", "vit_tiny", "nobody has published weights of cnn; expected a finished run"),
        ("qwen_tiny", "vit_tiny", "is a language model, vit_tiny takes images; expected a finished run"),
        ("qwen_tiny", "qwen2.5-0.5b", "nobody has published weights of qwen_tiny; expected a finished run"),
        (
            "cnn",
            "qwen_tiny",
            "is no language model that is built here, qwen_tiny is one; expected a finished run",
        ),
    ],
)
def test_a_name_that_cannot_teach_is_told_of_the_teacher_alone(teacher, student, said):
    found = refused(teacher=teacher, model=student)
    assert found.startswith(f"TRAINER_TEACHER={teacher!r}: {said} (<comparison>/<run> below TRAINER_RESULTS=")
    assert "TRAINER_INIT" not in found and "TRAINER_MODEL" not in found


@pytest.mark.parametrize(
    ("content", "student", "said"),
    [
        (
            WORDS,
            "vit_tiny",
            "is a language model, vit_tiny takes images: model_type 'qwen2' in FOLDER/config.json",
        ),
        (
            DIGITS,
            "qwen_tiny",
            "is no language model that is built here, qwen_tiny is one: the architecture cnn in FOLDER/config.json, "
            "expected model_type qwen2 or qwen3_moe",
        ),
        (DIGITS, "vit_tiny", "FOLDER holds no *.safetensors, which its weights are loaded from"),
    ],
)
def test_a_folder_that_cannot_teach_is_told_of_the_teacher_alone(tmp_path, content, student, said):
    folder = write(tmp_path / "m", content, weights="safetensors" not in said)
    assert refused(teacher=str(folder), model=student) == (
        f"TRAINER_TEACHER='{folder}': {said.replace('FOLDER', str(folder))}"
    )
