"""What a run waits for before its first step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratlab.cluster.watching import ADDED
from stratlab.cluster.workloads import APIS, Workload
from stratlab.watch.farewell import build_farewell, describe_left
from stratlab.watch.lines import Lines, describe_waiting, list_remedies
from stratlab.watch.picture import JOBS, LOG, PODS, Picture
from stratlab.watch.pod_remedies import find_remedy
from tests.stratlab.watch.objects import build_analysis, build_pod, build_run, ended


def test_what_a_run_waits_for_is_said() -> None:
    run = build_run("Created", "Running", workers=3)
    run["metadata"]["uid"] = "run"
    picture = Picture(Workload(APIS["pytorchjob"], run))
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    blocked = build_pod(
        1, "Pending", conditions=[unscheduled | {"message": "0/1 nodes: Insufficient nvidia.com/gpu."}]
    )
    blocked["spec"]["nodeName"] = ""
    for number, pod in enumerate((build_pod(0), blocked)):
        pod["metadata"]["uid"] = str(number)
        picture.apply_change(PODS, ADDED, pod)
    assert describe_waiting(picture) == (
        "1 of 3 pods runs and waits for the others: demo-worker-1, "
        "Unschedulable: 0/1 nodes: Insufficient nvidia.com/gpu.; 1 is not there yet"
    )
    picture.apply_change(LOG, ADDED, "step 1/600  loss 0.4321  812 samples/s  78.9 ms/step  about 38 s left")
    assert describe_waiting(picture) == "", "it trains"


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            '0/1 nodes are available: persistentvolumeclaim "stratlab-results" not found. not found',
            "was -n left out",
        ),
        ('ErrImagePull: failed to pull image "x:9"', "run.image (repository, tag, pullSecrets)"),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "nodeSelector"),
        ("0/1 nodes are available: 1 node(s) had untolerated taint(s).", "run.scheduling.tolerations"),
        ("0/1 nodes are available: 1 Insufficient memory.", "run.resources.requests.memory"),
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "run.nodes x run.processesPerNode"),
    ],
)
def test_what_helps_a_pod_that_does_not_start_is_said(note: str, words: str) -> None:
    assert words in find_remedy(note, "lab")


def test_what_is_known_of_no_remedy_says_none() -> None:
    for note in ("CrashLoopBackOff: back-off 10s", "0/1 nodes are available: 1 Insufficient pods.", ""):
        assert find_remedy(note, "lab") == ""
    assert "helm upgrade" in find_remedy("ImagePullBackOff: x", "lab", is_analysis=True)


def picture_of(*pods: dict[str, Any]) -> Picture:
    run = build_run("Created", "Running", workers=2)
    run["metadata"] |= {"uid": "run", "namespace": "lab"}
    picture = Picture(Workload(APIS["pytorchjob"], run))
    for number, pod in enumerate(pods):
        pod["metadata"]["uid"] = str(number)
        picture.apply_change(PODS, ADDED, pod)
    return picture


def test_nobody_waits_for_a_pod_that_has_ended() -> None:
    assert describe_waiting(picture_of(build_pod(0), build_pod(1, "Failed"))) == ""


def test_an_image_that_cannot_be_pulled_is_told_once_with_what_helps() -> None:
    """Kubernetes has two reasons for it, which take turns."""
    said: list[str] = []
    lines = Lines(said.append)
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        pod = build_pod(0, "Pending")
        waiting = {"state": {"waiting": {"reason": reason, "message": "pull access denied"}}}
        pod["status"]["containerStatuses"] = [{**pod["status"].get("containerStatuses", [{}])[0], **waiting}]
        lines.show(picture := picture_of(pod))
    assert len([line for line in said if "pod demo-worker-0" in line]) == 1
    assert len([line for line in said if line.startswith("what helps: run.image")]) == 1
    assert len(list_remedies(picture)) == 1


def test_who_leaves_hears_what_goes_on() -> None:
    picture = picture_of(build_pod(0))
    assert describe_left(picture) == "the run goes on"
    picture.deleted = True
    assert describe_left(picture) == "the run is deleted"
    assert describe_left(None) == "no such run has come yet"


def test_a_run_that_was_refused_is_not_sent_to_its_analysis() -> None:
    """It has begun nothing: its analysis found nothing, or another run's folder. After a step it is the trail."""
    words = "TRAINER_GLOBAL_BATCH_SIZE=64: must be a multiple of 48"
    message = json.dumps({"exit_code": 2, "reason": "bad configuration", "message": words})
    pod = build_pod(0, "Failed", state=ended(2, message))
    for condition, line in (("Failed", "the analysis failed"), ("Complete", "report: ")):
        run = build_run("Failed")
        run["metadata"] |= {"uid": "run", "namespace": "lab"}
        picture = Picture(Workload(APIS["pytorchjob"], run))
        for source, kind, thing in ((PODS, "pod", pod), (JOBS, "job", build_analysis(condition))):
            thing["metadata"]["uid"] = kind
            picture.apply_change(source, ADDED, thing)
        told = build_farewell(picture)
        assert "  run.config.global_batch_size=64: must be a multiple of 48" in told
        assert not [each for each in told if each.startswith(line)]
        picture.apply_change(LOG, ADDED, "step 1/9  loss 0.4  812 samples/s  78.9 ms/step  about 38 s left")
        assert [each for each in build_farewell(picture) if each.startswith(line)]
