"""A student learns the same under another strategy, goes on with the same teacher and with no other."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from stratlab_spec.models.decoder import count_flops_per_token, count_parameters
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config, ConfigError
from tests.ranks import fork_ranks
from tests.trainer.kept_runs import STEPS, be_worker, read, settings, train
from tests.trainer.ranks.test_worker import STUDENT, TAUGHT, losses, student
from trainer.evaluation.command import evaluate_run_directory
from trainer.launch.preflight import check
from trainer.prepare.preparation import ensure_cache

TEXT = {
    "TRAINER_MODEL": "qwen_tiny", "TRAINER_IMAGE_SIZE": "", "TRAINER_DATASET": "arithmetic",
    "TRAINER_TRAIN_SAMPLES": "64", "TRAINER_VALIDATION_FRACTION": "0.02", "TRAINER_SEQ_LEN": "64",
    "TRAINER_STEPS": "4", "TRAINER_GLOBAL_BATCH_SIZE": "8", "TRAINER_MICRO_BATCH_SIZE": "2",
}  # fmt: skip
KEPT = {
    "TRAINER_CHECKPOINT_KEEP": "9",
    "TRAINER_CHECKPOINT_KEEP_FINISHED": "all",
    "TRAINER_COMPARISON": "kept",
}
MOVED = {"TRAINER_RESUME_FROM": "kept/single/checkpoints/step_00000005", "TRAINER_COMPARISON": "moved"}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """With a finished run of images that can teach."""
    train(tmp_path, "single", 1)
    return tmp_path


def fails(results: Path, strategy: str, code: int, **more: str) -> str:
    (done,) = fork_ranks(be_worker, 1, env=settings(results, strategy, **more), grace_s=20)
    assert done.exit_code == code, done.output[-2500:]
    return done.output


def change_weights(model: Path, keep: str = "") -> None:
    """Other weights where the teacher's were; or none whose name begins so."""
    (file,) = model.glob("*.safetensors")
    found = load_file(file).items()
    state = {name: tensor + 0.01 for name, tensor in found if not keep or not name.startswith(keep)}
    save_file(state, file, metadata={"format": "pt"})


def test_it_goes_on_with_the_same_teacher_and_with_no_other(results: Path) -> None:
    whole = student(results, "single", 1, **KEPT)
    again = student(results, "fsdp", 2, **MOVED)
    assert losses(again) == pytest.approx(losses(whole)[5:], abs=1e-5) and len(losses(again)) == STEPS - 5
    found = evaluate_run_directory(whole, device="cpu")  # judged without any teacher
    assert read(whole, "evaluation.json")["loss"] == pytest.approx(found["loss"], rel=1e-4)
    shutil.copytree(results / "default" / "single", results / "default" / "twin")
    for name, value in (
        ("distill_temperature", "3.5"),
        ("distill_alpha", "0.7"),
        ("teacher", "default/twin"),
    ):
        env = settings(results, "hsdp", **{**TAUGHT, **STUDENT, **MOVED, f"TRAINER_{name.upper()}": value})
        with pytest.raises(ConfigError) as refused:
            check(Config.from_env(env), 2, env)
        assert f"{name}=" in str(refused.value)
    change_weights(results / "default" / "single" / "model")
    assert "teacher_sha256=" in fails(results, "hsdp", 2, **{**TAUGHT, **STUDENT, **MOVED})
    # a further attempt of one run, whose settings are equal: as if it had been killed behind its checkpoint
    (whole / "summary.json").unlink()
    assert "TRAINER_TEACHER='default/single'" in fails(results, "single", 2, **{**TAUGHT, **STUDENT, **KEPT})


def test_a_head_that_is_not_in_the_file_teaches_nobody(results: Path) -> None:
    change_weights(results / "default" / "single" / "model", keep="head")
    said = fails(results, "zero1", 3, **TAUGHT, **STUDENT)
    assert "head." in said and "TRAINER_TEACHER='default/single'" in said


def test_a_decoder_learns_from_a_decoder(tmp_path: Path) -> None:
    ensure_cache(Config.from_env(settings(tmp_path, "single", **TEXT)), print)
    train(tmp_path, "single", 1, **TEXT)
    small = {"TRAINER_MODEL_LAYERS": "2", "TRAINER_MODEL_HIDDEN": "32"}
    taught = {**TEXT, **TAUGHT, **small}
    alone = student(tmp_path, "single", 1, **taught, TRAINER_COMPARISON="alone")
    layout = {"TRAINER_LAYOUT": "given", "TRAINER_PP": "2"}
    folder = student(tmp_path, "nd", 2, **taught, **layout, TRAINER_COMPARISON="students")
    assert losses(folder) == pytest.approx(losses(alone), abs=1e-5)
    found = evaluate_run_directory(folder, device="cpu")  # of its labels alone
    assert read(folder, "evaluation.json")["loss"] == pytest.approx(found["loss"], rel=1e-4)
    resolved = read(folder, "config.json")["resolved"]
    shape = read_shape(Config(run="t", model="qwen_tiny"))
    assert resolved["teacher_parameters"] == count_parameters(shape)
    assert resolved["teacher_sha256"] == read(alone, "config.json")["resolved"]["teacher_sha256"]
    own = read_shape(Config(run="s", model="qwen_tiny", model_layers=2, model_hidden=32))
    for name, causal in (("flops_per_token", True), ("flops_per_token_literature", False)):
        costs = [count_flops_per_token(each, 64, causal=causal) for each in (own, shape)]
        assert resolved[name] == pytest.approx(costs[0] + costs[1] / 3)
    assert resolved["flops_per_sample"] == pytest.approx(64 * resolved["flops_per_token"])
