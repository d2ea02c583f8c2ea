"""How ranks exchange data: a collective ends on all its ranks together, once the last one has come."""

from random import Random

from tests.stratlab.simulated.kineto_text import (
    COMM_STREAM,
    COMPUTE_STREAM,
    ELEMENT_BYTES,
    P2P_STREAM,
    build_message,
    list_groups,
)

# collective: (kernel, what torch calls it, operator)
COLLECTIVES = {
    "all_reduce": ("AllReduce_Sum_f32_RING_LL", "allreduce", "c10d::allreduce_"),
    "all_gather": ("AllGather_RING_LL", "_allgather_base", "c10d::_allgather_base_"),
    "reduce_scatter": (
        "ReduceScatter_Sum_f32_RING_LL",
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
    ),
}
SEND_RECV = "SendRecv"
ACTIVATION_BYTES = 24 << 20  # of one layer and micro-batch


class Links:
    """The process groups, and how long a transfer takes."""

    def __init__(self, scene):
        self.scene = scene
        self.groups = {key: number for number, key in enumerate(list_groups(scene), 1)}
        self.draw = Random(scene.seed + 17)

    def run(self, collective, axis, members, after, layers=1):
        """When it ends on each rank; empty where the axis has one rank.

        Args:
            after: when each rank's GPU is ready for it.
        """
        ends = {}
        for key in self.of(axis):
            taking_part = [m for m in members if m.rank in key[1]]
            if not taking_part:
                continue
            kernel, said, op = COLLECTIVES[collective]
            size = layers * self.scene.layer_bytes // ELEMENT_BYTES
            share = size // len(key[1])
            sizes = {"all_gather": (share, size), "reduce_scatter": (size, share)}.get(
                collective, (size, size)
            )
            message = build_message(said, self.groups[key], axis, key[1], *sizes)
            entered = [m.enter(op, message, COMM_STREAM, after[m.rank]) for m in taking_part]
            others = max(start for _, start in entered)
            end = others + self._transfer_ns(layers)
            for member, (issued, start) in zip(taking_part, entered, strict=True):
                member.leave(kernel, collective, axis, message, COMM_STREAM, (issued, start, others, end))
                ends[member.rank] = end
        return ends

    def pass_on(self, senders, receivers):
        """The activations, or their gradients, of one micro-batch; both sides wait for each other."""
        for key in self.of("pp"):
            pair = [next((m for m in side if m.rank in key[1]), None) for side in (senders, receivers)]
            sender, receiver = pair
            assert sender and receiver
            size = ACTIVATION_BYTES // ELEMENT_BYTES
            messages = [
                build_message(way, self.groups[key], "pp", key[1], size, size) for way in ("send", "recv")
            ]
            ready = (sender.free[COMPUTE_STREAM], 0)
            entered = [
                m.enter(f"c10d::{way}", message, P2P_STREAM, after)
                for m, way, message, after in zip(pair, ("send", "recv_"), messages, ready, strict=True)
                if m
            ]
            others = max(start for _, start in entered)
            end = others + self._transfer_ns(1)
            for member, message, (issued, start) in zip((sender, receiver), messages, entered, strict=True):
                times = (issued, start, others, end)
                member.leave(SEND_RECV, "send_recv", "pp", message, P2P_STREAM, times)
            receiver.free[COMPUTE_STREAM] = max(receiver.free[COMPUTE_STREAM], end)

    def _transfer_ns(self, layers):
        return max(1, int(self.scene.comm_ns * layers * self.scene.link * self.draw.uniform(0.9, 1.1)))

    def of(self, axis):
        return [key for key in self.groups if key[0] == axis]


def find_ready(members):
    """When each rank's GPU has computed all that it was given."""
    return {m.rank: m.free[COMPUTE_STREAM] for m in members}


def apply_wait(members, ends):
    for member in members:
        member.free[COMPUTE_STREAM] = max(member.free[COMPUTE_STREAM], ends.get(member.rank, 0))
