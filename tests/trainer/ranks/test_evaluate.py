"""`python -m trainer.evaluate` and `mode: evaluate`: the numbers that training wrote, from the weights that it left."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stratlab.run_directory.record import read_run
from tests.programs import find_python
from tests.ranks import run_ranks
from tests.trainer.kept_runs import read, train
from trainer.data.exported import evaluated
from trainer.launch.preflight import check
from trainer.settings.config import Config, ConfigError


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_python(), "-m", "trainer.evaluate", *arguments], capture_output=True, text=True, timeout=60
    )


def evaluate(*arguments: str) -> None:
    """The command in a rank's process, where torch is there already."""

    def target() -> None:
        from trainer.evaluation.command import main

        raise SystemExit(main([*arguments, "--device", "cpu"]))

    run_ranks(target, 1)


@pytest.mark.parametrize("output", ["", "none/report.json"], ids=["a folder", "in no folder"])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_judged(output, tmp_path, capsys):
    from trainer.evaluation.command import main

    assert main([str(tmp_path / "no-run"), "--output", str(tmp_path / output)]) == 2
    assert (
        f"--output={tmp_path / output}: expected a file in a folder that is there" in capsys.readouterr().err
    )


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "zero2"])
def test_the_exported_weights_have_the_run_s_own_numbers(tmp_path, uninterrupted, strategy):
    folder = uninterrupted(strategy, 1 if strategy == "single" else 2)
    evaluate(str(folder), "--output", str(tmp_path / "found.json"))
    own, found = read(folder, "evaluation.json"), read(tmp_path, "found.json")
    assert found.pop("weights") == str(folder / "model")
    assert found.pop("loss") == pytest.approx(own.pop("loss"), rel=1e-6)
    assert found == own and found["samples"] == sum(map(sum, found["confusion_matrix"])) == 359


def test_other_weights_give_other_numbers(tmp_path, uninterrupted):
    """The command looks at the weights: those of an untrained model are worse."""
    folder, weights = uninterrupted("single", 1), tmp_path / "model"
    shutil.copytree(folder / "model", weights)

    def spoil() -> None:
        from safetensors.torch import load_file, save_file

        state = load_file(weights / "model.safetensors")
        save_file({name: tensor * 0 for name, tensor in state.items()}, weights / "model.safetensors")

    run_ranks(spoil, 1)
    evaluate(str(folder), "--weights", str(weights), "--output", str(tmp_path / "found.json"))
    found = read(tmp_path, "found.json")
    assert found["accuracy_pct"] < 15 < read(folder, "evaluation.json")["accuracy_pct"]
    assert found["weights"] == str(weights)


def test_what_the_command_prints(uninterrupted, tmp_path):
    def target() -> None:
        from trainer.evaluation.command import main

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main([str(folder), "--output", str(tmp_path / "out.json"), "--device", "cpu"]) == 0
        (tmp_path / "printed").write_text(printed.getvalue())

    folder = uninterrupted("single", 1)
    run_ranks(target, 1)
    printed, own = (tmp_path / "printed").read_text(), read(folder, "evaluation.json")
    assert f"accuracy  {own['accuracy_pct']:.2f} % of 359 test samples" in printed
    assert len([line for line in printed.splitlines() if line.endswith("%")]) == 10  # a line per class
    assert f"written: {tmp_path / 'out.json'}" in printed


def test_help_has_an_example():
    done = command("--help")
    assert done.returncode == 0 and "python -m trainer.evaluate results/runs/default/ddp" in done.stdout


def test_a_folder_that_is_no_run_ends_with_2(tmp_path):
    done = command(str(tmp_path))
    assert done.returncode == 2 and "not a run directory, config.json cannot be read" in done.stderr


def test_a_run_without_weights_ends_with_3(tmp_path, uninterrupted):
    run = tmp_path / "default" / "single"
    run.mkdir(parents=True)
    shutil.copy(uninterrupted("single", 1) / "config.json", run)
    done = command(str(run))
    assert done.returncode == 3 and "TRAINER_CHECKPOINT_EVERY above 0" in done.stderr
    assert not Path("evaluation.json").exists()


def test_weights_for_other_classes_are_refused(tmp_path, uninterrupted):
    weights = tmp_path / "model"
    shutil.copytree(uninterrupted("single", 1) / "model", weights)
    content = read(weights, "config.json")
    (weights / "config.json").write_text(json.dumps(content | {"class_names": ["a", "b"], "num_labels": 2}))
    done = command(str(uninterrupted("single", 1)), "--weights", str(weights))
    assert done.returncode == 2 and "tells 2 classes apart, the data set digits has 10" in done.stderr


def test_a_run_of_its_own_judges_another_run_s_weights(tmp_path, uninterrupted):
    trained = uninterrupted("ddp", 2)
    more = {"TRAINER_MODE": "evaluate", "TRAINER_MODEL_PATH": str(trained / "model"), "TRAINER_RUN": "judge"}
    # two ranks share the samples out: 359 is not even
    train(tmp_path, "ddp", 2, TRAINER_MODEL="", **more)
    folder = tmp_path / "default" / "judge"
    own, found = read(trained, "evaluation.json"), read(folder, "evaluation.json")
    assert found["confusion_matrix"] == own["confusion_matrix"]
    assert found["loss"] == pytest.approx(own["loss"], rel=1e-6)
    assert read_run(folder).status == "not a run"  # a comparison leaves it out
    summary = read(folder, "summary.json")
    assert summary["test_accuracy_pct"] == own["accuracy_pct"]
    line = json.loads((folder / "metrics.jsonl").read_text())
    assert (line["kind"], line["test_accuracy_pct"]) == ("eval", own["accuracy_pct"])
    assert summary["mode"] == "evaluate" and summary["model"] == "model"


def test_in_the_folder_of_a_trained_run_only_the_evaluation_is_new(tmp_path, uninterrupted):
    shutil.copytree(uninterrupted("single", 1), tmp_path / "default" / "single")
    folder = tmp_path / "default" / "single"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / "evaluation.json").unlink()
    train(tmp_path, "single", 1, TRAINER_MODE="evaluate")
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert [path for path in before if after[path] != before[path]] == [folder / "evaluation.json"]
    assert after.keys() == before.keys()
    own = json.loads(before[folder / "evaluation.json"])
    found = read(folder, "evaluation.json")
    assert (found["accuracy_pct"], found["confusion_matrix"]) == (
        own["accuracy_pct"],
        own["confusion_matrix"],
    )


def test_preflight_lets_a_finished_run_be_judged_and_names_missing_weights(tmp_path, uninterrupted):
    folder = uninterrupted("single", 1)
    given = {"run": "single", "mode": "evaluate", "image_size": 8}
    check(Config(results=str(folder.parent.parent), **given), 1, {})
    with pytest.raises(
        ConfigError, match=r"TRAINER_MODE='evaluate': .*model is not there .*TRAINER_MODEL_PATH"
    ):
        check(Config(results=str(tmp_path), **given), 1, {})


def test_the_weights_are_loaded_whatever_the_run_was_started_with():
    config = evaluated(Config(run="a", results="r", lora_rank=4, init="scratch"))
    assert (config.init, config.lora_rank, config.profile_steps) == ("pretrained", 0, 0)
    assert config.model_path == "r/default/a/model"
    assert evaluated(Config(run="a", model_path="elsewhere")).model_path == "elsewhere"
