"""NVML is asked beside the loop (a stand-in answers), and what other processes took of a machine, by hand."""

import logging
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from trainer.distributed.world import World
from trainer.measuring.hardware import (
    NAMES,
    SAMPLED,
    TICKS_PER_S,
    MachineLoad,
    Meter,
    Sampler,
    open_sampler,
    read_tree_s,
    read_waited_s,
    sum_up_load,
)
from trainer.measuring.memory import TrainingMemory, open_counters
from trainer.measuring.phases import Phases


class Nvml:
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVMLError = LookupError

    def __init__(self, **changed: object) -> None:
        answers = {
            "Init": None, "DeviceGetHandleByUUID": "handle",
            "DeviceGetUtilizationRates": SimpleNamespace(gpu=50, memory=20), "DeviceGetTemperature": 60,
            "DeviceGetPowerUsage": 412_500, "DeviceGetClockInfo": 1755,
            "DeviceGetEnforcedPowerLimit": 700_000, "DeviceGetCurrentClocksThrottleReasons": 0,
        }  # fmt: skip
        for name, answer in (answers | changed).items():
            setattr(self, f"nvml{name}", lambda *asked, name=name, answer=answer: self._tell(asked, answer))
        self.asked: list[object] = []

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[kind]

    def _tell(self, asked, answer):
        self.asked += asked
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_units_limits_and_what_a_gpu_does_not_tell():
    one = Sampler(Nvml(), "handle", 0.005)
    one.start()
    deadline = time.monotonic() + 10
    while math.isnan((found := one.take())[1]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    one.stop()
    assert found == [50, 60, 412.5, 1755]
    assert one.describe() == {
        "power_limit_w": 700, "clock_limit_mhz": 1980, "memory_clock_limit_mhz": 2619,
        "highest_clock_mhz": 1755, "slowed_pct": 0,
    }  # fmt: skip
    slice_of_one = Sampler(Nvml(DeviceGetUtilizationRates=LookupError("Not Supported")), "handle")
    found = slice_of_one._ask(SAMPLED.values())
    assert math.isnan(found[0]) and found[1:] == [60, 412.5, 1755]
    assert slice_of_one.describe()["slowed_pct"] is None, "nothing was asked yet"


@pytest.mark.parametrize(("reasons", "slowed_pct"), [(0x20, 100), (0x80, 100), (0x4, 0), (0x44, 100)])
def test_heat_and_a_power_brake_slow_a_gpu_and_its_own_power_cap_does_not(reasons, slowed_pct):
    one = Sampler(Nvml(DeviceGetCurrentClocksThrottleReasons=reasons), "handle")
    for clock in (math.nan, 1200.0, 1755.0, 1500.0):
        one._watch([50.0, 60.0, 400.0, clock])
    found = one.describe()
    assert (found["slowed_pct"], found["highest_clock_mhz"]) == (slowed_pct, 1755)


def test_the_gpu_is_found_by_its_uuid_and_without_a_driver_there_are_no_numbers(monkeypatch, caplog):
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-12"))
    opened = open_sampler("cuda:1")
    assert opened is not None and nvml.asked[0] == "GPU-ab-12"
    opened.stop()
    for module in (None, Nvml(Init=LookupError("Driver Not Loaded"))):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        with caplog.at_level(logging.WARNING, "trainer"):
            assert open_sampler("cuda:0") is None
    assert len(caplog.records) == 2 and "Driver Not Loaded" in caplog.text


def meter_of(world: World) -> Meter:
    return Meter(world, TrainingMemory(open_counters(world), Phases("cpu"), 1, 10))


def test_on_a_cpu_only_the_host_s_memory_is_known():
    meter = meter_of(World(0, 0, 1, 1, "cpu", "cpu", "a processor", "here"))
    found = dict(zip(NAMES, meter.read(), strict=True))
    assert meter.describe() is None
    meter.close()
    assert found.pop("host_memory_gib") == pytest.approx(psutil.Process().memory_info().rss / 2**30, rel=0.05)
    assert len(found) == 7 and all(math.isnan(value) for value in found.values())


def rank(host: str, own_s: float, busy_s: float | None, pressure: float | None = None) -> dict[str, Any]:
    machine = {"cores": 4.0, "seconds": 10.0, "own_cpu_s": own_s, "busy_cpu_s": busy_s}
    return {"host": host, "machine": machine | {"cpu_pressure_pct": pressure}}


def test_what_ranks_of_one_machine_took_is_theirs() -> None:
    busy = [rank("a", 10.0, 24.0), rank("a", 6.0, 24.5), rank("b", 9.0, 10.0)]
    assert sum_up_load(busy) == {"cpu_pressure_pct": None, "other_cpu_pct": pytest.approx(20.0)}
    assert sum_up_load([rank("a", 10.0, 9.0)])["other_cpu_pct"] == 0.0, "two clocks that are read one by one"
    assert sum_up_load([rank("a", 1.0, None)])["other_cpu_pct"] is None
    busy[0]["machine"]["run_cpu_s"] = 20.0  # launcher and MLflow server of a rehearsal took 4 s
    assert sum_up_load(busy[:2])["other_cpu_pct"] == pytest.approx(10.0)
    pressed = [rank("a", 1.0, None, 3.0), rank("b", 1.0, None, 30.0), rank("c", 1.0, None)]
    assert sum_up_load(pressed)["cpu_pressure_pct"] == 30.0


def test_the_load_is_that_of_the_timed_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressure, now = tmp_path / "cpu.pressure", 1000.0
    monkeypatch.setattr("trainer.measuring.hardware.time.time", lambda: now)
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    load = MachineLoad(tmp_path / "no stat", pressure)
    waited_us = 0
    for second in range(1, 11):
        now = 1000.0 + second
        waited_us += 0 if 4 <= second <= 6 else 500_000
        pressure.write_text(f"some avg10=0.00 total={waited_us}\nfull avg10=0.00 total=7\n")
        for _ in range(3):
            load.sample()
    assert load.describe((1003.0, 1006.0))["cpu_pressure_pct"] == 0.0
    assert load.describe((1002.5, 1006.0))["cpu_pressure_pct"] == pytest.approx(100 * 0.5 / 4)
    whole = load.describe()
    assert (whole["seconds"], whole["cpu_pressure_pct"]) == (10.0, pytest.approx(35.0))
    pressure.unlink()
    assert math.isnan(read_waited_s(pressure))


def test_a_tree_of_processes_is_summed(tmp_path: Path) -> None:
    """Root 5 with a child 6 and its child 7; 8 is another program."""
    for pid, parent, name in ((5, 1, "a b) c"), (6, 5, "b"), (7, 6, "c"), (8, 1, "d")):
        (tmp_path / str(pid)).mkdir()
        times = " ".join(str(TICKS_PER_S * number) for number in (pid, 1, 2, 3))
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {'0 ' * 9}{times} 20 0")
    (tmp_path / "9").mkdir()
    assert read_tree_s(5, tmp_path) == pytest.approx(5 + 6 + 7 + 3 * 6)
    assert math.isnan(read_tree_s(9, tmp_path))
    assert read_tree_s(os.getpid()) > 0.1
