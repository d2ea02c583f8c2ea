"""When a checkpoint is due and which is the best, random numbers, host memory, the thread; without a process group."""

import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.checkpoint.test_dcp_files import Call
from tests.trainer.checkpoint.test_folder import STATE
from tests.trainer.runs import make_world
from trainer.checkpoint import attempt as attempts
from trainer.checkpoint.attempt import deal
from trainer.checkpoint.state import ShardedStaging, Staging
from trainer.checkpoint.store import Checkpoints, find_grace_problem, is_better
from trainer.checkpoint.writing import load_random_state, random_state, rank_file, save_random_state

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


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("trainer.checkpoint.store.time.monotonic", lambda: clock.now)
    return clock


def checkpoints_of(results: Path, rank: int = 0, **settings) -> Checkpoints:
    attempt = SimpleNamespace(number=1, chosen=None, skipped=[], from_step=0)
    run = SimpleNamespace(
        config=Config(run="try", **settings), plan=SimpleNamespace(steps=10), world=make_world(rank, 2),
        folder=RunDirectory(results, "default", "try"), writes=rank == 0,
    )  # fmt: skip
    return Checkpoints(run, None, None, attempt, None)


def test_by_default_one_is_wanted_after_a_quarter_of_an_hour_by_one_rank(tmp_path, clock):
    checkpoints, other = checkpoints_of(tmp_path), checkpoints_of(tmp_path, rank=1)
    clock.now += 15 * 60 - 1
    assert not checkpoints.is_wanted()
    clock.now += 1
    assert checkpoints.is_wanted() and not other.is_wanted()
    checkpoints._writing = SimpleNamespace(done=lambda: False)
    others = [
        checkpoints_of(tmp_path, **each) for each in ({"checkpoint_every": 7}, {"checkpoint_minutes": 0})
    ]
    clock.now += 1e6
    assert not any(each.is_wanted() for each in (checkpoints, *others))


def test_files_are_dealt_by_their_bytes():
    sizes = {"a": 100, "b": 60, "c": 50, "d": 1, "e": 0}
    shares = deal({name: {"bytes": size} for name, size in sizes.items()}, 2)
    assert [sorted(share) for share in shares] == [["a", "d", "e"], ["b", "c"]]
    assert deal({}, 3) == [{}, {}, {}]


@pytest.mark.parametrize(
    ("checkpoint_s", "grace_s", "wish"), [(52.0, 120, None), (53.0, 120, 150), (7.0, 20, 30), (6.0, 20, None)]
)
def test_a_checkpoint_may_take_half_of_what_a_stop_leaves(checkpoint_s, grace_s, wish):
    said = find_grace_problem(checkpoint_s, grace_s)
    assert (said is None) == (wish is None)
    if wish:
        assert said and find_codes(said) == ["SL-grace-short"]
        assert f"TRAINER_GRACE_S={wish} " in said and f"TRAINER_GRACE_S={grace_s}:" in said
        assert find_grace_problem(checkpoint_s, wish) is None


def draw() -> tuple[float, ...]:
    return (random.random(), random.gauss(0, 1), *np.random.randn(3), *torch.rand(3).tolist())


def test_every_generator_goes_on_where_it_was(tmp_path):
    draw()
    random.gauss(0, 1)  # Python keeps the second number of a pair for later
    np.random.randn()
    save_random_state(tmp_path, 3, random_state("cpu"))
    wanted = draw()
    assert draw() != wanted
    load_random_state(tmp_path, 3, seed=0, step=10)
    assert draw() == wanted
    torch.load(rank_file(tmp_path, 3), weights_only=True)


def test_a_planted_call_is_refused_by_the_name_of_its_file(tmp_path):
    save_random_state(tmp_path, 0, {"python": Call(os.system, f"touch {tmp_path / 'ran'}")})
    with pytest.raises(ConfigError) as refused:
        load_random_state(tmp_path, 0, seed=0, step=10)
    said = str(refused.value)
    assert find_codes(said) == ["SL-tensors-not-plain"] and "rank_00000.pt" in said and "posix.system" in said
    assert not (tmp_path / "ran").exists()
    torch.load(rank_file(tmp_path, 0), weights_only=False)
    assert (tmp_path / "ran").exists(), "what is guarded against happens without the guard"


def test_copies_stand_apart_in_memory_that_is_taken_anew_only_for_more():
    staging = Staging()
    first = staging.copy([torch.ones(1000), torch.arange(3)])
    assert [copy.untyped_storage().nbytes() for copy in first] == [4000, 24], "else a file holds all"
    held = staging.held_bytes
    (again,) = staging.copy([torch.full((999,), 2.0)])
    assert again.data_ptr() == first[0].data_ptr() and staging.held_bytes == held
    assert staging.copy([torch.ones(5000)])[0].sum() == 5000 and staging.held_bytes > held


def test_what_is_saved_at_a_stop_is_waited_for(tmp_path, monkeypatch):
    checkpoints, done = checkpoints_of(tmp_path, checkpoint_every=5), []
    checkpoints._recorder = SimpleNamespace(flush=lambda: None, record=lambda *given, **named: None)
    monkeypatch.setattr(checkpoints, "_take", done.append)
    monkeypatch.setattr(checkpoints, "finish", lambda: done.append("finished"))
    checkpoints.commit_now(3)
    assert done == [3, "finished"]


def test_a_snapshot_stays_while_training_goes_on(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_rank", lambda group=None: 0)
    monkeypatch.setattr("trainer.checkpoint.state.gather_objects", lambda value: [value])
    weight = torch.zeros(3)
    snapshot = ShardedStaging().take({"w": weight})
    weight += 1
    assert [tensor.tolist() for tensor in snapshot.held.values()] == [[0, 0, 0]]


def test_damage_that_another_rank_finds_is_heard(tmp_path, monkeypatch):
    for name, value in (("get_rank", 0), ("get_world_size", 2)):
        monkeypatch.setattr(f"torch.distributed.{name}", lambda group=None, value=value: value)
    monkeypatch.setattr(attempts, "gather_objects", lambda own, group: [own, "broken"])
    assert attempts._compare_share(tmp_path, {}, None) == "broken"
