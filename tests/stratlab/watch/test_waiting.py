"""What a run waits for before its first step."""

from __future__ import annotations

from stratlab.cluster.watching import ADDED
from stratlab.cluster.workloads import APIS, Workload
from stratlab.watch.lines import describe_waiting
from stratlab.watch.picture import LOG, PODS, Picture
from tests.stratlab.watch.objects import build_pod, build_run


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
