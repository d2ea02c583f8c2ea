"""`python -m trainer.evaluate` and `mode: evaluate`: the numbers that training wrote, from the weights that it left."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from stratlab.run_directory.record import read_run
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.kept_runs import read, train
from trainer.evaluation.command import main
from trainer.launch.preflight import check


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("zero2", 2)])
def test_the_exported_weights_have_the_run_s_own_numbers(tmp_path, uninterrupted, capsys, strategy, ranks):
    folder = uninterrupted(strategy, ranks)
    assert main([str(folder), "--output", str(tmp_path / "found.json"), "--device", "cpu"]) == 0
    own, found = read(folder, "evaluation.json"), read(tmp_path, "found.json")
    printed = capsys.readouterr().out
    assert f"{own['accuracy_pct']:.2f} %" in printed and str(tmp_path / "found.json") in printed
    assert len([line for line in printed.splitlines() if line.endswith("%")]) == 10  # a line per class
    assert found.pop("weights") == str(folder / "model")
    assert found.pop("loss") == pytest.approx(own.pop("loss"), rel=1e-6)
    assert found == own and found["samples"] == sum(map(sum, found["confusion_matrix"])) == 359


def test_the_weights_are_looked_at_and_those_for_other_classes_refused(tmp_path, uninterrupted, capsys):
    folder, weights = uninterrupted("single", 1), tmp_path / "model"
    shutil.copytree(folder / "model", weights)
    file = weights / "model.safetensors"
    save_file({name: tensor * 0 for name, tensor in load_file(file).items()}, file)
    command = [str(folder), "--weights", str(weights), "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "found.json")]) == 0
    found = read(tmp_path, "found.json")
    assert found["accuracy_pct"] < 15 < read(folder, "evaluation.json")["accuracy_pct"]
    assert found["weights"] == str(weights)
    content = read(weights, "config.json") | {"class_names": ["a", "b"], "num_labels": 2}
    (weights / "config.json").write_text(json.dumps(content))
    assert main([*command, "--output", str(tmp_path / "none.json")]) == 2
    assert not (tmp_path / "none.json").exists() and "digits" in capsys.readouterr().err


def test_what_cannot_be_judged(tmp_path, uninterrupted, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "default" / "single"
    run.mkdir(parents=True)
    for arguments, code, named in (
        ([str(run)], 2, "config.json"),  # no run
        ([str(run), "--output", str(tmp_path / "none" / "report.json")], 2, "--output="),
        ([str(run), "--output", str(tmp_path)], 2, "--output="),
    ):
        assert main(arguments) == code and named in capsys.readouterr().err
    shutil.copy(uninterrupted("single", 1) / "config.json", run)
    assert main([str(run)]) == 3 and "TRAINER_CHECKPOINT_EVERY" in capsys.readouterr().err
    assert not (tmp_path / "evaluation.json").exists()


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


def test_preflight_lets_a_finished_run_be_judged_and_names_missing_weights(tmp_path, uninterrupted):
    folder = uninterrupted("single", 1)
    given = {"run": "single", "mode": "evaluate", "image_size": 8}
    check(Config(results=str(folder.parent.parent), **given), 1, {})
    with pytest.raises(ConfigError) as refused:
        check(Config(results=str(tmp_path), **given), 1, {})
    assert "SL-evaluate-no-weights" in find_codes(refused.value)
