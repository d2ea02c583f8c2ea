"""Which checkpoint is the best one, and what of earlier attempts is counted on; no process group is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from tests.trainer.checkpoint.test_folder import STATE
from tests.trainer.runs import make_world
from trainer.checkpoint.store import Checkpoints, is_better

LOW, HIGH = {"step": 1, "loss": 1.0, "perplexity": 2.7}, {"step": 2, "loss": 2.0, "perplexity": 7.4}


def test_of_a_language_model_the_lowest_loss_is_best():
    assert is_better(LOW, HIGH) and not is_better(HIGH, LOW)
    assert not is_better(LOW, dict(LOW)), "a later one that is equal replaces nothing"
    assert is_better(HIGH, None)


def test_of_a_classifier_the_accuracy_comes_before_the_loss():
    worse = {"step": 1, "loss": 0.1, "accuracy_pct": 90.0}
    better = {"step": 2, "loss": 0.9, "accuracy_pct": 91.0}
    assert is_better(better, worse) and not is_better(worse, better)
    surer = better | {"loss": 0.8}
    assert is_better(surer, better) and not is_better(better, surer)


@pytest.mark.parametrize(("earlier", "counted"), [(None, 0.0), (1234.5, 1234.5)])
def test_the_training_time_of_earlier_attempts_counts(tmp_path, earlier, counted):
    state = SimpleNamespace(**{**vars(STATE), "train_time_s": earlier, "validation": LOW, "best": LOW})
    chosen = None if earlier is None else SimpleNamespace(path=tmp_path, state=state)
    folder = RunDirectory(tmp_path, "default", "try")
    attempt = SimpleNamespace(number=2, chosen=chosen, skipped=[], from_step=0)
    recorder = SimpleNamespace(last={"loss": 0.5}, skipped_steps=3, has_written=True)
    plan = SimpleNamespace(steps=10)
    run = SimpleNamespace(config=Config(run="try"), plan=plan, world=make_world(), folder=folder)
    checkpoints = Checkpoints(run, None, recorder, attempt, None)
    checkpoints.validation = LOW
    numbers = checkpoints.numbers()
    assert counted <= numbers["train_time_s"] < counted + 60
    assert numbers["train_loss"] == 0.5 and numbers["skipped_steps"] == 3
    assert numbers["validation_perplexity"] == 2.7
