"""What the command says before anything is spent."""

from __future__ import annotations

import sys

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.stages import STAGES
from tests.codes import find_codes


def test_help_has_the_stages_and_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and "make gpu DEVICE=cpu TINY=1" in text
    assert all(f"{stage.name} " in text for stage in STAGES)


def test_what_cannot_start_is_told_by_its_code(capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runs = "vit_base:zero2+compile,vit:zero9+fast"
    for arguments, codes in (
        (["--part", "1"], ["SL-gpu-no-cuda"]),
        (["--stages", "speed"], ["SL-gpu-stage-unknown"]),
        (["--stages", "project", "--runs", runs], ["SL-gpu-run-unknown"] * 3),
    ):
        assert command.main(arguments) == 2
        assert find_codes(capsys.readouterr().err) == codes
    monkeypatch.setitem(sys.modules, "torch", None)
    assert command.main(["--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert find_codes(said) == ["SL-gpu-torch-missing"] and sys.executable in said
