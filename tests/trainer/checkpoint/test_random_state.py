"""Random numbers go on where they were; the file holds no code."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from trainer.checkpoint.writing import load_random_state, random_state, rank_file, save_random_state


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


def test_a_rank_that_is_new_gets_numbers_of_its_own(tmp_path):
    found = []
    for rank, step in ((1, 10), (2, 10), (1, 20), (1, 10)):
        load_random_state(tmp_path, rank, seed=0, step=step)
        found.append(draw())
    assert found[0] == found[3] and len(set(found)) == 3


class Call:
    """Pickled, it is a call of a program."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_planted_call_is_refused_by_the_name_of_its_file(tmp_path):
    save_random_state(tmp_path, 0, {"python": Call(tmp_path / "ran")})
    with pytest.raises(ConfigError) as refused:
        load_random_state(tmp_path, 0, seed=0, step=10)
    said = str(refused.value)
    assert find_codes(said) == ["SL-tensors-not-plain"] and "rank_00000.pt" in said and "posix.system" in said
    assert not (tmp_path / "ran").exists()
    torch.load(rank_file(tmp_path, 0), weights_only=False)
    assert (tmp_path / "ran").exists(), "what is guarded against happens without the guard"
