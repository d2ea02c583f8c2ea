"""What the command says before anything is spent."""

from __future__ import annotations

import builtins

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.stages import STAGES


def test_help_has_the_stages_and_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and "make gpu DEVICE=cpu TINY=1" in text
    assert all(f"{stage.name} " in text for stage in STAGES)


def test_without_cuda_the_cpu_is_named(capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--part", "1"]) == 2
    assert "DEVICE=cpu TINY=1" in capsys.readouterr().err


def test_without_torch_its_python_is_named(capsys, monkeypatch):
    real = builtins.__import__

    def without_torch(name, *arguments, **options):
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    assert command.main(["--device", "cpu"]) == 2
    assert "torch cannot be imported by" in capsys.readouterr().err


def test_an_unknown_stage_is_named(capsys):
    assert command.main(["--stages", "speed"]) == 2
    assert "STAGES=speed: not known; allowed: environment" in capsys.readouterr().err


def test_every_unknown_part_of_a_run_is_named(capsys):
    assert command.main(["--stages", "project", "--runs", "vit_base:zero2+compile,vit:zero9+fast"]) == 2
    said = capsys.readouterr().err
    assert "--runs vit:zero9+fast: the model 'vit' is not known; allowed: vit_base, vit_huge" in said
    assert "the strategy 'zero9' is not known; allowed: single" in said
    assert "the extra 'fast' is not known; allowed: compile" in said
    assert "vit_base:zero2+compile" not in said
