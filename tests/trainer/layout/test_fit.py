"""What does not fit a device: a state is refused before anything starts, with the setting that would make it fit; of
layouts `auto` leaves out what exceeds it."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory.fit import (
    STATE,
    Choice,
    Need,
    as_laid_out,
    choose_layout,
    choose_on_device,
    fit_problems,
    largest_device_bytes,
    list_candidates,
    measure_needs,
)
from stratlab_spec.memory.layout_report import main
from stratlab_spec.memory.profiles import FOLDER, GIB
from stratlab_spec.models.decoder_config import SHAPES, read_shape
from stratlab_spec.plan import resolve_plan
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.launch import preflight

# 3,085,938,688 parameters x 16 bytes: weights and gradients in fp32, AdamW's two moments
WHOLE_GIB = 3_085_938_688 * 16 / GIB


def problems(world_size: int, device_gib: float | None, **settings: object) -> list[str]:
    sizes = {"global_batch_size": 64, "micro_batch_size": 1, "model": "qwen2.5-3b"}
    config = Config(**{"run": "try", "strategy": "nd"} | sizes | settings)
    device_bytes = None if device_gib is None else int(device_gib * GIB)
    shape = read_shape(config)
    is_nd = config.strategy == "nd"
    layout = choose_on_device(config, world_size, shape, device_bytes).layout if is_nd else None
    return [*fit_problems(config, world_size, shape, device_bytes, layout)]


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


def test_the_check_before_the_ranks_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what NVML would say: the tiny model's 0.002 GiB on a device of 1 MiB."""
    monkeypatch.setattr(preflight, "largest_device_bytes", lambda: 1 << 20)
    settings = {"model": "qwen_tiny", "dataset": "arithmetic", "train_samples": 64, "seq_len": 128}
    config = Config(run="try", strategy="nd", results=str(tmp_path), micro_batch_size=1, **settings)
    with pytest.raises(ConfigError) as refused:
        preflight.check(config, 8, {"PET_NPROC_PER_NODE": "8"})
    assert "SL-state-over-device" in find_codes(refused.value)
    assert not [*tmp_path.iterdir()], "nothing was tokenised"


def nvml(knows_reserved: bool) -> Mock:
    """The library of a driver with one H100: with its newer answer, or with the old one alone."""
    old = SimpleNamespace(total=85_520_809_984)
    new = SimpleNamespace(total=85_520_809_984, reserved=503_316_480)

    def tell(handle: int, version: int | None = None) -> SimpleNamespace:
        if version and not knows_reserved:
            raise RuntimeError("Function Not Found")
        return new if version else old

    told = {"nvmlDeviceGetCount.return_value": 1, "nvmlDeviceGetMemoryInfo.side_effect": tell}
    return Mock(nvmlMemory_v2=2, NVMLError=RuntimeError, **told)


@pytest.mark.parametrize(
    ("driver", "usable"), [(nvml(True), 85_017_493_504), (nvml(False), 85_520_809_984), (None, None)]
)
def test_what_the_driver_keeps_is_nobody_s(driver, usable, monkeypatch):
    """Figures of an H100; torch saw 85,017,493,504 bytes there."""
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert largest_device_bytes() == usable


DENSE, MOE = "qwen2.5-3b", "qwen3-30b-a3b"
COUNTED = {"precision": "bf16", "seq_len": 2048, "micro_batch_size": 1, "global_batch_size": 64}
COUNTS = Path(__file__).with_name("data")
"""An operations file."""
FIRST_GIB = 25.58
"""Of pp2.dp4, by the file of two dimensions in COUNTS."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copytree(COUNTS, tmp_path / FOLDER)
    return tmp_path


def config(results: Path | str = "/nowhere", model: str = DENSE, **settings: object) -> Config:
    own = {"run": "try", "strategy": "nd", "model": model, "results": str(results), "dimensions": 2}
    return Config(**own | COUNTED | settings)


def names(processes: int, model: str = DENSE, **settings: object) -> list[str]:
    asked = config(model=model, **{"global_batch_size": 384} | settings)
    return [layout.name for layout in list_candidates(asked, processes, SHAPES[model])]


def needs(asked: Config, processes: int = 8) -> list[Need]:
    return [*measure_needs(asked, processes, SHAPES[asked.model])]


def choose(asked: Config, device_gib: float) -> Choice:
    return choose_layout(needs(asked), device_gib * GIB)


def test_the_candidates_keep_what_the_dimensions_promise():
    assert names(8, dimensions=1) == ["dp8x1"]
    assert names(8) == ["pp2.dp4", "pp4.dp2"], "pp8 would leave no data parallelism"
    assert names(12) == ["pp2.dp6", "pp3.dp4", "pp4.dp3", "pp6.dp2"]
    assert names(16, dimensions=3) == ["pp2.dp4.tp2", "pp4.dp2.tp2"], "two key-value heads"
    assert names(16, dimensions=4) == ["pp2.dp2.cp2.tp2+sp", "pp2.dp4.tp2+sp", "pp4.dp2.tp2+sp"]
    assert names(16, MOE, dimensions=5)[0] == "pp2.dp2.cp2.tp2+sp.ep8"
    assert names(2) == ["pp2"], "what the first one lacks the others may lack"
    assert names(8, layout="given", pp=4) == ["pp4.dp2"]


def test_what_does_not_fit_is_left_out_and_the_reason_names_it(results: Path):
    asked, shape = config(results), SHAPES[DENSE]
    plain = resolve_layout(asked, 8, shape)
    assert choose(asked, FIRST_GIB + 0.01).layout == plain == choose_on_device(asked, 8, shape, None).layout
    choice = choose(asked, FIRST_GIB - 0.01)
    assert choice.fits and choice.layout.name == "pp4.dp2" and not choice.layout.degenerate
    for named in ("25.57 GiB", "pp2.dp4", "25.58 GiB", "activations 7.95", "qwen2.5-3b-nd-2d-8.json"):
        assert named in choice.layout.reason
    given = config(results, layout="given", pp=2)
    assert choose_on_device(given, 8, shape, 1 << 20).layout == resolve_layout(given, 8, shape)


def test_without_a_file_the_state_decides(tmp_path: Path):
    asked = config(tmp_path, reduce_dtype="bf16")
    assert [(need.source, round(need.gib, 2)) for need in needs(asked)] == [(STATE, 6.33), (STATE, 7.49)]
    assert choose(asked, 6.4).layout.name == "pp2.dp4"
    none = choose(asked, 6.0)
    assert not none.fits and none.layout.name == "pp2.dp4", "the one that needs least"
    assert choose(config(tmp_path, memory_forecast=False), 7.0).need.source == STATE


def test_the_plan_follows_from_the_memory_of_the_machine(results: Path):
    asked = config(results)
    first, other = (resolve_plan(asked, 8, 8, 100, memory) for memory in (None, int((FIRST_GIB - 1) * GIB)))
    assert (first.axes.pp, other.axes.pp) == (2, 4)
    laid_out = as_laid_out(asked, other.layout)
    assert (laid_out.pp, laid_out.layout) == (4, "given") and as_laid_out(asked, first.layout) is asked


COMMAND = ["--model", DENSE, "--processes", "8", "--dimensions", "2", "seq_len=2048", "precision=bf16"]


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--operations", str(COUNTS), "--device-gib", "6"], "SL-layout-none-fits", ("22.71 GiB", "pp4.dp2")),
        (["--dimensions", "1", "--device-gib", "40"], "SL-layout-none-fits", ("dp8x1", "60.17 GiB")),
        (["--device-gib", "0"], "SL-layout-device-gib", ("'0'",)),
        (["--processes", "0"], "SL-layout-number", ("'0'",)),
        (["--operations", "/not/there"], "SL-layout-operations-folder", ("/not/there",)),
    ],
)
def test_the_command_refuses(capsys, options, code, named):
    try:
        ended = main([*COMMAND, *options])
    except SystemExit as stopped:
        ended = stopped.code
    told = capsys.readouterr().err
    assert ended == 2 and find_codes(told) == [code] and all(name in told for name in named)
