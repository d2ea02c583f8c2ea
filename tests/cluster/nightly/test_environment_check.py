"""`run.config.mode=check` in real pods: nothing where nothing is missing; what is planted in their values is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.lab import (
    KUBECTL,
    LAB_IMAGE,
    MOUNT,
    TRAINER_IMAGE,
    Lab,
    Steps,
    build_object,
    run,
    wait_until,
)
from tests.cluster.small_volume import small_volume
from tests.trainer.environment.planted import CLOCK, SHIFTED, SLOW

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


def check(lab: Lab, release: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Installs it: what it has found that is not ok."""
    lab.install(release, "ddp", values)
    return read_wrong(lab, release)


def read_wrong(lab: Lab, release: str) -> list[dict[str, Any]]:
    lab.watch(release, code=1)
    kept = lab.read(f"_environment/{release}.json")
    lab.uninstall(release)
    return [each for each in kept["findings"] if each["state"] != "ok"]


def test_two_healthy_pods_lack_nothing(lab: Lab, steps: Steps) -> None:
    with steps.step("check: two pods, nothing is missing") as notes:
        printed = lab.install("check", "ddp", CHECK)
        assert "stratlab watch check" in printed and "_environment/check.json" in printed
        assert "stratlab logs check" in lab.watch("check")
        kept = lab.read("_environment/check.json")
        assert {each["state"] for each in kept["findings"]} == {"ok"}, kept["findings"]
        assert sorted(kept["ranks"]) == ["0", "1"]
        assert not lab.get("jobs", "-l", "app.kubernetes.io/instance=check")["items"], "no analysis"
        folders = [f"{MOUNT}/{each}" for each in lab.on_volume("ls", MOUNT).split()]
        assert "check" not in lab.on_volume("ls", *folders).split(), "a check is no run"
        notes.append(next(each["seen"] for each in kept["findings"] if each["subject"] == "all-reduce"))
        lab.uninstall("check")


def test_a_lack_is_named(lab: Lab, steps: Steps) -> None:
    """Devices that are not there: tests/cluster/nightly/test_faults.py."""
    with steps.step("check: shared memory of two pods is missing, and named") as notes:
        wrong = check(lab, "check-shm", SMALL)
        assert [each["subject"] for each in wrong] == ["shared memory"] * 2, wrong
        for index, each in enumerate(wrong):
            assert f"check-shm-worker-{index}" in each["seen"] and "/dev/shm" in each["seen"], each
        notes.append(wrong[0]["seen"])


NAMESPACE = "stratlab-planter"
RUNTIME = "pid=$(grep -lxs containerd /proc/[0-9]*/comm | head -n 1 | cut -d / -f 3)"
PATH = "PATH=$PATH:/usr/sbin:/sbin"
# the node's own programs, in the view of the container runtime: process 1 may be out of reach
ENTER = f'{RUNTIME}; exec nsenter --target ${{pid:?no containerd}} --mount -- sh -ec "{PATH}; $1"'


def slow_down(lab: Lab, pod: str) -> None:
    """All that this pod sends goes at 20 Mbit/s from now on; Skip where its node has no `tc`."""
    uid = lab.get("pod", pod)["metadata"]["uid"]
    names = f"pod{uid}|pod{uid.replace('-', '_')}"
    script = (
        "command -v tc >/dev/null || { echo no tc; exit; }\n"
        f"pid=$(grep -lEs '{names}' /proc/[0-9]*/cgroup | head -n 1 | cut -d / -f 3)\n"
        f"nsenter --target $pid --net -- tc qdisc add dev eth0 root {' '.join(SLOW)}"
    )
    inside = [KUBECTL, "-n", NAMESPACE, "exec", "planter", "--", "sh", "-c", ENTER, "sh", script]
    if run(inside).stdout.strip() == "no tc":
        pytest.skip("the node has no `tc`, so its links cannot be slowed down")


@pytest.fixture(scope="module")
def planter() -> Iterator[None]:
    """In a namespace of its own, which alone is `privileged`; taken away again. Of a cluster of one node."""
    label = {"pod-security.kubernetes.io/enforce": "privileged"}
    container = {
        "name": "planter", "image": LAB_IMAGE, "command": ["sleep", "infinity"],
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
    }  # fmt: skip
    pod = {"hostPID": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
    try:
        for item in (
            build_object("Namespace", NAMESPACE, {}, labels=label),
            build_object("Pod", "planter", pod, namespace=NAMESPACE),
        ):
            run([KUBECTL, "apply", "-f", "-"], text=json.dumps(item))
        run([KUBECTL, "-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/planter", "--timeout=120s"])
        yield
    finally:
        run([KUBECTL, "delete", "namespace", NAMESPACE, "--ignore-not-found"], check=False)


@pytest.mark.usefixtures("planter")
def test_a_slow_link_is_named(lab: Lab, steps: Steps) -> None:
    """Slowed down while an init container holds both pods back."""
    pod = "check-link-worker-1"

    def is_waiting() -> bool:
        path = "jsonpath={.status.initContainerStatuses[0].state}"
        return "running" in lab.kubectl("get", "pod", pod, "--ignore-not-found", "-o", path)

    with steps.step("check: a slow link of the second pod is named") as notes:
        lab.install("check-link", "ddp", WAITS)
        wait_until(is_waiting, "the second pod's init container")
        slow_down(lab, pod)
        assert is_waiting(), "slowed down too late"
        (wrong,) = read_wrong(lab, "check-link")
        assert wrong["subject"] == "all-reduce", wrong
        notes.append(wrong["seen"])


@pytest.mark.parametrize("size", ["4Ki", "8Mi"])
def test_a_full_volume_is_named(lab: Lab, steps: Steps, size: str) -> None:
    """With room for a folder, and with none; what cannot be written is told by the log alone."""
    release = f"check-full-{size.lower()}"
    with steps.step(f"check: a results volume of {size} is named") as notes:
        with small_volume(lab, "stratlab-small", size) as volume:
            lab.install(release, "ddp", CHECK | {"run.results.claim": volume.name})
            lab.watch(release, code=1)
            said = lab.stratlab("logs", release).stdout
            wrong = [line for line in said.splitlines() if line.startswith(("problem ", "warning "))]
            assert wrong and all("results volume" in line for line in wrong), said
            assert "No space left on device" in said
            lab.uninstall(release)
        notes.append(wrong[0])


def test_a_wrong_clock_is_named(lab: Lab, steps: Steps) -> None:
    """What Python calls the time is shifted in the second pod's rank, no clock is set."""
    with steps.step("check: the second pod's clock is 30 s ahead, and named") as notes:
        script = CLOCK.format(ranks=["1"], deed=SHIFTED.format(seconds=30))
        lab.kubectl("create", "configmap", "stratlab-site", f"--from-literal=sitecustomize.py={script}")
        wrong = check(lab, "check-clock", SHIFTS)
        assert [each["subject"] for each in wrong] == ["clock", "clock"], wrong
        assert all("check-clock-worker-1" in each["seen"] for each in wrong), wrong
        notes.append(wrong[0]["seen"])
        lab.kubectl("delete", "configmap", "stratlab-site")
