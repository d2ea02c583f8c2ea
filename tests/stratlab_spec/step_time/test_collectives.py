"""Seconds of collectives: one of each formula by hand, and the published tables that the constants come from."""

from collections import defaultdict
from math import sqrt

import pytest

from benchmarks.backtest.__main__ import SHIPPED
from benchmarks.backtest.counts import read_table
from stratlab_spec.step_time.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    EFA_P5,
    HIGH,
    IN_NODE,
    LOW,
    MIDDLE,
    SEND,
    Group,
    Network,
    collective_seconds,
    links_of,
    moved_share,
    spread_group,
)

H100 = links_of("h100", EFA_P5)
NAMES = {"alltoall": ALL_TO_ALL}


def test_inside_a_node_a_collective_is_start_and_moved_bytes_and_a_root():
    by_hand = 13.8e-6 + 1.75 * 4e6 / 503e9 + 10.5e-9 * 2000
    assert collective_seconds(ALL_REDUCE, 4e6, Group(8, 8), H100) == pytest.approx(by_hand)
    three = 6.1e-6 + 2 / 3 * 1e6 / 368e9 + 6.8e-9 * 1000  # constants of four ranks
    assert collective_seconds(ALL_GATHER, 1e6, Group(3, 3), H100) == pytest.approx(three)
    sent = 12.2e-6 + 1e6 / 283e9 + 1.2e-9 * sqrt(2e6)
    assert collective_seconds(SEND, 1e6, Group(2, 2), H100) == pytest.approx(sent)
    pcie = 15e-6 + 1e6 / 10e9
    assert collective_seconds(ALL_REDUCE, 1e6, Group(2, 2), links_of("l4", EFA_P5)) == pytest.approx(pcie)
    assert collective_seconds(ALL_REDUCE, 1e6, Group(1, 1), H100) == 0


def test_between_nodes_the_fastest_protocol_counts_and_groups_share_the_network():
    links = links_of("h100", Network("flat", 80))
    rate = 80 * (0.77 + 0.23 / 7)  # two nodes
    ring = 8.4e-6 + (14 * 3.4 + 14.0) / 1e6 + 15 / 16 * 1e9 / rate / 1e9
    assert collective_seconds(ALL_GATHER, 1e9, Group(16, 8), links) == pytest.approx(ring)
    small = 6.6e-6 + (14 * 1.0 + 2.7) / 1e6 + 15 / 16 * 1e3 / 20.4e9
    assert collective_seconds(ALL_GATHER, 1e3, Group(16, 8), links) == pytest.approx(small)
    tree = 6.8e-6 + (2 * 7 * 1.0 + 2 * 3 * 5.0) / 1e6 + 2 * 1e3 / 20.4e9
    assert collective_seconds(ALL_REDUCE, 1e3, Group(64, 8), links) == pytest.approx(tree)
    own = 8.4e-6 + 14e-6 + 1 / 2 * 1e9 / (rate / 8) / 1e9  # one of eight ranks a node
    assert collective_seconds(ALL_GATHER, 1e9, spread_group(2, 8), links) == pytest.approx(own)
    assert spread_group(16, 2) == Group(16, 4) and spread_group(4, 2) == Group(4, 4)


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER])
def test_large_messages_of_whole_nodes_reach_the_measured_bandwidth_and_its_scatter(kind):
    for nodes in (2, 4, 8, 16):
        group, wanted = Group(8 * nodes, 8), EFA_P5.bus_gb_per_s(kind, nodes)
        for which in (LOW, MIDDLE, HIGH):
            seconds = collective_seconds(kind, 8e9, group, H100, which)
            found = moved_share(kind, group.ranks) * 8 / seconds
            assert found == pytest.approx(min(wanted[which], IN_NODE["h100"][kind][8].gb_per_s), rel=0.03)
    between = EFA_P5.bus_gb_per_s(kind, 6)
    assert EFA_P5.bus_gb_per_s(kind, 4).middle > between.middle > EFA_P5.bus_gb_per_s(kind, 8).middle


def test_constants_agree_with_the_table_that_they_come_from():
    errors = defaultdict(list)
    for row in read_table(SHIPPED / "aic_nccl_intranode.csv"):
        ranks, size = int(row["gpus"]), int(row["bytes"])
        if 65536 <= size <= 2**29:
            kind = NAMES.get(row["collective"], row["collective"])
            links = links_of(row["gpu"].lower(), EFA_P5)
            seconds = collective_seconds(kind, size, Group(ranks, ranks), links)
            errors[row["gpu"], kind, ranks].append(abs(seconds * 1e6 / float(row["latency_us"]) - 1))
    means = {key: sum(found) / len(found) for key, found in errors.items()}
    assert len(means) == 4 * 4 * 3 and max(means.values()) < 0.14
    assert max(mean for (gpu, *_), mean in means.items() if gpu in ("H100", "H200")) < 0.07
