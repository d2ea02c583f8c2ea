"""What `run.pod` says is refused where it contradicts the chart, hides a folder of the pods, or nobody can mean it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import CHARTS, container, helm_template, render, training_pod


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            {"pod": {"volumes": [{"name": "tmp", "mountPath": "/x", "emptyDir": {"sizeLimit": "1Gi"}}]}},
            "run.pod.volumes: tmp is there twice, or a volume of the chart's own",
        ),
        (
            {"pod": {"volumes": [{"name": "x", "mountPath": "/results/", "configMap": {"name": "a"}}]}},
            "run.pod.volumes: x is mounted at /results, where another volume is",
        ),
        *(
            (
                {"pod": {"volumes": [{"name": "x", "mountPath": path, "configMap": {"name": "a"}}]}, **more},
                says,
            )
            for path, more, says in (
                ("/results/default", {}, "x is mounted at /results/default, below /results,"),
                ("/results/_prepared/pets/", {}, "x is mounted at /results/_prepared/pets, below /results,"),
                (
                    "/data",
                    {"results": {"mountPath": "/data/runs/"}},
                    "x is mounted at /data, above /data/runs,",
                ),
            )
        ),
        *(
            (
                {"pod": {"volumes": [{"name": name, "mountPath": "/x", "emptyDir": {"sizeLimit": "1Gi"}}]}},
                f"run.pod.volumes: {name} is there twice, or a volume of the chart's own",
            )
            for name in ("ssh-auth", "mpi-job-config", "mpi-job-kubectl")
        ),
        *(
            (
                {"pod": {"labels": {name: "x"}}},
                f"run.pod.labels: {name} is set by the chart, Kubernetes or an operator",
            )
            for name in (
                *("job-name", "batch.kubernetes.io/job-name", "controller-uid"),
                *("batch.kubernetes.io/controller-uid", "kueue.x-k8s.io/pod-group-name"),
                *("kueue.x-k8s.io/managed", "jobset.sigs.k8s.io/jobset-name"),
            )
        ),
        (
            {
                "pod": {
                    "volumes": [
                        {
                            "name": "x",
                            "mountPath": "/x",
                            "persistentVolumeClaim": {"claimName": "stratlab-results"},
                        }
                    ]
                }
            },
            "run.pod.volumes: x is the claim stratlab-results, which the pods have already",
        ),
        (
            {"pod": {"initContainers": [{"name": "pytorch", "image": "a", "command": ["b"]}]}},
            "run.pod.initContainers: pytorch is there twice, or a container of the chart's",
        ),
        (
            {"pod": {"initContainers": [{"name": "a", "image": "a", "command": []}]}},
            "run.pod.initContainers: a has no command",
        ),
        (
            {"pod": {"labels": {"app.kubernetes.io/name": "x"}}},
            "run.pod.labels: app.kubernetes.io/name is set by the chart",
        ),
        ({"pod": {"labels": {"kueue.x-k8s.io/queue-name": "x"}}}, "Kueue's queue is run.scheduling.queue"),
        (
            {"workload": {"api": "mpijob-v2beta1"}, "pod": {"securityContext": {"runAsUser": 20000}}},
            "run.pod.securityContext.runAsUser=20000: sshd of an mpijob-v2beta1",
        ),
        ({"env": [{"name": "HOSTNAME", "value": "x"}]}, "run.env: HOSTNAME is the name of the pod"),
        (
            {
                "pod": {
                    "topologySpread": [
                        {"topologyKey": "rack", "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}
                        for skew in (1, 2)
                    ]
                }
            },
            "run.pod.topologySpread: rack, DoNotSchedule is there twice",
        ),
    ],
    ids=str,
)
def test_what_contradicts_the_chart_is_refused(helm: Path, run: dict[str, Any], says: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", values={"run": run})
    assert done.returncode == 1 and says in done.stderr, done.stderr


REFUSED_VOLUMES = [
    {"name": "x", "mountPath": "/x"},
    {"name": "x", "mountPath": "/x", "emptyDir": {}},  # without a bound
    {"name": "x", "mountPath": "/x", "emptyDir": {"sizeLimit": "0"}},
    {"name": "x", "mountPath": "/x", "nfs": {"server": "a", "path": "/"}},
    {"name": "x", "mountPath": "/x", "configMap": {"name": "a"}, "secret": {"secretName": "a"}},
    {"name": "x", "mountPath": "/usr/bin", "configMap": {"name": "a"}},
    {"name": "x", "mountPath": "/opt/venv/lib", "configMap": {"name": "a"}},
    {"name": "x", "mountPath": "/etc", "configMap": {"name": "a"}},
    {"name": "x", "mountPath": "/x/../etc", "configMap": {"name": "a"}},
    *(
        {"name": "x", "mountPath": path, "configMap": {"name": "a"}}
        for path in (
            *(
                "/etc/passwd",
                "/etc/hosts",
                "/etc/resolv.conf",
                "/etc/ld.so.preload",
                "/etc/ld.so.conf.d/x.conf",
            ),
            *("/usr", "/usr/local", "/proc/self", "/dev", "/sys/fs", "/bin", "/lib/x", "/usr/libexec"),
        )
    ),
    {"name": "x", "mountPath": "/x", "subPath": "a/../..", "configMap": {"name": "a"}},
    {"name": "x", "mountPath": "/x", "readOnly": True, "hostPath": {"path": "/a/../etc"}},
]


@pytest.mark.parametrize(
    "path",
    [
        "/usr/local/nvidia",
        "/usr/local/gib",
        "/etc/nccl",
        "/etc/hosts.d",
        "/data",
        "/results2",
        "/tmp2",
        "/tmp/huggingface",
        "/opt/x",
        "/mnt/a/b",
    ],
)
def test_a_volume_beside_what_is_the_pods_own(helm: Path, path: str) -> None:
    volume = {"name": "x", "mountPath": path, "configMap": {"name": "a"}}
    pod = training_pod(render(helm, CHARTS / "ddp", values={"run": {"pod": {"volumes": [volume]}}}))
    assert {"name": "x", "mountPath": path} in container(pod, "pytorch")["volumeMounts"]


@pytest.mark.parametrize("volume", REFUSED_VOLUMES, ids=json.dumps)
def test_the_schema_refuses_a_volume(helm: Path, volume: dict[str, Any]) -> None:
    allowed = {"level": "privileged", "hostPaths": ["/a"]}
    done = helm_template(
        helm, CHARTS / "ddp", values={"run": {"pod": {"volumes": [volume]}, "podSecurity": allowed}}
    )
    assert done.returncode == 1 and "specifications of the schema" in done.stderr, done.stderr
    assert "/pod/volumes/0" in done.stderr


@pytest.mark.parametrize(
    ("image", "taken"),
    [
        *((image, True) for image in ("a", "a:1", "host:5000/a/b-c__d.e", "host:5000/a:1@sha256:" + "c" * 64)),
        *((image, True) for image in ("nvcr.io/nvidia/pytorch:25.10-py3", "a@sha256:" + "c" * 64)),
        *((image, False) for image in ("a:", "a/", "a//b", "a@", "a:1:2", "a@sha256:c", "host:x/a", "a:.1")),
    ],
)  # fmt: skip
def test_the_image_of_an_init_container_is_a_reference(helm: Path, image: str, taken: bool) -> None:
    first = {"name": "x", "image": image, "command": ["true"]}
    done = helm_template(helm, CHARTS / "ddp", values={"run": {"pod": {"initContainers": [first]}}})
    assert (done.returncode == 0) == taken, done.stderr
    assert taken or "at '/pod/initContainers/0/image'" in done.stderr


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ([("A", "1"), ("A", "2")], "A is there twice"),
        ([("HF_TOKEN", "hunter2")], "HF_TOKEN looks like a secret"),
    ],
    ids=str,
)
def test_an_init_container_is_held_to_it_too(helm: Path, env: list[tuple[str, str]], says: str) -> None:
    variables = [{"name": name, "value": value} for name, value in env]
    first = {"name": "unpack", "image": "a", "command": ["true"], "env": variables}
    done = helm_template(helm, CHARTS / "ddp", values={"run": {"pod": {"initContainers": [first]}}})
    assert done.returncode == 1 and f"run.pod.initContainers: unpack: env: {says}" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_text_that_no_program_can_be_given_is_refused(helm: Path) -> None:
    first = {"name": "x", "image": "a", "command": ["a\0b"], "env": [{"name": "A", "value": "a\0b"}]}
    run = {"pod": {"initContainers": [first]}, "env": [{"name": "A", "value": "a\0b"}]}
    done = helm_template(helm, CHARTS / "ddp", values={"run": run})
    assert done.returncode == 1
    for key in ("/env/0/value", "/pod/initContainers/0/env/0/value", "/pod/initContainers/0/command/0"):
        assert key in done.stderr
