"""`run.config.mode=check` in real pods: nothing where nothing is missing; what is planted in their values is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.lab import MOUNT, STRATLAB, Lab, run
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

CHECK = {
    "run.config.mode": "check",
    "run.config.collective_timeout_s": 120,
    "run.scheduling.waitSeconds": 300,
}
SMALL = CHECK | {"run.sharedMemory.sizeLimit": "32Mi"}
NO_DEVICE = CHECK | {"run.accelerator": "nvidia.com/gpu"}


def read_kept(lab: Lab, release: str) -> dict[str, Any]:
    """What it has left on the volume."""
    return dict(json.loads(lab.on_volume("cat", f"{MOUNT}/_environment/{release}.json")))


def test_two_healthy_pods_lack_nothing(lab: Lab, steps: Steps) -> None:
    with steps.step("check: two pods, nothing is missing") as notes:
        printed = lab.install("check", "ddp", CHECK)
        assert "stratlab watch check" in printed and "_environment/check.json" in printed
        done = lab.watch("check")
        assert done.returncode == 0, done.stdout[-3000:] + lab.describe("check")
        assert "next: stratlab logs check" in done.stdout
        said = run([STRATLAB, "logs", "check", "-n", lab.namespace]).stdout
        assert "nothing is missing" in said, said
        kept = read_kept(lab, "check")
        assert {each["state"] for each in kept["findings"]} == {"ok"}, kept["findings"]
        assert sorted(kept["ranks"]) == ["0", "1"]
        assert not lab.get("jobs", "-l", "app.kubernetes.io/instance=check")["items"], "no analysis"
        comparisons = lab.on_volume("ls", MOUNT).split()
        assert "check" not in lab.on_volume("ls", *(f"{MOUNT}/{each}" for each in comparisons)).split()
        notes.append(next(each["seen"] for each in kept["findings"] if each["subject"] == "all-reduce"))
        lab.uninstall("check")


@pytest.mark.parametrize(
    ("release", "values", "subject", "words"),
    [
        ("check-shm", SMALL, "shared memory", "of 32 MiB free in /dev/shm"),
        ("check-device", NO_DEVICE, "devices", "run.accelerator=nvidia.com/gpu: asked for 1 in this pod"),
    ],
)
def test_a_lack_is_named(
    lab: Lab, steps: Steps, release: str, values: dict[str, Any], subject: str, words: str
) -> None:
    offered = [node["status"]["allocatable"].get("nvidia.com/gpu", "0") for node in lab.get("nodes")["items"]]
    if "run.accelerator" in values and sum(map(int, offered)) < 2:
        pytest.skip("no node offers two nvidia.com/gpu, so the pods would stay Pending")
    with steps.step(f"check: {subject} of two pods is missing, and named") as notes:
        lab.install(release, "ddp", values)
        done = lab.watch(release)
        assert done.returncode == 1, done.stdout[-3000:] + lab.describe(release)
        assert "failed: the check found problems (exit code 1" in done.stdout, done.stdout
        wrong = [each for each in read_kept(lab, release)["findings"] if each["state"] != "ok"]
        assert [each["subject"] for each in wrong] == [subject, subject], wrong
        for index, each in enumerate(wrong):
            assert f"pod {release}-worker-{index}" in each["seen"] and words in each["seen"], each
        notes.append(wrong[0]["seen"])
        lab.uninstall(release)
