"""Seconds of a collective: by kind, bytes of the whole tensor, ranks, and where these run.

    inside a node    start + moved / bandwidth + ramp x sqrt(bytes)     measured per GPU type, kind and ranks
    between nodes    the fastest pair of algorithm and protocol, as NCCL chooses it

`moved` are the bytes that each rank sends: 2 (n - 1) / n of the tensor for an all-reduce, (n - 1) / n otherwise. The
root stands for the protocols between small and large messages; without it the error is twice as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, SEND = "all_to_all", "send"
NODE_GPUS = 8


class InNode(NamedTuple):
    """Constants of one kind of collective among some ranks of a node."""

    start_us: float
    gb_per_s: float
    ramp_ns: float
    """Per square root of a byte."""


# Least squares of the logarithm over 64 KiB to 512 MiB of benchmarks/backtest/data/aic_nccl_intranode.csv (nccl-tests;
# NCCL 2.27.3 on the A100, 2.29.2 on the others). Mean error of a row: H200 3 to 7 %, H100 3 to 7 %, A100 4 to 10 %,
# B200 4 to 13 %; largest error of one size 38 %.
IN_NODE: Mapping[str, Mapping[str, Mapping[int, InNode]]] = {
    "h200": {
        ALL_REDUCE: {2: InNode(4.8, 358, 7.2), 4: InNode(8.6, 375, 6.0), 8: InNode(15.4, 516, 10.0)},
        ALL_GATHER: {2: InNode(4.1, 304, 5.8), 4: InNode(6.1, 370, 6.4), 8: InNode(11.1, 377, 5.3)},
        REDUCE_SCATTER: {2: InNode(4.6, 268, 4.2), 4: InNode(5.9, 349, 5.0), 8: InNode(10.6, 356, 3.5)},
        ALL_TO_ALL: {2: InNode(11.5, 294, 1.2), 4: InNode(11.0, 318, 1.7), 8: InNode(10.4, 317, 2.6)},
    },
    "h100": {
        ALL_REDUCE: {2: InNode(4.5, 363, 8.1), 4: InNode(8.4, 377, 6.6), 8: InNode(13.8, 503, 10.5)},
        ALL_GATHER: {2: InNode(4.2, 302, 6.0), 4: InNode(6.1, 368, 6.8), 8: InNode(11.2, 359, 4.5)},
        REDUCE_SCATTER: {2: InNode(4.6, 266, 4.5), 4: InNode(6.5, 339, 4.7), 8: InNode(9.9, 349, 3.3)},
        ALL_TO_ALL: {2: InNode(12.2, 283, 1.2), 4: InNode(10.4, 307, 2.8), 8: InNode(8.3, 340, 4.6)},
    },
    "a100": {
        ALL_REDUCE: {2: InNode(7.5, 251, 17.3), 4: InNode(12.1, 233, 12.8), 8: InNode(21.4, 229, 11.5)},
        ALL_GATHER: {2: InNode(8.5, 181, 10.3), 4: InNode(9.6, 243, 14.5), 8: InNode(17.0, 206, 6.8)},
        REDUCE_SCATTER: {2: InNode(8.4, 211, 9.6), 4: InNode(8.8, 258, 13.3), 8: InNode(13.3, 230, 9.4)},
        ALL_TO_ALL: {2: InNode(10.9, 193, 8.2), 4: InNode(11.5, 220, 8.7), 8: InNode(11.0, 242, 12.0)},
    },
    "b200": {
        ALL_REDUCE: {2: InNode(8.7, 665, 5.7), 4: InNode(12.1, 816, 9.4), 8: InNode(22.8, 792, 8.9)},
        ALL_GATHER: {2: InNode(8.6, 557, 3.8), 4: InNode(12.1, 727, 4.9), 8: InNode(14.2, 876, 8.2)},
        REDUCE_SCATTER: {2: InNode(8.6, 482, 3.0), 4: InNode(10.0, 738, 5.6), 8: InNode(14.5, 808, 7.0)},
        ALL_TO_ALL: {2: InNode(14.7, 340, 0.9), 4: InNode(14.4, 531, 2.0), 8: InNode(13.7, 644, 3.9)},
    },
}
"""GPU type -> kind -> ranks. Other numbers of ranks take the next larger row, with their own share of the tensor."""
WITHOUT_NVLINK = InNode(15.0, 10.0, 0.0)
"""Over PCIe: torch 2.13, _inductor/comm_analysis.py, INTERCONNECT_PROFILES; not measured here."""

LOW, MIDDLE, HIGH = 0, 1, 2
"""Which bandwidth between nodes: 5th percentile, mean, 95th percentile of many runs."""

# Bus bandwidth in GB/s of 256 MB on whole nodes of 8 x H100 (AWS p5, EFA): benchmarks/backtest/data/
# playbook_internode_bandwidth.csv. Reduce-scatter and all-gather differ by less than 3 %.
P5_ALL_REDUCE = {
    2: (302.3, 361.7, 436.1),
    4: (44.5, 160.1, 219.1),
    8: (41.6, 99.6, 192.7),
    16: (31.3, 84.7, 188.4),
    32: (25.0, 64.9, 194.2),
    64: (12.5, 32.9, 177.4),
}
P5_ALL_GATHER = {
    2: (148.0, 184.6, 226.3),
    4: (40.8, 119.0, 229.4),
    8: (47.1, 69.0, 178.5),
    16: (24.5, 55.0, 126.7),
    32: (12.3, 28.0, 77.0),
    64: (6.2, 11.0, 44.4),
}


class Scatter(NamedTuple):
    """Bus bandwidth of whole nodes in GB/s."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Network:
    """What connects the nodes."""

    name: str
    node_gb_per_s: float
    """All network cards of a node, one direction."""
    measured: Mapping[str, Mapping[int, tuple[float, float, float]]] | None = None
    """Kind -> nodes -> bus bandwidth in GB/s, low, middle and high; None = from `node_gb_per_s`."""

    def bus_gb_per_s(self, kind: str, nodes: int) -> Scatter:
        """Return the bandwidth of groups that fill their nodes, at large messages."""
        whole = P5_ALL_REDUCE if kind == ALL_REDUCE else P5_ALL_GATHER
        if self.measured is not None:
            return _between(self.measured.get(kind, whole), nodes)
        # torch 2.13, _inductor/comm_analysis.py: `nic_efficiency`; the scatter is that of P5 at as many nodes
        middle = self.node_gb_per_s * (0.77 + 0.23 * min(1.0, (nodes - 1) / 7))
        low, half, high = _between(whole, nodes)
        return Scatter(middle * low / half, middle, min(middle * high / half, self.node_gb_per_s))


def _between(rows: Mapping[int, tuple[float, float, float]], nodes: int) -> Scatter:
    """Return the row of a number of nodes, between two rows in proportion to the logarithms."""
    below = max((row for row in rows if row <= nodes), default=min(rows))
    above = min((row for row in rows if row >= nodes), default=max(rows))
    if below == above:
        return Scatter(*rows[below])
    part = math.log(nodes / below) / math.log(above / below)
    return Scatter(*(a ** (1 - part) * b**part for a, b in zip(rows[below], rows[above], strict=True)))


EFA_P5 = Network("AWS p5, EFA, 3200 Gb/s a node", 400, {ALL_REDUCE: P5_ALL_REDUCE, ALL_GATHER: P5_ALL_GATHER})


class RankGroup(NamedTuple):
    """Ranks that communicate; `per_node` of them share a node."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


def spread_group(ranks: int, stride: int, node_gpus: int = NODE_GPUS) -> RankGroup:
    """Return the group of ranks that are `stride` ranks apart."""
    return RankGroup(ranks, max(1, min(ranks, node_gpus // stride)))


@dataclass(frozen=True)
class Links:
    """What connects the GPUs of a machine.

    Attributes:
        in_node: kind -> ranks -> constants; a kind that is not there goes over PCIe.
    """

    in_node: Mapping[str, Mapping[int, InNode]]
    network: Network
    node_gpus: int = NODE_GPUS
    gloo_hop_us: float = 0.0
    """Of a rank's turn in a ring of gloo; 0 = the backend is NCCL."""


def links_of(card: str, network: Network) -> Links:
    """Return the links of a card of kernels.CARDS, as "a100-80gb"; those that have no row have no NVLink."""
    return Links(IN_NODE.get(card.partition("-")[0], {}), network)


# NCCL, src/graph/tuning.cc (ncclTunerConstantsDefaults), as in torch 2.13's _inductor/comm_analysis.py, us:
# algorithm, protocol -> start, hop inside a node, hop between nodes, share of the bandwidth
RING, TREE = "ring", "tree"
PROTOCOLS: Mapping[tuple[str, str], tuple[float, float, float, float]] = {
    (RING, "LL"): (6.6, 1.0, 2.7, 0.5),
    (RING, "Simple"): (8.4, 3.4, 14.0, 1.0),
    (TREE, "LL"): (6.8, 1.0, 5.0, 1 / 3.8),
    (TREE, "Simple"): (8.4, 4.0, 14.0, 0.92),
}
LOW_LATENCY_GB_PER_S = 20.4
"""At most, of the protocol LL on several nodes (`llMaxBws`)."""
TREE_WAYS = 2
"""A tree sends the tensor up and down."""
RAIL_POWER, RAIL_FROM_BYTES, RAIL_TO_BYTES = 0.17, 50e6, 256e6
"""On more than two nodes larger messages use more network cards (torch 2.13, `multi_rail`); the bandwidths are those of
256 MB."""


def collective_seconds(
    kind: str, size_bytes: float, group: RankGroup, links: Links, bandwidth: int = MIDDLE
) -> float:
    """Return the seconds of one collective that every rank starts at once.

    Args:
        size_bytes: of the whole tensor: gathered, before the reduce-scatter, of all ranks' pieces; sent, for a send.
        bandwidth: LOW, MIDDLE or HIGH, of several nodes.
    """
    if group.ranks <= 1 or size_bytes <= 0:
        return 0.0
    if links.gloo_hop_us:
        return _seconds_of_gloo(kind, size_bytes, group, links, bandwidth)
    if group.nodes > 1:
        return _seconds_between_nodes(kind, size_bytes, group, links, bandwidth)
    if kind == SEND:  # as an exchange of two ranks, each with half of the tensor
        return _seconds_in_node(ALL_TO_ALL, 2 * size_bytes, 2, links)
    return _seconds_in_node(kind, size_bytes, group.ranks, links)


def moved_share(kind: str, ranks: int) -> float:
    """Return the part of the tensor that each rank sends."""
    return (2 if kind == ALL_REDUCE else 1) * (ranks - 1) / ranks


def _seconds_in_node(kind: str, size_bytes: float, ranks: int, links: Links) -> float:
    found = _in_node(kind, ranks, links)
    moved = moved_share(kind, ranks) * size_bytes
    return found.start_us / 1e6 + moved / found.gb_per_s / 1e9 + found.ramp_ns * math.sqrt(size_bytes) / 1e9


def _seconds_of_gloo(kind: str, size_bytes: float, group: RankGroup, links: Links, bandwidth: int) -> float:
    """Return the time of a ring over TCP; its reduce-scatter is an all-reduce, each rank keeps its part (torch 2.13).

    Measured: bytes on the link between two nodes, of 16 KiB to 4 MiB among 2 and 4 ranks, are those of this formula.
    """
    kind = ALL_REDUCE if kind == REDUCE_SCATTER else kind
    rate = _in_node(kind, group.per_node, links).gb_per_s
    if group.nodes > 1:
        own = group.per_node / links.node_gpus
        rate = min(rate, own * links.network.bus_gb_per_s(kind, group.nodes)[bandwidth])
    hops = (2 if kind == ALL_REDUCE else 1) * (group.ranks - 1)
    return hops * links.gloo_hop_us / 1e6 + moved_share(kind, group.ranks) * size_bytes / rate / 1e9


def _in_node(kind: str, ranks: int, links: Links) -> InNode:
    rows = links.in_node.get(kind)
    if rows is None:
        return WITHOUT_NVLINK
    return rows[min((row for row in rows if row >= ranks), default=max(rows))]


def _seconds_between_nodes(
    kind: str, size_bytes: float, group: RankGroup, links: Links, bandwidth: int
) -> float:
    """Return the time of the fastest pair of algorithm and protocol.

    A group that has only some of a node's ranks has as small a share of the node's network cards, because the groups
    of the other ranks communicate at the same time.
    """
    own = group.per_node / links.node_gpus
    if kind == SEND:
        start, _, hop, _ = PROTOCOLS[RING, "Simple"]
        rate = links.network.bus_gb_per_s(ALL_GATHER, 2)[bandwidth] / links.node_gpus
        return (start + hop) / 1e6 + size_bytes / rate / 1e9
    inside = _in_node(kind, max(2, group.per_node), links).gb_per_s
    whole = own * links.network.bus_gb_per_s(kind, group.nodes)[bandwidth]
    if group.nodes > 2:
        whole *= (min(max(size_bytes, RAIL_FROM_BYTES), RAIL_TO_BYTES) / RAIL_TO_BYTES) ** RAIL_POWER
    whole = min(inside, whole)
    times = 2 if kind == ALL_REDUCE else 1
    found = []
    for (algorithm, protocol), (start, near_us, far_us, share) in PROTOCOLS.items():
        if algorithm == TREE and kind != ALL_REDUCE:
            continue
        rate = share * whole
        if protocol == "LL":
            rate = min(rate, LOW_LATENCY_GB_PER_S)
        if algorithm == RING:
            far = times * (group.nodes - 1)
            near = times * (group.ranks - 1) - far
            moved = moved_share(kind, group.ranks)
        else:
            far = TREE_WAYS * math.floor(math.log2(group.nodes))
            near = TREE_WAYS * (group.per_node - 1)
            moved = TREE_WAYS
        found.append((start + near * near_us + far * far_us) / 1e6 + moved * size_bytes / rate / 1e9)
    return min(found)
