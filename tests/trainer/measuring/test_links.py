"""What a run makes of NCCL's log: the facts of its ranks, its warnings, the numbers of summary.json."""

import json
from pathlib import Path

import pytest

from tests.codes import find_codes
from trainer.distributed.nccl_transport import SUMMED_UP, NcclLog, Present, Transport, sum_up_transports
from trainer.distributed.world import World
from trainer.measuring import links

LOGS = {
    each["name"]: "\n".join(each["lines"])
    for each in json.loads(Path("tests/data/nccl_logs.json").read_text())
}
OTHER = Transport("2.27.3", "NVLink", "EFA", "yes")


@pytest.fixture
def observe(tmp_path, monkeypatch):
    """Observes on rank 1 of two, on a node whose GPUs NVLink joins."""

    def observe(log: str) -> tuple[dict | None, list[str]]:
        path = tmp_path / "nccl.log"
        path.write_text(LOGS[log] + "\n")
        world = World(1, 0, 2, 1, "cuda", "cuda:0", "NVIDIA H200", "pod-1")
        return links.observe_transport(world, NcclLog(path, is_own=True), None)

    monkeypatch.setattr(links, "ask_nvml", lambda *_: {"joined": {"1": "NVLink"}})
    monkeypatch.setattr(links, "read_rdma_ports", list)
    monkeypatch.setattr(links, "gather_objects", lambda own, _: [(OTHER, Present()), own])
    return observe


@pytest.mark.parametrize(
    ("log", "summary"),
    [
        ("efa", ("NVLink", "EFA", "yes")),
        ("tcp", ("NVLink", "Socket", "partly")),
        ("shm", ("SHM", "EFA", "yes")),
        ("not opened", (None, None, None)),
    ],
)
def test_a_fall_back_of_one_rank_is_in_its_facts_a_warning_and_the_summary(observe, log, summary):
    facts, warnings = observe(log)
    fell = log in ("tcp", "shm")
    assert find_codes(warnings) == ["SL-transport-fell-back"] * fell
    assert all(": ranks 1 [" in warning for warning in warnings)
    assert (facts is None) is (log == "not opened")
    first = {"in_node": "NVLink", "between_nodes": "EFA", "gpudirect": "yes", "fell_back": None}
    found = sum_up_transports([first, json.loads(json.dumps(facts))])
    assert tuple(found.values())[:3] == summary and tuple(found) == SUMMED_UP
    assert bool(found["transport_fell_back"]) is fell
