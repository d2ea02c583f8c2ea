"""What is visible is told from what was asked for, without torch."""

from __future__ import annotations

import re

import pytest

from trainer import failures
from trainer.failures import AcceleratorsMissing
from trainer.launch import visibility as accelerators
from trainer.launch.visibility import check, find_torch_cuda, main

GPU = "nvidia.com/gpu"
SEEN = {
    "nothing is visible": ("print(0, 13000)", {}, "13.0", "none visible"),
    "fewer than processes": ("print(1, 13000)", {}, "13.0", "1 visible"),
    "a broken driver": (
        "raise SystemExit('the driver fails: unknown error (CUDA error 999)')",
        {},
        "13.0",
        "CUDA error 999",
    ),
    "a driver that crashes": ("import os; os.abort()", {}, "13.0", "ended with -6"),
    "a driver that hangs": ("import time; time.sleep(60)", {}, "13.0", "the driver has not answered for 1 s"),
    "an old driver": (
        "print(2, 12040)",
        {},
        "13.0",
        "the node's driver knows CUDA 12.4 and torch needs 13.0",
    ),
    "an image for CPUs": (
        "print(2, 13000)",
        {"STRATLAB_VARIANT": "cpu"},
        "13.0",
        "this image is the variant for CPUs",
    ),
    "torch without CUDA": ("print(2, 13000)", {}, "", "the torch of this image is built without CUDA"),
}


@pytest.mark.parametrize("case", SEEN)
def test_what_is_not_there_is_refused_with_what_helps(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, env, cuda, sentence = SEEN[case]
    monkeypatch.setattr(accelerators, "PROBE", probe)
    monkeypatch.setattr(accelerators, "ANSWER_S", 1.0)
    monkeypatch.setattr(accelerators, "find_torch_cuda", lambda: cuda)
    with pytest.raises(AcceleratorsMissing) as refusal:
        check(GPU, 2, env)
    text = str(refusal.value)
    assert text.startswith("run.accelerator=nvidia.com/gpu: asked for 2 in this pod, one per process, but ")
    assert sentence in text and 'run.accelerator=""' in text
    assert failures.exit_code(refusal.value) == 4 < 128


@pytest.mark.parametrize("probe", ["print(2, 13000)", "print(8, 13010)", "print(2, 14000)"])
def test_enough_of_them_are_enough(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "PROBE", probe)
    monkeypatch.setattr(accelerators, "find_torch_cuda", lambda: "13.0")
    check(GPU, 2, {"STRATLAB_VARIANT": "cuda"})


@pytest.mark.parametrize("asked", ["", "amd.com/gpu"])
def test_where_none_are_asked_for_nothing_is_looked_at(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another vendor are left to torch, in the rank."""
    monkeypatch.setattr(accelerators, "PROBE", "raise SystemExit('asked')")
    check(asked, 2, {"STRATLAB_VARIANT": "cpu"})


def test_the_probe_itself_says_that_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a driver and without one: CUDA is told to show nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(accelerators, "find_torch_cuda", lambda: "1.0")
    assert main([GPU, "1"]) == failures.ACCELERATORS_MISSING
    assert re.search("none visible|no driver library in this container", capsys.readouterr().err)
    assert main([]) == failures.BAD_CONFIG


def test_the_version_of_cuda_is_that_of_torch() -> None:
    import torch

    assert find_torch_cuda() == (torch.version.cuda or "")
