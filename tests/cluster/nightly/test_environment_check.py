"""`run.config.mode=check` in real pods: nothing where nothing is missing; what their values lack is named.

Full volumes, slow links, clocks and devices, planted: tests/nightly/trainer/test_environment_check.py.
"""

from __future__ import annotations

import pytest

from tests.cluster.lab import MOUNT, Lab

pytestmark = pytest.mark.cluster

CHECK = {
    "run.config.mode": "check",
    "run.config.collective_timeout_s": 120,
    "run.scheduling.waitSeconds": 300,
}


def test_two_healthy_pods_lack_nothing(lab: Lab) -> None:
    printed = lab.install("check", "ddp", CHECK)
    assert "stratlab watch check" in printed and "_environment/check.json" in printed
    assert "stratlab logs check" in lab.watch("check")
    kept = lab.read("_environment/check.json")
    assert {each["state"] for each in kept["findings"]} == {"ok"}, kept["findings"]
    assert sorted(kept["ranks"]) == ["0", "1"]
    assert not lab.get("jobs", "-l", "app.kubernetes.io/instance=check")["items"], "no analysis"
    folders = [f"{MOUNT}/{each}" for each in lab.on_volume("ls", MOUNT).split()]
    assert "check" not in lab.on_volume("ls", *folders).split(), "a check is no run"
    lab.uninstall("check")


def test_too_little_shared_memory_is_named(lab: Lab) -> None:
    lab.install("check-shm", "ddp", CHECK | {"run.sharedMemory.sizeLimit": "32Mi"})
    lab.watch("check-shm", code=1)
    findings = lab.read("_environment/check-shm.json")["findings"]
    wrong = [(each["subject"], each["seen"]) for each in findings if each["state"] != "ok"]
    assert [subject for subject, _ in wrong] == ["shared memory"] * 2, wrong
    for index, (_, seen) in enumerate(wrong):
        assert f"check-shm-worker-{index}" in seen and "/dev/shm" in seen
    lab.uninstall("check-shm")
