"""A student learns from a finished run: real workers, images and text; what is recorded, resumed and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.ranks import fork_ranks
from tests.trainer.kept_runs import STEPS, be_worker, lines, read, settings, train
from trainer.evaluation.command import evaluate_run_directory
from trainer.launch.preflight import check
from trainer.prepare.before_ranks import ensure_cache
from trainer.settings.config import Config, ConfigError
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_shapes import count_flops_per_token, count_parameters

TAUGHT = {
    "TRAINER_TEACHER": "default/single",
    "TRAINER_DISTIL_TEMPERATURE": "3",
    "TRAINER_DISTIL_WEIGHT": "0.8",
}
STUDENT = {"TRAINER_MODEL": "vit_tiny", "TRAINER_MODEL_LAYERS": "2", "TRAINER_COMPARISON": "students"}
TEXT = {
    "TRAINER_MODEL": "qwen_tiny",
    "TRAINER_IMAGE_SIZE": "",
    "TRAINER_DATASET": "arithmetic",
    "TRAINER_TRAIN_SAMPLES": "64",
    "TRAINER_VALIDATION_FRACTION": "0.02",
    "TRAINER_SEQ_LEN": "64",
    "TRAINER_STEPS": "4",
    "TRAINER_GLOBAL_BATCH_SIZE": "8",
    "TRAINER_MICRO_BATCH_SIZE": "2",
}


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder with two finished runs that can teach: one of images, one of text, and a student of each."""
    results = tmp_path_factory.mktemp("volume")
    train(results, "single", 1)
    ensure_cache(Config.from_env(settings(results, "ddp", **TEXT)), print)
    train(results, "ddp", 2, **TEXT)
    train(results, "ddp", 2, **TAUGHT, **STUDENT)
    return results


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder) if line["kind"] == "train"]


def student(results: Path, strategy: str, ranks: int, **more: str) -> Path:
    train(results, strategy, ranks, **{**TAUGHT, **STUDENT, **more})
    return results / more.get("TRAINER_COMPARISON", "students") / strategy


def test_what_is_recorded(volume: Path) -> None:
    resolved = read(volume / "students" / "ddp", "config.json")["resolved"]
    teacher = read(volume / "default" / "single", "config.json")["resolved"]
    assert resolved["teacher_parameters"] == teacher["parameters"] and len(resolved["teacher_sha256"]) == 64
    assert resolved["teacher_flops_per_sample"] == pytest.approx(teacher["flops_per_sample"] / 3)
    alone = 3 * 2 * (5 * (4 * 64**2 + 2 * 64 * 128) * 2 + 4 * 64 * 4**2) + 3 * 4 * 5**2 * 64 * 2
    assert resolved["flops_per_sample"] == pytest.approx(
        alone + resolved["teacher_flops_per_sample"], rel=0.01
    )
    facts = json.loads((volume / "students" / "ddp" / "ranks" / "rank0.json").read_text())
    assert facts["dtypes"]["teacher"] == ["float32"]
    assert facts["training_memory"]["held_gib"]["teacher"] == pytest.approx(
        4 * teacher["parameters"] / 2**30, rel=0.01
    )
    assert "teacher" not in facts["state_memory_gib"]


def test_another_strategy_learns_the_same_and_judges_its_labels_alone(volume: Path) -> None:
    one, other = volume / "students" / "ddp", student(volume, "zero3", 2)
    assert losses(other) == pytest.approx(losses(one), abs=1e-5)
    a, b = (read(folder, "config.json")["resolved"] for folder in (one, other))
    assert a["teacher_sha256"] == b["teacher_sha256"]
    # the exported student, judged without any teacher, has the loss that the run has judged it with
    found = evaluate_run_directory(one, device="cpu")
    assert read(one, "evaluation.json")["loss"] == pytest.approx(found["loss"], rel=1e-4)
    assert not list((one / "model").glob("*teacher*"))


def test_it_goes_on_with_the_same_teacher_and_with_no_other(volume: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(volume, results)
    kept = {"TRAINER_CHECKPOINT_KEEP": "9", "TRAINER_CHECKPOINT_KEEP_FINISHED": "all"}
    whole = student(results, "single", 1, TRAINER_COMPARISON="kept", **kept)
    moved = {"TRAINER_RESUME_FROM": "kept/single/checkpoints/step_00000005", "TRAINER_COMPARISON": "moved"}
    again = student(results, "fsdp", 2, **moved)
    assert losses(again) == pytest.approx(losses(whole)[5:], abs=1e-5) and len(losses(again)) == STEPS - 5

    def refusal(**more: str) -> str:
        env = settings(results, "hsdp", **{**TAUGHT, **STUDENT, **moved, **more})
        with pytest.raises(ConfigError) as refused:
            check(Config.from_env(env), 2, env)
        return str(refused.value)

    assert "distil_temperature=3.5 (was 3.0: another loss)" in refusal(TRAINER_DISTIL_TEMPERATURE="3.5")
    assert "distil_weight=0.7 (was 0.8: another loss)" in refusal(TRAINER_DISTIL_WEIGHT="0.7")
    shutil.copytree(results / "default" / "single", results / "default" / "twin")
    assert "teacher='default/twin' (was 'default/single': another loss)" in refusal(
        TRAINER_TEACHER="default/twin"
    )
    swap(results / "default" / "single" / "model")
    said = fails(results, "hsdp", **{**TAUGHT, **STUDENT, **moved})
    assert "is another training: teacher_sha256=" in said and "the teacher has other weights" in said
    # a further attempt of one run, whose settings are equal: as if it had been killed behind its checkpoint
    (whole / "summary.json").unlink()
    said = fails(results, "single", **{**TAUGHT, **STUDENT, **kept, "TRAINER_COMPARISON": "kept"})
    assert "TRAINER_TEACHER='default/single': has other weights than when this run began" in said


def swap(model: Path) -> None:
    """Other weights where the teacher's were."""
    (file,) = model.glob("*.safetensors")
    state = {name: tensor + 0.01 for name, tensor in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})


def fails(results: Path, strategy: str, **more: str) -> str:
    (done,) = fork_ranks(be_worker, 1, env=settings(results, strategy, **more), grace_s=20)
    assert done.exit_code == 2, done.output[-2500:]
    return done.output


def test_another_number_of_classes_is_refused_before_ranks_start(volume: Path) -> None:
    env = settings(volume, "ddp", **TAUGHT, **STUDENT) | {"TRAINER_RUN": "new", "TRAINER_TEACHER": "resnet"}
    with pytest.raises(ConfigError) as refused:
        check(Config.from_env(env), 2, env)
    said = str(refused.value)
    assert "tells 1000 classes apart, the data set digits has 10" in said
    assert "TRAINER_IMAGE_SIZE=8: resnet needs 32 or more" in said  # all at once


def test_a_head_that_is_not_in_the_file_teaches_nobody(volume: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(volume, results)
    model = results / "default" / "single" / "model"
    (file,) = model.glob("*.safetensors")
    body = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("head")}
    save_file(body, file, metadata={"format": "pt"})
    done = fork_ranks(be_worker, 1, env=settings(results, "zero1", **TAUGHT, **STUDENT), grace_s=20)
    said = done[0].output
    assert done[0].exit_code == 3 and "first head." in said and "TRAINER_TEACHER='default/single': " in said


@pytest.mark.parametrize("layout", [{}, {"TRAINER_LAYOUT": "given", "TRAINER_PP": "2"}])
def test_a_decoder_learns_from_a_decoder(volume: Path, tmp_path: Path, layout: dict[str, str]) -> None:
    results = tmp_path / "results"
    shutil.copytree(volume, results)
    small = {"TRAINER_MODEL_LAYERS": "2", "TRAINER_MODEL_HIDDEN": "32", "TRAINER_COMPARISON": "students"}
    taught = {**TEXT, **TAUGHT, **small, "TRAINER_TEACHER": "default/ddp"}
    alone = student(results, "single", 1, **{**taught, "TRAINER_COMPARISON": "alone"})
    folder = student(results, "nd", 2, **taught, **layout)
    assert losses(folder) == pytest.approx(losses(alone), abs=1e-5)
    found = evaluate_run_directory(folder, device="cpu")  # of its labels alone
    assert read(folder, "evaluation.json")["loss"] == pytest.approx(found["loss"], rel=1e-4)
    resolved = read(folder, "config.json")["resolved"]
    shape = read_shape(Config(run="t", model="qwen_tiny"))
    assert resolved["teacher_parameters"] == count_parameters(shape)
    assert resolved["teacher_sha256"] == read(alone, "config.json")["resolved"]["teacher_sha256"]
    own = read_shape(Config(run="s", model="qwen_tiny", model_layers=2, model_hidden=32))
    for name, causal in (("flops_per_token", True), ("flops_per_token_literature", False)):
        both = (
            count_flops_per_token(own, 64, causal=causal)
            + count_flops_per_token(shape, 64, causal=causal) / 3
        )
        assert resolved[name] == pytest.approx(both)
    assert resolved["flops_per_sample"] == pytest.approx(64 * resolved["flops_per_token"])
