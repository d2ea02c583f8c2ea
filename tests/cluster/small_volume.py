"""A volume that is really small: memory of a pod, which the kubelet mounts with its size, offered as a claim.

A pod keeps it alive and looks at it. Where the kubelet has it on the node is told by what the pod sees of its own
mounts; STRATLAB_KUBELET_DIR names the kubelet's folder where that is not so (kind: /var/lib/kubelet).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.lab import KUBECTL, MOUNT, RESTRICTED, TRAINER_IMAGE, USER, Lab, build_object, run

# of /proc/self/mountinfo: the folder on the node behind /etc/hosts, which lies in the folder of the pod
FIND = "next(x.split()[3] for x in open('/proc/self/mountinfo') if x.split()[4] == '/etc/hosts')"
# each committed checkpoint and what is wrong with it, by the trainer's own check of every byte
CHECK = """
import json, sys
from pathlib import Path
from trainer.checkpoint.manifest import find_problem
there = sorted(path.parent for path in Path(sys.argv[1]).glob("step_*/COMMIT"))
print(json.dumps({path.name: find_problem(path) for path in there}))
"""


@dataclass(frozen=True)
class SmallVolume:
    """A claim of this name, in the namespace of `lab`."""

    lab: Lab
    name: str

    def exec(self, *command: str, check: bool = True) -> str:
        """What a command prints that sees the volume under MOUNT."""
        return self.lab.kubectl("exec", self.name, "--", *command, check=check)

    def fill(self) -> None:
        """To the last byte."""
        self.exec("dd", "if=/dev/zero", f"of={MOUNT}/filler", "bs=4k", check=False)

    def free(self) -> None:
        self.exec("rm", f"{MOUNT}/filler")

    def check_checkpoints(self, folder: str) -> dict[str, str | None]:
        """{committed checkpoint: what is wrong with it, None: nothing}."""
        return dict(json.loads(self.exec("python", "-c", CHECK, f"{MOUNT}/{folder}/checkpoints")))

    def read_lines(self, path: str) -> list[dict[str, Any]]:
        """Whole lines of a .jsonl file below the results."""
        text = self.exec("cat", f"{MOUNT}/{path}", check=False)
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


@contextmanager
def small_volume(lab: Lab, name: str, size: str = "64Mi") -> Iterator[SmallVolume]:
    """Leaves nothing behind."""
    volume = SmallVolume(lab, name)
    try:
        lab.apply(_build_keeper(name, size))
        lab.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s")
        lab.apply(*_build_claim(lab, name, size, _find_folder(volume)))
        lab.kubectl("wait", f"pvc/{name}", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")
        yield volume
    finally:
        lab.kubectl("delete", "pvc", name, "--ignore-not-found", "--timeout=60s", check=False)
        run([KUBECTL, "delete", "pv", f"{lab.namespace}-{name}", "--ignore-not-found"], check=False)
        lab.kubectl("delete", "pod", name, "--ignore-not-found", "--now", check=False)


def _find_folder(volume: SmallVolume) -> str:
    """Of the pod's memory, on the node."""
    hosts = volume.exec("python", "-c", f"print({FIND})").strip()
    uid = volume.lab.get("pod", volume.name)["metadata"]["uid"]
    kubelet = os.environ.get("STRATLAB_KUBELET_DIR") or hosts.partition("/pods/")[0]
    return f"{kubelet}/pods/{uid}/volumes/kubernetes.io~empty-dir/small"


def _build_keeper(name: str, size: str) -> dict[str, Any]:
    container = {
        "name": "keeper", "image": TRAINER_IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "7200"],
        "securityContext": RESTRICTED, "volumeMounts": [{"name": "small", "mountPath": MOUNT}],
    }  # fmt: skip
    memory = {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    spec = {
        "securityContext": USER | {"runAsGroup": 10001, "fsGroup": 10001},
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
        "containers": [container], "volumes": [memory],
    }  # fmt: skip
    return build_object("Pod", name, spec)


def _build_claim(lab: Lab, name: str, size: str, folder: str) -> list[dict[str, Any]]:
    """The volume, which has no namespace, and the claim, each bound to the other by its name."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    of_node = {
        "capacity": {"storage": size},
        "hostPath": {"path": folder, "type": "Directory"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"name": name, "namespace": lab.namespace},
    }
    asked = {"resources": {"requests": {"storage": size}}, "volumeName": f"{lab.namespace}-{name}"}
    return [
        build_object("PersistentVolume", f"{lab.namespace}-{name}", common | of_node),
        build_object("PersistentVolumeClaim", name, common | asked),
    ]
