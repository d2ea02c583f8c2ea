"""A state that no device holds is refused before anything starts, with the setting that would make it fit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.launch import preflight
from trainer.layout.fit import GIB, fit_problems, largest_device_bytes
from trainer.settings.config import Config, ConfigError
from trainer.shapes.decoder_json import read_shape

# 3,085,938,688 parameters x 16 bytes: weights and gradients in fp32, AdamW's two moments
WHOLE_GIB = 3_085_938_688 * 16 / GIB


def problems(world_size: int, device_gib: float, **settings: object) -> list[str]:
    sizes = {"global_batch_size": 64, "micro_batch_size": 1, "model": "qwen2.5-3b"}
    config = Config(**{"run": "try", "strategy": "nd"} | sizes | settings)
    return [*fit_problems(config, world_size, read_shape(config), int(device_gib * GIB))]


def test_plain_data_parallelism_that_does_not_fit_names_fsdp() -> None:
    assert problems(8, 40) == [
        "TRAINER_STRATEGY=nd, dp8x1: a process holds 46.0 GiB of weights, gradients and optimizer state of qwen2.5-3b, "
        "and its device has 40.0 GiB; TRAINER_STRATEGY=fsdp shares them out, 5.7 GiB for each of 8 processes"
    ]
    assert problems(8, WHOLE_GIB - 0.01) and not problems(8, WHOLE_GIB + 0.01)


@pytest.mark.parametrize("strategy", ["ddp", "single"])
def test_so_do_the_other_strategies_that_hold_the_whole_model(strategy: str) -> None:
    (found,) = problems(1, 40, strategy=strategy)
    assert found.startswith(f"TRAINER_STRATEGY={strategy}: a process holds 46.0 GiB")
    assert "over more processes, here at least 2, or train adapters alone: TRAINER_LORA_RANK=16" in found
    assert problems(1, 47, strategy=strategy) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"dimensions": 2},
        {"layout": "given", "dp_shard": 8},
        {"lora_rank": 16},
        {"optimizer": "sgd"},  # 8 bytes for each parameter
        {"strategy": "fsdp"},
        {"strategy": "zero3"},
        {"mode": "evaluate"},
    ],
)
def test_what_shares_or_holds_less_fits(settings: dict[str, object]) -> None:
    assert problems(8, 40, **settings) == []


def test_a_layout_is_judged_by_its_fullest_process() -> None:
    (found,) = problems(2, 20, dimensions=2, global_batch_size=8)
    assert found.startswith("TRAINER_STRATEGY=nd, pp2: a process holds 25.")
    assert "at least 3" in found  # 46 GiB over devices of 20


def test_an_unknown_device_says_nothing() -> None:
    config = Config(run="try", strategy="nd", model="qwen3-30b-a3b", global_batch_size=8, micro_batch_size=1)
    assert [*fit_problems(config, 8, read_shape(config), None)] == []


def test_the_check_before_the_ranks_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what NVML would say: the tiny model's 0.002 GiB on a device of 1 MiB."""
    monkeypatch.setattr(preflight, "largest_device_bytes", lambda: 1 << 20)
    settings = {"model": "qwen_tiny", "dataset": "arithmetic", "train_samples": 64, "seq_len": 128}
    config = Config(run="try", strategy="nd", results=str(tmp_path), micro_batch_size=1, **settings)
    with pytest.raises(ConfigError, match="TRAINER_STRATEGY=fsdp shares them out"):
        preflight.check(config, 8, {"PET_NPROC_PER_NODE": "8"})
    assert not [*tmp_path.iterdir()], "nothing was tokenised"


def test_without_a_driver_the_memory_is_unknown() -> None:
    nvml = pytest.importorskip("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        assert largest_device_bytes() is None
    else:
        assert (largest_device_bytes() or 0) > GIB


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


@pytest.mark.parametrize(("knows_reserved", "usable"), [(True, 85_017_493_504), (False, 85_520_809_984)])
def test_what_the_driver_keeps_is_nobody_s(knows_reserved: bool, usable: int, monkeypatch) -> None:
    """Figures of an H100; torch saw 85,017,493,504 bytes there."""
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(knows_reserved))
    assert largest_device_bytes() == usable
