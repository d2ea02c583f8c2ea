"""What is wrong with a node, a volume or a link is planted by a pod that may do anything on its node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.lab import KUBECTL, LAB_IMAGE, Lab, run
from tests.trainer.environment.planted import SLOW

NAMESPACE = "stratlab-planter"
SMALL = "/run/stratlab-small-volume"
RUNTIME = "pid=$(grep -lxs containerd /proc/[0-9]*/comm | head -n 1 | cut -d / -f 3)"
PATH = "PATH=$PATH:/usr/sbin:/sbin"


class Planter:
    """The node's own programs, in its own view of files and devices; of one node, on which the tests' pods run too."""

    def on_node(self, script: str) -> str:
        """What a script prints in the view of the container runtime: process 1 may be out of reach."""
        enter = f'{RUNTIME}; exec nsenter --target ${{pid:?no containerd}} --mount -- sh -ec "{PATH}; $1"'
        return run(
            [KUBECTL, "-n", NAMESPACE, "exec", "planter", "--", "sh", "-c", enter, "sh", script]
        ).stdout

    def slow_down(self, lab: Lab, pod: str) -> None:
        """All that this pod sends goes at 20 Mbit/s from now on; Skip where its node has no `tc`."""
        uid = lab.get("pod", pod)["metadata"]["uid"]
        names = f"pod{uid}|pod{uid.replace('-', '_')}"
        script = (
            "command -v tc >/dev/null || { echo no tc; exit; }\n"
            f"pid=$(grep -lEs '{names}' /proc/[0-9]*/cgroup | head -n 1 | cut -d / -f 3)\n"
            f"nsenter --target $pid --net -- tc qdisc add dev eth0 root {' '.join(SLOW)}"
        )
        if self.on_node(script).strip() == "no tc":
            pytest.skip("the node has no `tc`, so its links cannot be slowed down")

    @contextmanager
    def small_claim(self, lab: Lab, size: str) -> Iterator[str]:
        """The name of a claim on a file system of `size`, of memory of the node."""
        self.on_node(f"mkdir -p {SMALL} && mount -t tmpfs -o size={size},mode=2775,gid=10001 none {SMALL}")
        name = "stratlab-small"
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = _object(
            "PersistentVolume", name, spec | {"capacity": {"storage": "1Gi"}, "hostPath": {"path": SMALL}}
        )
        claim = _object(
            "PersistentVolumeClaim", name,
            spec | {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name},
        )  # fmt: skip
        try:
            lab.kubectl(
                "apply",
                "-f",
                "-",
                text=json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, claim]}),
            )
            yield name
        finally:
            lab.kubectl("delete", "pvc", name, "--ignore-not-found", "--wait=false")
            run([KUBECTL, "delete", "pv", name, "--ignore-not-found", "--wait=false"])
            self.on_node(f"umount -l {SMALL} && rmdir {SMALL}")


def _object(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


@contextmanager
def open_planter() -> Iterator[Planter]:
    """In a namespace of its own, which alone is `privileged`; taken away again."""
    label = {"pod-security.kubernetes.io/enforce": "privileged"}
    container = {
        "name": "planter",
        "image": LAB_IMAGE,
        "command": ["sleep", "infinity"],
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
    }
    pod = {"hostPID": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
    items = [
        _object("Namespace", NAMESPACE, {}, labels=label),
        _object("Pod", "planter", pod, namespace=NAMESPACE),
    ]
    try:
        for item in items:
            run([KUBECTL, "apply", "-f", "-"], text=json.dumps(item))
        run([KUBECTL, "-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/planter", "--timeout=120s"])
        yield Planter()
    finally:
        run([KUBECTL, "delete", "namespace", NAMESPACE, "--ignore-not-found"], check=False)
