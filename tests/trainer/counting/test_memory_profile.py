"""Which engines are counted for an operations file, with which batches, and beside each other in forked processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.pictures import Pictures
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.counting.real_steps import make_config
from trainer.memory_estimation import memory_profile
from trainer.memory_estimation.memory_profile import count_side_by_side, rows_of
from trainer.memory_estimation.steps import build_micro_batch


@pytest.mark.parametrize(
    ("seq_len", "chunk", "rows"),
    [(2048, 2048, (1, 2, 4)), (64, 2048, (1, 4, 32, 64, 128)), (64, 128, (1, 2, 4, 8))],
)
def test_micro_batches_are_counted_where_the_loss_stops_growing(seq_len, chunk, rows):
    """Its probabilities at 256 tokens, its logits at a chunk: between two counts everything grows evenly."""
    text = (
        f"model=qwen_tiny dataset=arithmetic seq_len={seq_len} loss_chunk_tokens={chunk} micro_batch_size=1"
    )
    assert rows_of(make_config(text)) == rows


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refuse(number: int) -> int:
    if number == 2:
        raise ConfigError(["LAYERS=2: too few", "ROWS=0: none"])
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize(("processors", "forks"), [({0}, False), ({0, 1}, True)])
def test_results_come_in_the_order_of_the_tasks(processors, forks, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: processors)
    begun: list[int] = []
    found = list(count_side_by_side(square, [1, 2, 3], [2, 1, 0], begun.append))
    assert [result for result, _ in found] == [1, 4, 9] and begun == [1, 2, 3]
    assert (os.getpid() not in {pid for _, pid in found}) is forks
    assert list(count_side_by_side(square, [3], [0], begun.append)) == [(9, os.getpid())]


def test_what_a_process_refuses_or_dies_of_is_told(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(ConfigError) as refused:
        list(count_side_by_side(refuse, [1, 2, 3], [0, 1, 2], lambda task: None))
    assert refused.value.problems == ["LAYERS=2: too few", "ROWS=0: none"]
    with refuses(DataMissing, "SL-count-killed"):
        list(count_side_by_side(die, [1, 2], [0, 1], lambda task: None))


SLEEPS = """
import os, sys, time
from trainer.memory_estimation.memory_profile import count_side_by_side
os.sched_getaffinity = lambda pid: {0, 1}
def wait(number):
    open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
    time.sleep(600)
list(count_side_by_side(wait, [1, 2], [0, 1], lambda task: None))
"""


def test_nothing_is_left_where_whoever_waits_has_ended(tmp_path: Path):
    running = subprocess.Popen([sys.executable, "-c", SLEEPS, str(tmp_path)], stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(tmp_path.iterdir())) == memory_profile.MOST)
    children = [int(path.name) for path in tmp_path.iterdir()]
    running.kill()
    running.wait(10)
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def wait_until(holds) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("settings", "inputs", "labels"),
    [
        ({}, (3, 1, 16, 16), ((3,), torch.int64)),
        ({"augment": "mixup"}, (3, 1, 16, 16), ((3, 10), torch.float32)),
        ({"model": "qwen_tiny", "seq_len": 24}, (3, 2, 24), ((3, 24), torch.int64)),
    ],
)
def test_a_micro_batch_of_three(settings: dict, inputs: tuple, labels: tuple) -> None:
    image_size = {} if "seq_len" in settings else {"image_size": 16}
    config = Config(run="x", micro_batch_size=3, global_batch_size=6, **image_size, **settings)
    made = build_micro_batch(config, Pictures(10, 1))
    assert tuple(made[0].shape) == inputs and (tuple(made[1].shape), made[1].dtype) == labels
