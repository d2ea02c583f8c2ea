"""`run.config.mode=check` in real pods: nothing where nothing is missing; what is planted in their values is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.lab import MOUNT, STRATLAB, TRAINER_IMAGE, Lab, run, wait_until
from tests.cluster.planter import Planter, open_planter
from tests.cluster.steps import Steps
from tests.trainer.environment.planted import CLOCK, SHIFTED

pytestmark = pytest.mark.cluster

CHECK = {
    "run.config.mode": "check",
    "run.config.collective_timeout_s": 120,
    "run.scheduling.waitSeconds": 300,
}
SMALL = CHECK | {"run.sharedMemory.sizeLimit": "32Mi"}
WAITS = CHECK | {
    "run.pod.initContainers[0].name": "wait",
    "run.pod.initContainers[0].image": TRAINER_IMAGE,
    "run.pod.initContainers[0].command": "{sleep,25s}",
}
SHIFTS = CHECK | {
    "run.pod.volumes[0].name": "site",
    "run.pod.volumes[0].mountPath": "/site",
    "run.pod.volumes[0].configMap.name": "stratlab-site",
    "run.env[0].name": "PYTHONPATH",
    "run.env[0].value": "/site",
}
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


@pytest.fixture(scope="module")
def planter() -> Iterator[Planter]:
    with open_planter() as planter:
        yield planter


def test_a_slow_link_is_named(lab: Lab, steps: Steps, planter: Planter) -> None:
    """Slowed down while an init container holds both pods back."""
    with steps.step("check: a slow link of the second pod is named") as notes:
        lab.install("check-link", "ddp", WAITS)
        wait_until(lambda: is_waiting(lab, "check-link-worker-1"), "the second pod's init container")
        planter.slow_down(lab, "check-link-worker-1")
        assert is_waiting(lab, "check-link-worker-1"), "slowed down too late"
        assert lab.watch("check-link").returncode == 1, lab.describe("check-link")
        (wrong,) = (each for each in read_kept(lab, "check-link")["findings"] if each["state"] != "ok")
        assert wrong["subject"] == "all-reduce" and "expected at least" in wrong["seen"], wrong
        notes.append(wrong["seen"])
        lab.uninstall("check-link")


def is_waiting(lab: Lab, pod: str) -> bool:
    """Whether its init container runs."""
    found = lab.kubectl(
        "get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.status.initContainerStatuses[0].state}"
    )
    return "running" in found


@pytest.mark.parametrize("size", ["4k", "8m"])
def test_a_full_volume_is_named(lab: Lab, steps: Steps, planter: Planter, size: str) -> None:
    """With room for a folder, and with none; what cannot be written is told by the log alone."""
    release = f"check-full-{size}"
    with steps.step(f"check: a results volume of {size} is named") as notes:
        with planter.small_claim(lab, size) as claim:
            lab.install(release, "ddp", CHECK | {"run.results.claim": claim})
            done = lab.watch(release)
            assert done.returncode == 1, done.stdout[-3000:] + lab.describe(release)
            said = run([STRATLAB, "logs", release, "-n", lab.namespace]).stdout
            wrong = [line for line in said.splitlines() if line.startswith(("problem ", "warning "))]
            assert wrong and all("results volume" in line for line in wrong), said
            assert "cannot be written: No space left on device" in said
            lab.uninstall(release)
        notes.append(wrong[0])


def test_a_wrong_clock_is_named(lab: Lab, steps: Steps) -> None:
    """What Python calls the time is shifted in the second pod's rank, no clock is set."""
    with steps.step("check: the second pod's clock is 30 s ahead, and named") as notes:
        script = CLOCK.format(ranks=["1"], deed=SHIFTED.format(seconds=30))
        lab.kubectl("create", "configmap", "stratlab-site", f"--from-literal=sitecustomize.py={script}")
        lab.install("check-clock", "ddp", SHIFTS)
        assert lab.watch("check-clock").returncode == 1, lab.describe("check-clock")
        wrong = [each for each in read_kept(lab, "check-clock")["findings"] if each["state"] != "ok"]
        assert [each["subject"] for each in wrong] == ["clock", "clock"], wrong
        assert all("check-clock-worker-1" in each["seen"] for each in wrong), wrong
        notes.append(wrong[0]["seen"])
        lab.uninstall("check-clock")
        lab.kubectl("delete", "configmap", "stratlab-site")
