"""What a run waits for before its first step, and what helps."""

from __future__ import annotations

import pytest

from stratlab.cluster.watching import ADDED
from stratlab.watch_display import Lines, describe_waiting, find_remedy
from stratlab.watch_state import LOG, PODS
from tests.stratlab.watch.objects import build_pod
from tests.stratlab.watch.test_picture import LINE, add, build_picture


def test_what_a_run_waits_for_is_said() -> None:
    message = "0/1 nodes: Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    blocked = build_pod(1, "Pending", conditions=[unscheduled])
    picture = add(build_picture("Running", workers=3), PODS, build_pod(0), blocked)
    told = describe_waiting(picture)
    assert told.startswith("1 of 3 pods ") and f"demo-worker-1, Unschedulable: {message}; 1 " in told
    picture.apply_change(LOG, ADDED, LINE.format(1))
    assert describe_waiting(picture) == "", "it trains"
    ended = add(build_picture("Running"), PODS, build_pod(0), build_pod(1, "Failed"))
    assert describe_waiting(ended) == "", "nobody waits for a pod that has ended"


@pytest.mark.parametrize(
    ("note", "named"),
    [
        ('0/1 nodes are available: persistentvolumeclaim "stratlab-results" not found. not found', "-n lab"),
        ('ErrImagePull: failed to pull image "x:9"', "run.image (repository, tag, pullSecrets)"),
        ("0/1 nodes: 1 node(s) didn't match Pod's node affinity/selector.", "run.scheduling.nodeSelector"),
        ("0/1 nodes: 1 node(s) had untolerated taint(s).", "run.scheduling.tolerations"),
        ("0/1 nodes: 1 Insufficient memory.", "run.resources.requests.memory"),
        ("0/1 nodes: 1 Insufficient nvidia.com/gpu.", "run.nodes x run.processesPerNode"),
    ],
)
def test_what_helps_a_pod_that_does_not_start_is_said(note: str, named: str) -> None:
    assert named in find_remedy(note, "lab")


def test_what_is_known_of_no_remedy_says_none() -> None:
    for note in ("CrashLoopBackOff: back-off 10s", "0/1 nodes are available: 1 Insufficient pods.", ""):
        assert find_remedy(note, "lab") == ""
    assert "run.analysis.image" in find_remedy("ImagePullBackOff: x", "lab", is_analysis=True)


def test_an_image_that_cannot_be_pulled_is_told_once_with_what_helps() -> None:
    """Kubernetes has two reasons for it, which take turns."""
    said: list[str] = []
    lines = Lines(said.append)
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waiting = {"waiting": {"reason": reason, "message": "pull access denied"}}
        lines.show(add(build_picture("Running"), PODS, build_pod(0, "Pending", state=waiting)))
    assert len([line for line in said if "pod demo-worker-0" in line]) == 1
    assert len([line for line in said if "run.image" in line]) == 1
