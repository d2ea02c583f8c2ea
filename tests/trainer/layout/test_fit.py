"""A state that no device holds is refused before anything starts, with the setting that would make it fit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratlab_spec.memory.fit import GIB, fit_problems, largest_device_bytes
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.launch import preflight

# 3,085,938,688 parameters x 16 bytes: weights and gradients in fp32, AdamW's two moments
WHOLE_GIB = 3_085_938_688 * 16 / GIB


def problems(world_size: int, device_gib: float | None, **settings: object) -> list[str]:
    sizes = {"global_batch_size": 64, "micro_batch_size": 1, "model": "qwen2.5-3b"}
    config = Config(**{"run": "try", "strategy": "nd"} | sizes | settings)
    device_bytes = None if device_gib is None else int(device_gib * GIB)
    return [*fit_problems(config, world_size, read_shape(config), device_bytes)]


@pytest.mark.parametrize(
    ("processes", "device_gib", "settings", "named"),
    [
        (8, 40, {}, ("TRAINER_STRATEGY=nd, dp8x1", "46.0 GiB", "40.0 GiB", "fsdp", "5.7 GiB")),
        (8, WHOLE_GIB - 0.01, {}, ()),
        (1, 40, {"strategy": "ddp"}, ("TRAINER_STRATEGY=ddp:", "at least 2", "TRAINER_LORA_RANK=16")),
        (2, 20, {"dimensions": 2, "global_batch_size": 8}, ("pp2", "at least 3")),  # its fullest process
    ],
)
def test_what_does_not_fit_is_refused(processes, device_gib, settings, named) -> None:
    (found,) = problems(processes, device_gib, **settings)
    assert find_codes(found) == ["SL-state-over-device"] and all(name in found for name in named), found


def test_what_shares_or_holds_less_fits() -> None:
    assert problems(8, WHOLE_GIB + 0.01) == problems(8, None) == []
    sgd = {"optimizer": "sgd"}  # 8 bytes for each parameter
    for settings in ({"dimensions": 2}, {"lora_rank": 16}, sgd, {"strategy": "fsdp"}, {"mode": "evaluate"}):
        assert problems(8, 40, **settings) == []


def test_the_check_before_the_ranks_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what NVML would say: the tiny model's 0.002 GiB on a device of 1 MiB."""
    monkeypatch.setattr(preflight, "largest_device_bytes", lambda: 1 << 20)
    settings = {"model": "qwen_tiny", "dataset": "arithmetic", "train_samples": 64, "seq_len": 128}
    config = Config(run="try", strategy="nd", results=str(tmp_path), micro_batch_size=1, **settings)
    with pytest.raises(ConfigError) as refused:
        preflight.check(config, 8, {"PET_NPROC_PER_NODE": "8"})
    assert "SL-state-over-device" in find_codes(refused.value)
    assert not [*tmp_path.iterdir()], "nothing was tokenised"


class Nvml:
    """The library of a driver with one H100: with its newer answer, or with the old one alone."""

    nvmlMemory_v2 = 2
    NVMLError = RuntimeError

    def __init__(self, knows_reserved: bool) -> None:
        self._knows_reserved = knows_reserved

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> SimpleNamespace:
        if version and not self._knows_reserved:
            raise self.NVMLError("Function Not Found")
        found = SimpleNamespace(total=85_520_809_984)
        return SimpleNamespace(**vars(found), reserved=503_316_480) if version else found


@pytest.mark.parametrize(
    ("nvml", "usable"), [(Nvml(True), 85_017_493_504), (Nvml(False), 85_520_809_984), (None, None)]
)
def test_what_the_driver_keeps_is_nobody_s(nvml: Nvml | None, usable: int | None, monkeypatch) -> None:
    """Figures of an H100; torch saw 85,017,493,504 bytes there."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert largest_device_bytes() == usable
