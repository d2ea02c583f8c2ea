"""The device's allocator of a rank on a CPU: a stand-in, so that the check that a GPU's run makes is made here.

    a run on a GPU   torch's CUDA allocator ─▶ counters ─▶ the run's own windows, census, summary
    here             StorageWatch, on real tensors ─▶ the same counters ─▶ the same code

It is the tracker of `python -m trainer.count`, which sees every operator, entered where the engine is built: sizes in
blocks of 512 bytes, as that allocator gives them out. It stands in for `max_memory_allocated`, and for nothing else:
context, workspaces and what kernels take inside are on no CPU.
"""

from typing import Any

from trainer.measuring.memory import MemoryReading
from trainer.memory_estimation.causes import attribute_state
from trainer.memory_estimation.steps import BLOCK_BYTES
from trainer.memory_estimation.storages import StorageWatch
from trainer.memory_estimation.timeline import Storage, Timeline


class Total(Timeline):
    """How much is held, and was at most; no history."""

    held = 0
    peak = 0

    def resize(self, storage: Storage, size: int) -> None:
        blocks = -(-size // self.block_bytes) * self.block_bytes
        self.held += blocks - storage.size
        self.peak = max(self.peak, self.held)
        storage.size = blocks


class StorageCounters:
    """As those of a device (trainer/measuring/memory.py), of all storages of this process's main thread."""

    source = "storages that operators make: a stand-in for a device's allocator"
    on_device = True

    def __init__(self) -> None:
        self.total = Total(BLOCK_BYTES)
        self.watch = StorageWatch(BLOCK_BYTES)
        self.watch.timeline = self.total

    def begin(self) -> None:
        self.watch.__enter__()

    def take_up(self, engine: Any) -> None:
        """What the engine holds and was made before; its last training step lies before its first evaluation."""
        attribute_state(self.watch, engine)
        engine.observed.on_host = _Nothing()
        evaluate, follows = engine.evaluate, [self.watch]

        def end(*given: Any) -> Any:
            while follows:
                follows.pop().__exit__(None, None, None)
            return evaluate(*given)

        engine.evaluate = end

    def read(self) -> MemoryReading:
        return MemoryReading(self.total.held, self.total.peak, self.total.held, self.total.peak, 0)

    def reset(self) -> None:
        self.total.peak = self.total.held

    def count_retries(self) -> int:
        return 0

    def count_outside(self) -> None:
        return None


class _Nothing(dict[str, int]):
    """Of the state is in the host's memory: this memory stands for a device's."""

    def __setitem__(self, kind: str, size: int) -> None:
        pass
