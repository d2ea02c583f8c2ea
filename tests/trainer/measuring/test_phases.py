from __future__ import annotations

import time

import torch

from trainer.measuring.phases import DevicePhase, Phases, read_ms


def test_a_phase_adds_up_over_the_micro_batches_and_starts_anew():
    phases = Phases("cpu")
    with phases.begin_step(1):
        for _ in range(3):
            with phases.forward:
                time.sleep(0.002)
    step, data, forward, backward, optimizer = read_ms(phases.take())
    assert 6 <= forward <= step < 100 and data == backward == optimizer == 0
    assert read_ms(phases.take()) == (0, 0, 0, 0, 0)


def test_labels_are_in_the_trace_only_while_recording():
    phases = Phases("cpu")
    found = []
    for recording in (False, True):
        phases.record(recording)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with phases.begin_step(7), phases.optimizer:
                torch.ones(2)
        found.append(sorted(event.name for event in profile.events() if event.name.startswith("##")))
    assert found == [[], ["## Optimizer Step ##", "## Training Step 7 ##"]]


def test_on_a_device_a_phase_is_a_pair_of_events_per_entry(monkeypatch):
    """The events are stand-ins: no device here. What is tested is which pairs are read, and when."""

    class Event:
        clock = 0.0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.clock += 2.5
            self.at = Event.clock

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    monkeypatch.setattr(torch, "Event", Event)
    phases = Phases("cuda")
    assert isinstance(phases.forward, DevicePhase)
    with phases.begin_step(1):
        for _ in range(2):
            with phases.forward:
                pass
    step, _, forward, *_ = read_ms(phases.take())
    assert (forward, step) == (5.0, 12.5)
    assert read_ms(phases.take()) == (0, 0, 0, 0, 0)
