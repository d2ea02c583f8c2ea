"""What training holds at most and when, by allocators of a test and by this process; and the phases of a step."""

import mmap
import time

import pytest

from trainer.measuring.held_tensors import GIB, Observed
from trainer.measuring.memory import HostCounters, MemoryReading, TrainingMemory, peak_host_memory_gib
from trainer.measuring.phases import Phases, read_ms

MIB = 2**20


class Allocator:
    """Counters as a device's, of what a test takes and gives back."""

    source = "a test"
    on_device = True

    def __init__(self):
        self.held = self.peak = 0
        self.retries = self.asked = 0

    def take(self, size):
        self.held += size
        self.peak = max(self.peak, self.held)

    def use(self, size):
        self.take(size)
        self.held -= size

    def read(self):
        self.asked += 1
        return MemoryReading(self.held, self.peak, self.held, 2 * self.peak, self.retries)

    def reset(self):
        self.asked += 1
        self.peak = self.held

    def count_retries(self):
        return self.retries

    def count_outside(self):
        return 640 << 20


class Training:
    """Steps with phases, as the loop and an engine take them; a write every `log_every` steps."""

    def __init__(self, first=1, last=100, log_every=4, census=None):
        self.allocator, self.phases, self.log_every = Allocator(), Phases("cpu"), log_every
        self.memory = TrainingMemory(self.allocator, self.phases, first, last, self if census else None)
        self.census, self.looked, self.noted = census, 0, []
        self.step = first - 1

    def note_gradients(self):
        self.noted.append(self.step)

    def take(self):
        self.looked += 1
        self.allocator.use(7000)  # what it compares with
        return dict(self.census)

    def run(self, steps, forward=30, backward=40, optimizer=10):
        for _ in range(steps):
            self.step += 1
            self.memory.begin_step(self.step)
            with self.phases.begin_step(self.step):
                for phase, size in ((self.phases.forward, forward), (self.phases.backward, backward)):
                    with phase:
                        self.allocator.use(size)
                with self.phases.optimizer:
                    self.allocator.use(optimizer)
            if self.step % self.log_every == 0:
                self.memory.end_window()

    def describe(self, observed=None, data_set=0, micro_batches=1):
        return self.memory.describe(observed or Observed(), data_set, micro_batches)


def test_the_peak_is_that_of_the_steps_behind_the_warm_up():
    training = Training()
    training.run(5, backward=1000)
    training.run(11)
    assert training.memory._peak == 40
    assert training.describe()["from_step"] == 6 and training.describe()["to_step"] == 16


def test_what_comes_behind_a_write_counts_for_nothing():
    training = Training()
    training.run(13)
    training.memory.end_window()  # in the middle of a window: the loop writes before it evaluates
    training.allocator.use(5000)  # evaluation, checkpoint, export
    training.allocator.retries += 3
    training.memory.end_window()  # a second write in a row, as that of a checkpoint
    training.run(7)
    assert training.memory._peak == 40
    assert training.describe()["alloc_retries"] == 0 and training.describe()["outside_gib"] == 0.625
    assert training.describe()["kept_gib"] is None, "nobody looks for copies"


def test_the_reserve_of_training_is_the_largest_that_was_read():
    """The test's allocator reserves twice what is held at most; step 6 is taken apart, 7 and 8 are not."""
    training = Training()
    training.run(6)
    assert training.describe() is None, "no write yet"
    training.run(2, backward=35)
    assert training.describe()["reserved_gib"] * GIB == pytest.approx(2 * 40), "seen at a phase's border"
    training.run(4, backward=60)
    assert training.describe()["reserved_gib"] * GIB == pytest.approx(2 * 60), "seen at a write"


def test_retries_of_training_are_counted():
    training = Training()
    training.allocator.retries = 7  # while the model was built
    training.run(9)
    training.allocator.retries += 2  # inside of steps: no write in between
    asked = training.allocator.asked
    training.run(2)
    assert training.allocator.asked == asked, "nothing is asked between the writes"
    training.run(1)
    assert training.describe()["alloc_retries"] == 2


def test_the_moment_of_the_peak_has_its_phase():
    training = Training()
    training.allocator.take(100)
    training.run(16)
    found = training.describe()
    assert found["peak_phase"] == "backward" and found["phases_step"] == 6
    phases = {name: size * GIB for name, size in found["phases_gib"].items()}
    assert phases == pytest.approx({"between": 100, "forward": 130, "backward": 140, "optimizer": 110})
    assert found["peak_gib"] * GIB == pytest.approx(140) and found["peak_steps"] == [6, 8]


def test_short_runs_and_later_attempts_count_their_last_step():
    training = Training(first=41, last=42, log_every=100)
    training.run(1, forward=500)
    training.run(1)
    training.memory.end_window()
    assert training.memory._peak == 40 and training.describe()["from_step"] == 42
    nothing = Training()
    nothing.run(2)
    nothing.memory.end_window()
    assert nothing.memory._peak == 0 and nothing.describe() is None


def test_what_holds_the_peak_adds_up_to_it():
    observed = Observed(
        bytes_held={"parameters": 20, "gradients": 10, "optimizer": 35, "buckets": 5},
        on_host={"parameters": 0, "gradients": 0, "optimizer": 30, "buckets": 0},
    )

    def held(forward, micro_batches):
        training = Training()
        training.allocator.take(60)
        training.run(8, forward=forward)
        found = training.describe(observed, data_set=3, micro_batches=micro_batches)
        assert sum(found["held_gib"].values()) == pytest.approx(found["peak_gib"])
        return {name: round(size * GIB) for name, size in found["held_gib"].items()}

    state = {"data_set": 3, "parameters": 20, "optimizer": 5}  # the rest of the optimizer is offloaded
    assert held(0, 1) == state | {"gradients": 10, "buckets": 5, "rest": 100 - 43}
    assert held(90, 1) == state | {"rest": 150 - 28}, "no gradients in the only forward pass"
    assert held(90, 2) == state | {"gradients": 10, "buckets": 5, "rest": 150 - 43}


def test_who_looks_for_copies_is_asked_once_and_counts_for_nothing():
    training = Training(log_every=6, census={"parameters": 20})  # taken apart at the end of a window
    training.run(14)
    training.memory.end_window()
    found = training.describe(Observed(bytes_held={"parameters": 20, "gradients": 10}))
    assert training.looked == 1 and training.noted == [6] and training.memory._peak == 40
    assert found["kept_gib"] == pytest.approx({"parameters": 20 / GIB})
    assert found["state_gib"] == pytest.approx({"parameters": 20 / GIB, "gradients": 10 / GIB})


def touch(size):
    """Pages of the process's own, given back at once."""
    with mmap.mmap(-1, size) as pages:
        for at in range(0, size, mmap.PAGESIZE):
            pages[at] = 1


def test_on_a_cpu_the_process_s_own_peak_is_set_back():
    counters = HostCounters()
    touch(100 * MIB)
    whole = peak_host_memory_gib(counters)
    before = counters.read()
    counters.reset()
    after = counters.read()
    assert before.peak - after.peak > 80 * MIB
    assert abs(after.peak - after.held) < 20 * MIB
    touch(50 * MIB)
    assert 40 * MIB < counters.read().peak - after.peak < 60 * MIB
    assert peak_host_memory_gib(counters) == pytest.approx(whole, rel=0.02), "the process keeps its peak"


def test_a_phase_adds_up_over_the_micro_batches_and_starts_anew():
    phases = Phases("cpu")
    with phases.begin_step(1):
        for _ in range(3):
            with phases.forward:
                time.sleep(0.002)
    step, data, forward, backward, optimizer = read_ms(phases.take())
    assert 6 <= forward <= step < 100 and data == backward == optimizer == 0
    assert read_ms(phases.take()) == (0, 0, 0, 0, 0)
