"""NVML is asked beside the loop. No GPU here: a stand-in for pynvml answers."""

from __future__ import annotations

import logging
import math
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from trainer.layout.world import World
from trainer.measuring.gpu import NAMES, NVML_NAMES, Meter, Sampler, open_sampler
from trainer.measuring.memory_counters import open_counters
from trainer.measuring.phases import Phases
from trainer.measuring.training_memory import TrainingMemory


class NvmlStandIn:
    """pynvml as far as it is used."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    reasons = 0

    class NVMLError(Exception):
        pass

    def __init__(self, missing: str = "", broken: bool = False) -> None:
        self.missing, self.broken, self.asked = missing, broken, []

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked.append(uuid)
        return uuid

    def _answer(self, name, value):
        if name == self.missing:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._answer("utilisation", SimpleNamespace(gpu=50, memory=20))

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return self._answer("temperature", 60)

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._answer("power", 412_500)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._answer("clock", {self.NVML_CLOCK_SM: 1755}[kind])

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return self._answer("limit", {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[kind])

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return self._answer("power limit", 700_000)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._answer("reasons", self.reasons)


@pytest.fixture
def sampler():
    started = []

    def start(nvml, every_s=0.005):
        started.append(Sampler(nvml, "GPU-1", every_s))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def wait_for_a_sample(one: Sampler) -> list[float]:
    deadline = time.monotonic() + 10
    while math.isnan((found := one.take())[1]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def test_units_and_what_a_gpu_does_not_tell(sampler):
    assert wait_for_a_sample(sampler(NvmlStandIn())) == [50, 60, 412.5, 1755]
    slice_of_one = wait_for_a_sample(sampler(NvmlStandIn(missing="utilisation")))
    assert math.isnan(slice_of_one[0]) and slice_of_one[1:] == [60, 412.5, 1755]


def test_what_the_gpu_was_allowed_and_how_fast_it_was_seen(sampler):
    one = sampler(NvmlStandIn())
    wait_for_a_sample(one)
    assert one.describe() == {
        "power_limit_w": 700,
        "clock_limit_mhz": 1980,
        "memory_clock_limit_mhz": 2619,
        "highest_clock_mhz": 1755,
        "slowed_pct": 0,
    }
    unknown = Sampler(NvmlStandIn(missing="limit"), "GPU-1").describe()
    assert unknown == dict.fromkeys(unknown) | {"power_limit_w": 700}


@pytest.mark.parametrize(
    ("reasons", "slowed_pct"),
    [(0x20, 100), (0x80, 100), (0x4, 0), (0x44, 100)],
)
def test_heat_and_a_power_brake_slow_a_gpu_and_its_own_power_cap_does_not(reasons, slowed_pct):
    nvml = NvmlStandIn()
    nvml.reasons = reasons
    one = Sampler(nvml, "GPU-1")
    for clock in (math.nan, 1200.0, 1755.0, 1500.0):
        one._watch([50.0, 60.0, 400.0, clock])
    found = one.describe()
    assert (found["slowed_pct"], found["highest_clock_mhz"]) == (slowed_pct, 1755)


def test_means_since_the_last_time():
    one = Sampler(NvmlStandIn(), "GPU-1")
    assert all(math.isnan(x) for x in one.take())
    one._samples += [[10, 50, 100, 1200], [30, 50, 200, 1400]]
    assert one.take() == [20, 50, 150, 1300] == one.take()


def test_the_gpu_is_found_by_its_uuid(monkeypatch):
    nvml = NvmlStandIn()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-12"))
    opened = open_sampler("cuda:1")
    assert opened is not None and nvml.asked == ["GPU-ab-12"]
    opened.stop()


def test_without_a_driver_there_are_no_numbers(monkeypatch, caplog):
    for module in (None, NvmlStandIn(broken=True)):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        with caplog.at_level(logging.WARNING, "trainer"):
            assert open_sampler("cuda:0") is None
    assert len(caplog.records) == 2 and "Driver Not Loaded" in caplog.text


def cpu_world() -> World:
    return World(0, 0, 1, 1, "cpu", "cpu", "a processor", "here")


def meter_of(world: World) -> Meter:
    return Meter(world, TrainingMemory(open_counters(world), Phases("cpu"), 1, 10))


def test_on_a_cpu_only_the_host_s_memory_is_known():
    meter = meter_of(cpu_world())
    found = dict(zip(NAMES, meter.read(), strict=True))
    assert meter.describe() is None
    meter.close()
    assert found.pop("host_memory_gib") == pytest.approx(psutil.Process().memory_info().rss / 2**30, rel=0.05)
    assert len(found) == 7 and all(math.isnan(value) for value in found.values())


def test_device_memory_is_torch_s_own_count(monkeypatch):
    stats = {  # as torch gives it, in part
        "allocated_bytes": {"all": {"current": 2**30, "peak": 3 * 2**30}},
        "reserved_bytes": {"all": {"current": 4 * 2**30, "peak": 5 * 2**30}},
        "num_alloc_retries": 0,
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr("trainer.measuring.gpu.open_sampler", lambda device: None)
    meter = meter_of(World(0, 0, 1, 1, "cuda", "cuda:0", "H200", "here"))
    found = dict(zip(NAMES, meter.read(), strict=True))
    meter.close()
    assert (found["memory_allocated_gib"], found["memory_reserved_gib"], found["memory_peak_gib"]) == (
        1,
        4,
        3,
    )
    assert all(math.isnan(found[name]) for name in NVML_NAMES)
