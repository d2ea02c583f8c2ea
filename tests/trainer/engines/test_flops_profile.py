from __future__ import annotations

import errno
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainer.engines.zero_engine import profile_flops


@pytest.fixture
def engine():
    """What of DeepSpeed's engine its profiler asks, around one layer of 8 x 4 weights."""
    return SimpleNamespace(
        module=nn.Sequential(nn.Linear(8, 4, bias=False)),
        world_size=2,
        dp_world_size=2,
        mp_world_size=1,
        has_moe_layers=False,
        train_micro_batch_size_per_gpu=lambda: 3,
        wall_clock_breakdown=lambda: False,
        flops_profiler_recompute_fwd_factor=lambda: 0.0,
        flops_profiler_module_depth=lambda: -1,
        flops_profiler_top_modules=lambda: 3,
        flops_profiler_detailed=lambda: True,
    )


def has_traces(module):
    return [name for each in module.modules() for name in vars(each) if name.startswith("__")] + [
        hook for each in module.modules() for hook in (each._forward_hooks, each._forward_pre_hooks) if hook
    ]


def test_the_forward_pass_inside_is_counted_and_nothing_is_left_behind(engine, tmp_path, capsys):
    linear = F.linear
    with profile_flops(engine, 9, tmp_path / "flops.txt"):
        engine.module(torch.zeros(3, 8))
    text = (tmp_path / "flops.txt").read_text()
    assert "Profile Summary at step 9:" in text and "batch size per GPU" in text
    assert "fwd MACs per GPU:" in text and "96 MACs" in text  # 3 x 8 x 4
    assert F.linear is linear and not has_traces(engine.module)
    assert "Profile Summary" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["flops.txt"]


def test_a_forward_pass_that_fails_leaves_nothing_behind(engine, tmp_path):
    linear = F.linear
    with pytest.raises(ZeroDivisionError), profile_flops(engine, 9, tmp_path / "flops.txt"):
        raise ZeroDivisionError
    assert F.linear is linear and not has_traces(engine.module)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_told_costs_the_file_and_no_step(engine, tmp_path, caplog, monkeypatch):
    path = tmp_path / "flops.txt"
    monkeypatch.setattr("os.replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    for cause in ("No space left", "ZeroDivisionError"):
        with profile_flops(engine, 9, path):
            engine.module(torch.zeros(3, 8))
        assert not path.exists() and cause in caplog.text and not has_traces(engine.module)
        engine.train_micro_batch_size_per_gpu = lambda: 1 // 0
