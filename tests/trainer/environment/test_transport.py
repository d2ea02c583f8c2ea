"""What NCCL says of its choice, and what a node says of its network."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab_spec.exit_codes import reason
from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from tests.trainer.environment.posted import ASKED, post_healthy
from trainer.environment.assessment import expect_bandwidth
from trainer.environment.board import STOPPED, find_pod_index
from trainer.environment.launcher import explain_ends
from trainer.environment.probes import bus_gb_per_s, describe_network, find_interface, hide_log, read_log

LOG = """\
node:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB; OOB eth0:10.0.0.1<0>
node:71:99 [0] NCCL INFO Using network IB
node:71:99 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node:71:99 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node:71:99 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA
node:71:99 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
node:71:99 [0] NCCL INFO NVLS comm 0x55 headRank 0 nHeads 8
"""


def test_what_nccl_has_chosen_is_read_and_the_file_goes(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env: dict[str, str] = {}
    path = hide_log(env)
    assert path and env["NCCL_DEBUG_FILE"] == str(path) and env["NCCL_DEBUG"] == "INFO"
    path.write_text(LOG)
    assert read_log(path) == {"via": ["NET/IB", "P2P/CUMEM", "SHM/direct", "NVLS"], "network": ["IB"]}
    assert not path.exists() and read_log(path) == read_log(None) == {"via": [], "network": []}


def test_who_has_asked_nccl_for_its_log_keeps_it() -> None:
    env = {"NCCL_DEBUG": "WARN"}
    assert hide_log(env) is None and env == {"NCCL_DEBUG": "WARN"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("device", "speed", "expected"),
    [(True, "25000\n", 3.125), (True, "-1\n", None), (False, "10000\n", None)],
)
def test_only_a_real_card_says_its_speed(tmp_path, device, speed, expected):
    """The pair of interfaces of a pod says 10000 whatever is below it."""
    write(tmp_path / "net/eth0/speed", speed)
    if device:
        (tmp_path / "net/eth0/device").mkdir()
    found = describe_network({"GLOO_SOCKET_IFNAME": "eth0"}, "127.0.0.1", tmp_path)
    assert found == {"interface": "eth0", "gb_per_s": expected, "ib_gb_per_s": []}


def test_ports_of_infiniband_that_are_up_count(tmp_path: Path) -> None:
    for card, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        write(tmp_path / f"infiniband/{card}/ports/1/state", state)
        write(tmp_path / f"infiniband/{card}/ports/1/rate", "400 Gb/sec (4X NDR)")
    assert describe_network({}, "127.0.0.1", tmp_path)["ib_gb_per_s"] == [50.0]


def test_an_interface_is_found_by_the_way_to_an_address() -> None:
    assert find_interface("127.0.0.1") == "lo" and find_interface("no address") == ""


def test_bus_bandwidth_is_counted_as_nccl_tests_count_it() -> None:
    """Eight ranks, 1 GB in 10 ms: 100 GB/s of the algorithm, 175 of the bus."""
    assert bus_gb_per_s(10**9, 8, 0.01) == pytest.approx(175.0)
    assert bus_gb_per_s(10**9, 2, 0.01) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("changes", "scope", "expected"),
    [
        ({}, "pod", (0.3 * 478.0, "NVLink of 478 GB/s")),
        ({"joined": {"1": "PHB"}}, "pod", (0.15 * 63.0, "PCIe of 63 GB/s")),
        ({"joined": {"1": "PHB"}, "pcie_gb_per_s": None}, "pod", (0.0, "")),
        ({}, "all", (10.0, "InfiniBand of 50.0 GB/s")),
    ],
)
def test_expected_is_a_share_of_the_slowest_link(changes, scope, expected):
    facts = post_healthy()
    facts[3]["device"].update(changes)
    least, reason = expect_bandwidth(ASKED, facts, scope)
    assert (pytest.approx(least), reason) == expected


def test_sockets_between_nodes_have_the_speed_of_the_card_or_the_least_of_all() -> None:
    facts = post_healthy()
    for found in facts.values():
        found["transport"] = {"via": ["NET/Socket"], "network": ["Socket"]}
    assert expect_bandwidth(ASKED, facts, "all") == (0.02, "less than a fifth of Gigabit Ethernet")
    for rank, speed in ((0, 12.5), (2, 3.125)):
        facts[rank]["network"]["gb_per_s"] = speed
    assert expect_bandwidth(ASKED, facts, "all") == (0.2 * 3.125, "network of 3.12 GB/s")


def test_which_pod_this_is() -> None:
    c10d = {"PET_RDZV_ENDPOINT": "x:1", "HOSTNAME": "check-worker-1"}
    assert find_pod_index(c10d, 2) == 1
    assert find_pod_index({"HOSTNAME": "laptop"}, 1) == 0
    assert find_pod_index({"HOSTNAME": "node", "PET_NODE_RANK": "1"}, 2) == 1
    for env in ({"HOSTNAME": "node"}, {"HOSTNAME": "node", "PET_NODE_RANK": "2"}):
        with pytest.raises(ConfigError) as refused:
            find_pod_index(env, 2)
        assert find_codes(refused.value) == ["SL-node-rank"] and "PET_NODE_RANK=" in str(refused.value)


def test_who_was_ended_with_another_one_is_told_from_it() -> None:
    assert explain_ends({0: -15, 1: -9}) == {0: STOPPED, 1: reason(137)}
    assert explain_ends({0: -15}) == {0: reason(143)}
