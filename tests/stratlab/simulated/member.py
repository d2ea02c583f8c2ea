"""One simulated rank: its host's clock, its GPU's streams, and the text of what it has done since it was last asked."""

import json
from random import Random
from typing import NamedTuple

from tests.stratlab.simulated.kineto_text import (
    BACKWARD_THREAD,
    COMM_STREAM,
    COMPUTE_STREAM,
    COPY_STREAM,
    GPU,
    HOST,
    P2P_STREAM,
    build_arrow,
    build_event,
    build_head,
    build_memory,
    build_metadata,
)
from tests.stratlab.simulated.scene import NCCL

LATENCY_NS = 1_500  # from a launch to the earliest start
RESERVED_STEP = 2 << 20


class Work(NamedTuple):
    """One GPU event. `others` is when the last rank of a collective came; its own start for all else."""

    start: int
    end: int
    issued: int
    kind: str  # compute, comm, copy
    collective: str
    axis: str
    others: int
    returned: int = 0  # when the launching call had ended


class Member:
    """Times in ns since the team's start. `work` holds the GPU events since `give_text` was last called."""

    def __init__(self, scene, rank):
        self.scene, self.rank = scene, rank
        last = rank == scene.ranks - 1
        self.slow = scene.slow if last else 1.0
        self.origin = scene.origin_ns + (scene.skew_ns if last else 0)
        self.draw = Random(1_000_003 * scene.seed + rank).random
        self.cpu = 10_000 + 1_000 * (rank % 7)
        self.free = dict.fromkeys((COMPUTE_STREAM, COMM_STREAM, COPY_STREAM, P2P_STREAM), 0)
        self.correlation = 0
        self.tid = HOST
        self.text = [build_head(scene, rank), build_metadata(rank)]
        self.work = []
        self.labels = []
        self.kernels = {}  # name: count, ns
        self.copies = {}  # kind: count, bytes, ns
        self.allocated = self.peak_allocated = self.reserved = 0
        self.slices = 0

    def give_text(self):
        text = "".join(self.text)
        self.text = []
        return text

    def run_kernel(self, name, op, mean_ns):
        """An operator that launches one kernel on the compute stream."""
        scene, draw = self.scene, self.draw
        duration = max(1, int(mean_ns * (1 + scene.jitter * (2 * draw() - 1)) * self.slow))
        gap = scene.gaps_ns[int(draw() * len(scene.gaps_ns))]
        issued = self._launch(op, "cudaLaunchKernel", "")
        start = max(issued + LATENCY_NS, self.free[COMPUTE_STREAM] + gap)
        self._finish(name, "kernel", COMPUTE_STREAM, start, start + duration, issued, "compute", "")

    def run_copy(self, kind, size, mean_ns, stream):
        memory = "Pageable" if kind == "DtoH" else "Pinned"
        name = f"Memcpy {kind} ({'Device -> ' + memory if kind == 'DtoH' else memory + ' -> Device'})"
        issued = self._launch("aten::copy_", "cudaMemcpyAsync", "")
        start = max(issued + LATENCY_NS, self.free[stream])
        end = start + mean_ns
        bandwidth = f'"bytes": {size}, "memory bandwidth (GB/s)": {size / mean_ns}, '
        self._finish(name, "gpu_memcpy", stream, start, end, issued, "copy", bandwidth)
        count, total, ns = self.copies.get(kind, (0, 0, 0))
        self.copies[kind] = count + 1, total + size, ns + end - start

    def enter(self, op, message, stream, after):
        """Launches the kernel of a collective; (when it was launched, when it starts on this rank)."""
        issued = self._launch(op, "cudaLaunchKernelExC", message)
        return issued, max(issued + LATENCY_NS, self.free[stream], after)

    def leave(self, name, collective, axis, message, stream, times):
        """The kernel of a collective, known once all ranks have entered it.

        Args:
            times: issued, start, when the last rank came, end.
        """
        issued, start, others, end = times
        where = (collective, axis, others)
        self._finish(NCCL.format(name), "kernel", stream, start, end, issued, "comm", f"{message}, ", *where)

    def allocate(self, change):
        self.allocated += change
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.reserved = max(self.reserved, -(-self.allocated // RESERVED_STEP) * RESERVED_STEP)
        if self.scene.memory:
            self.text.append(build_memory(self.cpu + self.origin, change, self.allocated, self.reserved))

    def label(self, name, start, end=None):
        end = self.cpu if end is None else end
        self.labels.append((name, start, end))
        self._write("user_annotation", name, HOST, HOST, start, end, '"External id": 0')
        inside = [w for w in self.work if start <= w.issued < end and w.kind == "compute"]
        if self.scene.gpu_labels and inside and not name.startswith("## Training"):
            low, high = inside[0].start, inside[-1].end
            self._write("gpu_user_annotation", name, GPU, COMPUTE_STREAM, low, high, '"External id": 0')

    def wait_for_gpu(self):
        done = max(self.cpu + 1_000, *self.free.values())
        self._write("cuda_runtime", "cudaDeviceSynchronize", HOST, HOST, self.cpu, done, '"cbid": 165')
        self.cpu = done

    def _launch(self, op, runtime, message):
        """The operator and the call that launches; the host's clock moves on. Returns when it was launched."""
        self.correlation += 1
        at, cost = self.cpu, self.scene.launch_ns
        issued, returns = at + cost // 4, at + 3 * cost // 4
        self.cpu = at + cost
        number, tid = self.correlation, self.tid
        begin = at + self.origin
        ids = f'"External id": {number}, "Ev Idx": {number}'
        self.text.append(build_event("cpu_op", op, HOST, tid, begin, begin + cost, ids))
        if message:
            low, high = at + cost // 8, at + 7 * cost // 8
            self._write("cpu_op", "record_param_comms", HOST, tid, low, high, message)
        ids = f'"External id": {number}, "cbid": 211, "correlation": {number}'
        self._write("cuda_runtime", runtime, HOST, tid, issued, returns, ids)
        self.slices += 1
        return issued

    def _finish(
        self, name, cat, stream, start, end, issued, kind, extra,
        collective = "", axis = "", others = -1,
    ):  # fmt: skip
        number, origin = self.correlation, self.origin
        args = (
            f'{extra}"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, '
            f'"correlation": {number}'
        )
        self._write(cat, json.dumps(name)[1:-1], GPU, stream, start, end, args)
        if self.scene.arrows:
            self.text.append(build_arrow(number, self.tid, issued + origin, stream, start + origin))
        self.free[stream] = end
        cost, others = self.scene.launch_ns, others if others >= 0 else start
        returned = issued + 3 * cost // 4 - cost // 4
        self.work.append(Work(start, end, issued, kind, collective, axis, others, returned))
        count, ns = self.kernels.get(name, (0, 0))
        self.kernels[name] = count + 1, ns + end - start

    def _write(self, cat, name, pid, tid, start, end, args):
        self.slices += 1
        self.text.append(build_event(cat, name, pid, tid, start + self.origin, end + self.origin, args))


__all__ = ["BACKWARD_THREAD", "Member", "Work"]
