"""A run that dies or is stopped and goes on is the run that never was: real workers, real engines, digits.

`python -m trainer.evaluate` and `mode: evaluate`: the numbers that training wrote, from the weights that it left.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from stratlab.run_directory.record import read_run
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.kept_runs import STEPS, lines, read, train
from trainer.checkpoint.folder import CheckpointFolder
from trainer.data.image_checks import evaluated
from trainer.evaluation.command import main
from trainer.launch.preflight import check

SAME = (
    *("train_loss", "validation_loss", "validation_accuracy_pct", "test_loss", "test_accuracy_pct"),
    *("data_order_sha256", "initial_weights_sha256", "skipped_steps", "steps"),
    *("dtype_parameters", "dtype_optimizer", "optimizer_memory_gib"),
)


def losses(folder: Path, attempt: int) -> dict[int, float]:
    found = lines(folder)
    return {x["step"]: x["loss"] for x in found if x["kind"] == "train" and x["attempt"] == attempt}


def read_attempts(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").open()]


def committed(folder: Path) -> list[int]:
    return CheckpointFolder(RunDirectory(folder.parents[1], folder.parent.name, folder.name)).committed()


def assert_equal_ending(resumed: Path, whole: Path) -> None:
    """Bitwise: losses, weights, evaluation, hash of the data order."""
    again, never = losses(resumed, 2), losses(whole, 1)
    assert again == {step: never[step] for step in again} and max(again, default=STEPS) == STEPS
    for name in ("model/model.safetensors", "model/config.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    assert read(resumed, "evaluation.json") == read(whole, "evaluation.json")
    a, b = read(resumed, "summary.json"), read(whole, "summary.json")
    assert {name: a[name] for name in SAME} == {name: b[name] for name in SAME}


def planted(fault: str, **more: str) -> dict[str, str]:
    return {"TRAINER_FAULT": fault, "TRAINER_ALLOW_FAULTS": "true", **more}


def test_a_run_whose_rank_is_killed_goes_on_as_if_it_had_not_died(tmp_path, uninterrupted):
    folder = train(tmp_path, "ddp", 2, codes=(-9, 134), **planted("kill@8:1"))
    assert max(losses(folder, 1), default=0) <= 7 and not (folder / "summary.json").exists()
    last = committed(folder)[-1]
    assert last in (5, 6), "written beside training"
    train(tmp_path, "ddp", 2, **planted("kill@8:1"))  # once in the run
    assert [(a["attempt"], a["from_step"]) for a in read_attempts(folder)] == [(1, 0), (2, last)]
    assert list(losses(folder, 2)) == list(range(last + 1, STEPS + 1))
    assert_equal_ending(folder, uninterrupted("ddp", 2))
    asked = read(folder, "config.json")["config"]
    assert (asked["fault"], asked["allow_faults"]) == ("kill@8:1", True)


def stop_at(place: str, count: int, rank: int = 1) -> Callable[[], None]:
    """A worker whose rank is told to stop when it is at `place` for the `count`-th time."""

    def target() -> None:
        import signal
        import time

        from trainer import worker
        from trainer.checkpoint.store import Checkpoints
        from trainer.distributed.consensus import Agreement
        from trainer.engines.torch_engine import TorchEngine

        # asked behind every step: how long one takes is the machine's affair
        Agreement.__init__.__defaults__ = (0, 0.0)
        owner = Checkpoints if place.startswith("_") else TorchEngine
        if place == "train_step" and os.environ["TRAINER_STRATEGY"].startswith("zero"):
            from trainer.engines.zero_engine import DeepSpeedEngine as owner
        real, calls = getattr(owner, place), [0]

        def told(self: object, *given: object) -> object:
            calls[0] += 1
            if calls[0] == count and int(os.environ["RANK"]) == rank:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.5)  # a thread hears it
            return real(self, *given)

        setattr(owner, place, told)
        raise SystemExit(worker.main())

    return target


def check_stop(results: Path, whole: Path, place: str, count: int, behind: int) -> None:
    """It ends behind one step, with a checkpoint of it; what follows is as if nothing had been."""
    strategy = whole.name
    folder = train(results, strategy, 2, stop_at(place, count), codes=(143,))
    assert max(losses(folder, 1)) == behind == committed(folder)[-1]
    (event,) = [x for x in lines(folder) if x["kind"] == "event"]
    assert (event["name"], event["step"]) == ("stopped", behind) and str(behind) in event["text"]
    train(results, strategy, 2)
    assert list(losses(folder, 2)) == list(range(behind + 1, STEPS + 1))
    assert_equal_ending(folder, whole)
    assert [x["step"] for x in lines(folder) if x["kind"] == "eval"] == [6, 12]
    assert read(folder, "checkpoints/best.json") == read(whole, "checkpoints/best.json")


def test_a_stop_that_one_rank_hears_loses_no_step_and_changes_nothing(tmp_path, uninterrupted):
    check_stop(tmp_path, uninterrupted("zero2", 2), "train_step", 7, 7)


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


def test_in_the_folder_of_a_trained_run_only_the_evaluation_is_new(tmp_path, uninterrupted):
    shutil.copytree(uninterrupted("single", 1), tmp_path / "default" / "single")
    folder = tmp_path / "default" / "single"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / "evaluation.json").unlink()
    train(tmp_path, "single", 1, TRAINER_MODE="evaluate")
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert [path for path in before if after[path] != before[path]] == [folder / "evaluation.json"]
    assert after.keys() == before.keys()
    own, found = json.loads(before[folder / "evaluation.json"]), read(folder, "evaluation.json")
    for name in ("accuracy_pct", "confusion_matrix"):
        assert found[name] == own[name]


def test_preflight_lets_a_finished_run_be_judged_and_names_missing_weights(tmp_path, uninterrupted):
    folder = uninterrupted("single", 1)
    given = {"run": "single", "mode": "evaluate", "image_size": 8}
    check(Config(results=str(folder.parent.parent), **given), 1, {})
    with pytest.raises(ConfigError) as refused:
        check(Config(results=str(tmp_path), **given), 1, {})
    assert "SL-evaluate-no-weights" in find_codes(refused.value)


def test_the_weights_are_loaded_whatever_the_run_was_started_with():
    config = evaluated(Config(run="a", results="r", lora_rank=4, init="scratch"))
    assert (config.init, config.lora_rank, config.profile_steps) == ("pretrained", 0, 0)
    assert config.model_path == "r/default/a/model"
    assert evaluated(Config(run="a", model_path="elsewhere")).model_path == "elsewhere"
