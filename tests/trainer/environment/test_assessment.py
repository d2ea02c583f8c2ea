"""What is judged of what ranks have posted, and how transports, interfaces and bandwidths are read."""

import copy
import dataclasses
from dataclasses import asdict
from typing import Any
from unittest.mock import Mock

import pytest

from stratlab_spec.exit_codes import PeerLost
from stratlab_spec.findings import Finding
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes, refuses
from trainer.distributed.nccl_transport import Present, Transport
from trainer.environment import launcher
from trainer.environment.assessment import expect_bandwidth, judge
from trainer.environment.board import find_pod_index
from trainer.environment.findings import Asked, Facts
from trainer.environment.probes import bus_gb_per_s
from trainer.launch.stop import Stop

PODS, PER_POD = 2, 2
ASKED = Asked(nodes=PODS, per_node=PER_POD, results="/results")
NAMES = [f"check-worker-{index}" for index in range(PODS)]


def post_healthy(pods: int = PODS) -> dict[int, dict[str, Any]]:
    """Facts of `pods` times PER_POD ranks on H200s that NVLink joins within a pod, InfiniBand between them."""
    ranks = range(pods * PER_POD)
    return {rank: _post(rank, pods) for rank in ranks}


def spoil(rank: int, *path: str, **changed: Any) -> dict[int, dict[str, Any]]:
    """Healthy facts of PODS pods; what lies at `path` of one rank is changed."""
    facts = copy.deepcopy(post_healthy())
    place = facts[rank]
    for name in path:
        place = place[name]
    place.update(changed)
    return facts


def post_transport(between: str) -> dict[str, Any]:
    found = Transport("2.28.9", "NVLink", between, "yes")
    return {"found": asdict(found), "present": asdict(Present(True, ("InfiniBand",)))}


def _post(rank: int, pods: int) -> dict[str, Any]:
    row = {"mib": 256.0, "ms": 2.0, "gb_per_s": 40.0}
    found: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank % PER_POD,
        "pod_index": rank // PER_POD,
        "pod": NAMES[rank // PER_POD],
        "node": f"gpu-{rank // PER_POD}",
        "host": NAMES[rank // PER_POD],
        "versions": {"trainer": "0.1.0", "python": "3.11.7", "torch": "2.11.0", "cuda": "13.0", "nccl": "2.28.9"},
        "device": {
            "visible": PER_POD, "type": "cuda", "name": "NVIDIA H200", "uuid": f"uuid-{rank}", "gib": 139.8,
            "free_gib": 139.2, "driver": "580.1", "nvlink_gb_per_s": 478.0, "pcie_gb_per_s": 63.0,
            "joined": {str(1 - rank % PER_POD): "NVLink"},
        },
        "meeting": {"backend": "nccl"},
        "clock": {"offset_s": 0.001, "within_s": 0.0001},
        "files of the others": {"unseen": [], "after_s": 0.1, "unwritten": ""},
        "all-reduce": {
            "all": [{**row, "mib": 1.0, "gb_per_s": 5.0}, row],
            "pod": [{**row, "gb_per_s": 300.0}],
        },
        "transport": post_transport("InfiniBand"),
    }  # fmt: skip
    if pods == 1:
        found["all-reduce"] = {"all": [{**row, "gb_per_s": 300.0}]}
    if found["local_rank"] == 0:
        found |= {
            "shared memory": {"gib": 8.0, "free_gib": 7.9},
            "results volume": {
                "gib": 1000.0, "free_gib": 500.0, "mb_per_s": 900.0, "clock_s": 0.01, "clock_within_s": 0.001
            },
            "network": {"interface": "eth0", "gb_per_s": None, "ib_gb_per_s": [50.0, 50.0]},
        }  # fmt: skip
    return found


def judged(facts: Facts, asked: Asked = ASKED, **more: Any) -> list[Finding]:
    return judge(asked, facts, {"stages": dict.fromkeys(facts, "done"), **more}.pop("stages"), **more)


def bad(found: list[Finding]) -> list[tuple[str, str, str]]:
    assert all(each.fix for each in found if each.state != "ok"), "each says what to do"
    return [(each.state, each.subject, each.seen) for each in found if each.state != "ok"]


@pytest.mark.parametrize("pods", [1, 2])
def test_nothing_is_found_where_nothing_is_missing(pods: int) -> None:
    found = judged(post_healthy(pods), dataclasses.replace(ASKED, nodes=pods))
    assert bad(found) == []
    assert [each.subject for each in found] == [
        *("ranks", "versions", "devices", "shared memory", "results volume", "shared files", "clock"),
        *("all-reduce", "within a pod")[:pods],
    ]
    told = {1: ("2.28.9", "580.1"), 2: ("H200", "139.2 GiB", "NVLink"), 7: ("NVLink", "InfiniBand", "nccl")}
    assert all(word in found[place].seen for place, words in told.items() for word in words)


SMALL = {"gib": 0.0625, "free_gib": 0.0625}
SLOW = {
    "all": [{"mib": 1.0, "ms": 0.1, "gb_per_s": 20.0}, {"mib": 256.0, "ms": 900.0, "gb_per_s": 0.4}],
    "pod": [{"mib": 256.0, "ms": 2.0, "gb_per_s": 300.0}],
}
APART = {
    "all": [{"mib": 256.0, "ms": 2.0, "gb_per_s": 40.0}],
    "pod": [{"mib": 256.0, "ms": 90.0, "gb_per_s": 3.0}],
}


@pytest.mark.parametrize(
    ("facts", "state", "subject", "code", "words"),
    [
        (spoil(2, "shared memory", **SMALL), "problem", "shared memory", "SL-shm-small", (NAMES[1], " 64 of 64 MiB")),
        (spoil(2, "shared memory", error="No"), "problem", "shared memory", "SL-shm-unwritable", (NAMES[1],)),
        (spoil(2, "results volume", error="No"), "problem", "results volume", "SL-volume-unwritable", ("500.00 GiB",)),
        (spoil(2, "results volume", free_gib=0.5), "problem", "results volume", "SL-volume-small", ("512.00 MiB",)),
        (spoil(2, "results volume", mb_per_s=2.0), "warning", "results volume", "SL-volume-slow", ("2.0 MB/s",)),
        (spoil(2, "results volume", clock_s=-30.0), "problem", "clock", "SL-clock-of-volume", ("30.0 s ahead",)),
        (spoil(2, "clock", offset_s=-3.0), "problem", "clock", "SL-clock-of-rank", (NAMES[1], "3.0 s behind")),
        (spoil(3, "device", visible=1, type="none"), "problem", "devices", "SL-no-device-left", (" 1 ", " 2 ")),
        (spoil(3, "device", uuid="uuid-2"), "problem", "devices", "SL-device-shared", ("2 and 3", "uuid-2")),
        (spoil(3, "device", free_gib=70.0), "warning", "devices", "SL-device-taken", ("70.0 of 139.8 GiB",)),
        (spoil(3, "device", name="NVIDIA H100"), "warning", "devices", "SL-devices-differ", ("H100", "H200")),
        (spoil(3, device={"error": "error 999"}), "problem", "devices", "SL-device-fails", ("error 999",)),
        (spoil(3, "versions", torch="2.13.0"), "problem", "versions", "SL-versions-differ", ("torch",)),
        (spoil(3, "device", driver="570.1"), "warning", "versions", "SL-drivers-differ", ("driver",)),
        (spoil(3, "files of the others", unseen=[0, 1]), "problem", "shared files", "SL-files-unseen", ("0, 1",)),
        (spoil(0, **{"all-reduce": SLOW}), "problem", "all-reduce", "SL-link-slow", (" 10 GB/s", " 50.0 GB/s")),
        (spoil(0, **{"all-reduce": APART}), "problem", "within a pod", "SL-link-slow", (" 143 GB/s", " 478 GB/s")),
        (spoil(3, **{"all-reduce": {"error": "late"}}), "problem", "network", "SL-exchange-failed", ("late",)),
        (spoil(3, meeting={"error": "refused"}), "problem", "ranks", "SL-rank-apart", ("refused",)),
    ],
)  # fmt: skip
def test_a_lack_is_named_alone(facts, state, subject, code, words):
    found = judged(facts)
    (named,) = bad(found)
    assert named[:2] == (state, subject) and find_codes(named[2]) == [code], named
    assert all(word in named[2] for word in words), named
    if state == "problem":
        assert not [each for each in found if each.subject == subject and each.state == "ok"], "not both"
        assert subject != "network" or not [each for each in found if each.subject == "all-reduce"]


def test_a_stated_bandwidth_is_the_one_that_counts() -> None:
    asked = dataclasses.replace(ASKED, least_gb_per_s=41.0)
    (named,) = bad(judged(post_healthy(), asked))
    assert named[1] == "all-reduce" and "41 GB/s" in named[2]
    assert bad(judged(post_healthy(), dataclasses.replace(asked, least_gb_per_s=39.0))) == []


def test_a_rank_that_does_not_come_is_named() -> None:
    facts = post_healthy()
    del facts[3]
    stages = {0: "done", 1: "device", 2: "all-reduce"}
    named = [each[2] for each in bad(judge(ASKED, facts, stages, ends={1: "signal 9"}))]
    assert {*map(str, map(find_codes, named))} == {"['SL-rank-not-done']"}
    words = [("rank 1 ", "'device'", "signal 9"), ("rank 2 ", "'all-reduce'", "120 s"), ("rank 3 ", "120 s")]
    assert all(word in said for said, some in zip(named, words, strict=True) for word in some), named
    assert not [
        each for each in judge(ASKED, facts, stages) if each.subject == "ranks" and each.state == "ok"
    ]


def test_a_pod_without_its_accelerators_has_the_words_of_a_run() -> None:
    facts = post_healthy()
    for rank in (2, 3):
        facts[rank]["device"] = {"visible": 0, "type": "cpu", "name": "a processor"}
    named = bad(judged(facts, refusals={NAMES[1]: "none visible; look at the node"}))
    assert ("problem", "devices", f"pod {NAMES[1]}: none visible") in named


def test_a_fall_back_of_nccl_is_a_warning() -> None:
    found = bad(judged(spoil(3, transport=post_transport("Socket"))))
    assert [(*each[:2], *find_codes([each[2]])) for each in found] == [
        ("warning", "network", "SL-transport-fell-back")
    ]


def test_bus_bandwidth_is_counted_as_nccl_tests_count_it() -> None:
    """Eight ranks, 1 GB in 10 ms: 100 GB/s of the algorithm, 175 of the bus."""
    assert (bus_gb_per_s(10**9, 8, 0.01), bus_gb_per_s(10**9, 2, 0.01)) == pytest.approx((175.0, 100.0))


IB, SOCKET = map(post_transport, ("InfiniBand", "Socket"))


@pytest.mark.parametrize(
    ("changes", "transport", "cards", "scope", "expected"),
    [
        ({}, IB, {}, "pod", (0.3 * 478.0, "NVLink of 478 GB/s")),
        ({"joined": {"1": "PHB"}}, IB, {}, "pod", (0.15 * 63.0, "PCIe of 63 GB/s")),
        ({"joined": {"1": "PHB"}, "pcie_gb_per_s": None}, IB, {}, "pod", (0.0, "")),
        ({}, IB, {}, "all", (10.0, "InfiniBand of 50.0 GB/s")),
        ({}, SOCKET, {}, "all", (0.02, "less than a fifth of Gigabit Ethernet")),
        ({}, SOCKET, {0: 12.5, 2: 3.125}, "all", (0.2 * 3.125, "network of 3.12 GB/s")),
    ],
)
def test_expected_is_a_share_of_the_slowest_link(changes, transport, cards, scope, expected):
    facts = post_healthy()
    facts[3]["device"].update(changes)
    for found in facts.values():
        found["transport"] = transport
    for rank, speed in cards.items():
        facts[rank]["network"]["gb_per_s"] = speed
    least, reason = expect_bandwidth(ASKED, facts, scope)
    assert (pytest.approx(least), reason) == expected


def test_which_pod_this_is() -> None:
    assert find_pod_index({"PET_RDZV_ENDPOINT": "x:1", "HOSTNAME": "check-worker-1"}, 2) == 1
    assert find_pod_index({"HOSTNAME": "laptop"}, 1) == 0
    assert find_pod_index({"HOSTNAME": "node", "PET_NODE_RANK": "1"}, 2) == 1
    for env in ({"HOSTNAME": "node"}, {"HOSTNAME": "node", "PET_NODE_RANK": "2"}):
        with refuses(ConfigError, "SL-node-rank", "PET_NODE_RANK="):
            find_pod_index(env, 2)


def test_a_first_pod_that_is_lost_meanwhile_is_named(monkeypatch, capsys) -> None:
    for name, value in {"PET_RDZV_ENDPOINT": "x:1", "PET_NNODES": "2", "HOSTNAME": "check-worker-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher, "open_board", Mock())
    monkeypatch.setattr(launcher, "_take_part", Mock(side_effect=PeerLost("connection reset")))
    assert launcher.check_environment(Config(run="try", mode="check"), Stop()) == launcher.FOUND
    said = capsys.readouterr().out
    assert find_codes(said) == ["SL-pod-lost"] and "pod 0 " in said and "connection reset" in said
