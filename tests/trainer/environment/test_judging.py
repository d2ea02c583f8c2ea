"""Each lack is one problem that names what and where; a healthy machine has none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.trainer.environment.posted import ASKED, NAMES, post_healthy, spoil
from trainer.environment.facts import STOPPED, Asked, Facts
from trainer.environment.findings import Finding, describe
from trainer.environment.judging import judge


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
    assert "2.28.9" in found[1].seen and "driver 580.1" in found[1].seen
    assert "NVIDIA H200, 139.2 GiB free, joined by NVLink" in found[2].seen
    assert "nccl over NET/IB, P2P/CUMEM, network IB" in found[7].seen


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
    ("facts", "state", "subject", "words"),
    [
        (spoil(2, "shared memory", **SMALL), "problem", "shared memory", f"pod {NAMES[1]}: 64 of 64 MiB free"),
        (spoil(2, "shared memory", error="No space left"), "problem", "shared memory", "cannot be written: No space"),
        (spoil(2, "results volume", error="No space left"), "problem", "results volume", "written: No space left, 500"),
        (spoil(2, "results volume", free_gib=0.5), "problem", "results volume", "512.00 MiB free, 1 GiB are needed"),
        (spoil(2, "results volume", mb_per_s=2.0), "warning", "results volume", "2.0 MB/s written"),
        (spoil(2, "results volume", clock_s=-30.0), "problem", "clock", f"pod {NAMES[1]}: its clock is 30.0 s before"),
        (spoil(2, "clock", offset_s=-3.0), "problem", "clock", f"({NAMES[1]} on gpu-1): its clock is 3.0 s behind"),
        (spoil(3, "device", visible=1, type="none"), "problem", "devices", "1 device(s) visible for 2 processes"),
        (spoil(3, "device", uuid="uuid-2"), "problem", "devices", "ranks 2 and 3 have the same device"),
        (spoil(3, "device", free_gib=70.0), "warning", "devices", "70.0 of 139.8 GiB free"),
        (spoil(3, "device", name="NVIDIA H100"), "warning", "devices", "they differ: NVIDIA H100, NVIDIA H200"),
        (spoil(3, device={"error": "CUDA error 999"}), "problem", "devices", "its device fails: CUDA error 999"),
        (spoil(3, "versions", torch="2.13.0"), "problem", "versions", "torch differs: "),
        (spoil(3, "device", driver="570.1"), "warning", "versions", "driver differs: "),
        (spoil(3, "files of the others", unseen=[0, 1]), "problem", "shared files", "does not see what rank(s) 0, 1"),
        (spoil(0, **{"all-reduce": SLOW}), "problem", "all-reduce", "at least 10 GB/s (InfiniBand of 50.0 GB/s)"),
        (spoil(0, **{"all-reduce": APART}), "problem", "within a pod", "at least 143 GB/s (NVLink of 478 GB/s)"),
        (spoil(3, **{"all-reduce": {"error": "timed out"}}), "problem", "network", "all-reduce failed: timed out"),
        (spoil(3, meeting={"error": "refused"}), "problem", "ranks", "has not met the others: refused"),
    ],
)  # fmt: skip
def test_a_lack_is_named_alone(facts: Facts, state: str, subject: str, words: str) -> None:
    found = judged(facts)
    (named,) = bad(found)
    assert named[:2] == (state, subject) and words in named[2], named
    if state == "problem":
        assert not [each for each in found if each.subject == subject and each.state == "ok"], "not both"
        assert subject != "network" or not [each for each in found if each.subject == "all-reduce"]


def test_a_stated_bandwidth_is_the_one_that_counts() -> None:
    asked = dataclasses.replace(ASKED, least_gb_per_s=41.0)
    (named,) = bad(judged(post_healthy(), asked))
    assert named[1] == "all-reduce" and "expected at least 41 GB/s (as stated)" in named[2]
    assert bad(judged(post_healthy(), dataclasses.replace(asked, least_gb_per_s=39.0))) == []


def test_a_rank_that_does_not_come_is_named() -> None:
    """Never heard of; heard of and killed; heard of and still at something."""
    facts = post_healthy()
    del facts[3]
    stages = {0: "done", 1: "device", 2: "all-reduce"}
    named = bad(judge(ASKED, facts, stages, ends={1: "signal 9"}))
    assert [each[2] for each in named] == [
        "rank 1 (check-worker-0 on gpu-0) came no further than 'device', signal 9",
        "rank 2 (check-worker-1 on gpu-1) came no further than 'all-reduce', within 120 s",
        "rank 3 said nothing, within 120 s",
    ]
    assert not [
        each for each in judge(ASKED, facts, stages) if each.subject == "ranks" and each.state == "ok"
    ]


def test_who_waits_for_a_lost_rank_or_is_ended_with_it_is_not_named() -> None:
    facts = spoil(0, meeting={"error": "timed out"})
    del facts[3], facts[0]["all-reduce"]
    stages = {0: "done", 1: "done", 2: "meeting"}
    named = bad(judge(ASKED, facts, stages, ends={2: STOPPED, 3: "signal 11"}))
    assert named == [("problem", "ranks", "rank 3 said nothing, signal 11")]


def test_a_pod_without_its_accelerators_has_the_words_of_a_run() -> None:
    facts = post_healthy()
    for rank in (2, 3):
        facts[rank]["device"] = {"visible": 0, "type": "cpu", "name": "a processor"}
    named = bad(
        judged(facts, refusals={NAMES[1]: "asked for 2 in this pod, but none visible; look at the node"})
    )
    assert ("problem", "devices", f"pod {NAMES[1]}: asked for 2 in this pod, but none visible") in named


def test_nothing_at_all_was_posted() -> None:
    named = bad(judge(ASKED, {}, {}))
    assert named == [("problem", "ranks", "rank 0, rank 1, rank 2, rank 3 said nothing, within 120 s")]


def test_the_table() -> None:
    text = describe(
        [Finding("ok", "clock", "fine"), Finding("problem", "shared memory", "none", "give it some")]
    )
    assert text.splitlines() == [
        "ok       clock          fine",
        "problem  shared memory  none",
        "                        -> give it some",
        "1 problem, 0 warnings",
    ]
    assert describe([Finding("ok", "clock", "fine")]).endswith("nothing is missing")
