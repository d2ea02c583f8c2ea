"""A pod that a quota or a LimitRange refuses is said as that, with what helps; amounts of pods can be given."""

from typing import Any

import pytest

from stratlab.cluster.pod_phase import explain_refusal
from stratlab.cluster.pod_template import PodRequest, PodResources, build_pod, parse_pod_resources
from stratlab.namespace_checks import check_quotas
from stratlab.pod_checks import PodsRequest, judge_image, judge_sharing
from stratlab.workload_checks import check_small_job
from tests.codes import find_codes
from tests.stratlab.cluster.answering import Answering
from tests.stratlab.cluster.fake_kubelet import JOBS
from tests.stratlab.raised import raised

POD = 'pods "stratlab-volume-x" is forbidden: '
EXCEEDED = "exceeded quota: team, requested: limits.cpu=1, used: limits.cpu=4, limited: limits.cpu=4"
UNSPECIFIED = "failed quota: team: must specify limits.cpu for: volume; limits.memory for: volume"
RANGE = "[maximum cpu usage per Container is 500m, but limit is 1, minimum memory usage per Pod is 1Gi]"
SECURITY = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities'


@pytest.mark.parametrize(
    ("message", "code", "passes"),
    [
        (EXCEEDED, "SL-quota-exceeded", True),
        (UNSPECIFIED, "SL-quota-unspecified", False),
        (RANGE, "SL-limit-range", False),
    ],
)
def test_what_refuses_is_named(message, code, passes):
    refused = explain_refusal(POD + message)
    assert refused and find_codes(refused) == [code] == find_codes(refused.fix)
    assert message.strip("[]") in refused.seen and refused.passes is passes and refused.status != 403
    assert ("--pod-resources limits.cpu=AMOUNT" in refused.fix) is (message == UNSPECIFIED)
    assert explain_refusal(SECURITY) is None, "anything else is left as it is"


def test_a_check_blames_no_role():
    refused, later = explain_refusal(POD + UNSPECIFIED), explain_refusal(POD + EXCEEDED)
    assert refused and later
    request = PodsRequest(PodRequest("claim", image="lab"), "trainer", "")
    for finding in (judge_image("image", "lab", refused), *judge_sharing(request, refused, refused)):
        assert finding.state == "problem" and find_codes(finding.fix) == ["SL-quota-unspecified"]
    assert judge_image("image", "lab", later).state == "warning"


def test_a_check_does_not_call_the_operator_away(lab):
    connection, kubelet = lab
    kubelet.operates = False
    put = kubelet.api.put

    def create(collection: str, thing: dict[str, Any]) -> dict[str, Any]:
        if collection == JOBS:
            name = thing["metadata"]["name"]
            told = [  # only the newest warning about this job counts
                (name, "Warning", UNSPECIFIED),
                (name, "Warning", EXCEEDED),
                ("other", "Warning", UNSPECIFIED),
                (name, "Normal", UNSPECIFIED),
            ]
            for number, (about, kind, text) in enumerate(told):
                event = {"type": kind, "reason": "FailedCreatePod", "message": f"Error creating: {POD}{text}"}
                event |= {"metadata": {"name": f"e{number}"}, "involvedObject": {"name": about}}
                put("/api/v1/namespaces/lab/events", event)
        return put(collection, thing)

    kubelet.api.put = create  # type: ignore[method-assign]
    (finding,) = check_small_job(connection, "lab", lambda text: None, patience_s=1)
    assert finding.state == "warning" and find_codes(finding.fix) == ["SL-quota-exceeded"]


@pytest.mark.parametrize(
    ("hard", "used", "limit", "states"),
    [
        ({"limits.cpu": "4"}, {"limits.cpu": "1500m"}, {}, ["ok", "warning"]),
        ({"limits.cpu": "4"}, {"limits.cpu": "4000m"}, {"default": {"cpu": "1"}}, ["warning"]),
        ({"limits.cpu": "4"}, {}, {"type": "Pod", "max": {"cpu": "1"}}, ["ok", "warning"]),
        ({"pods": "0"}, {"pods": "0"}, {}, ["ok"]),  # none is meant to be there
    ],
)
def test_quotas_of_the_namespace(hard, used, limit, states):
    core, cluster = "/api/v1/namespaces/lab", Answering()
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"used": used}}
    ranges = {"metadata": {}, "spec": {"limits": [{"type": "Container", **limit}]}}
    cluster.things = {f"{core}/resourcequotas": [], f"{core}/limitranges": [ranges]}
    assert list(check_quotas(cluster)) == []  # type: ignore[arg-type]
    cluster.things[f"{core}/resourcequotas"] = [quota]
    findings = list(check_quotas(cluster))  # type: ignore[arg-type]
    assert [finding.state for finding in findings] == states
    assert "team" in findings[0].subject
    assert all("run.analysis.resources.limits.cpu" in finding.fix for finding in findings[1:])


def test_amounts_of_a_pod_are_small_bounded_and_settable():
    given = parse_pod_resources("limits.cpu=500m,requests.memory=2Gi,limits.ephemeral-storage=1Gi")
    (container,) = build_pod(["python"], PodRequest(limits={"gpu": 1}), given)["spec"]["containers"]
    limits = {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi", "gpu": 1}
    assert container["resources"] == {"limits": limits, "requests": {"cpu": "20m", "memory": "2Gi"}}
    assert parse_pod_resources("limits.memory=64Mi").requests["memory"] == "64Mi"
    assert parse_pod_resources("") == PodResources()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("cpu=1", "SL-pod-resources-form"),
        ("limits.cpu=much", "SL-pod-resources-amount"),
        ("limits.cpu=1,requests.cpu=2", "SL-pod-resources-above-limit"),
    ],
)
def test_amounts_that_are_none_are_refused(text, code):
    refused = raised(parse_pod_resources, text)
    assert find_codes(refused) == [code] and "--pod-resources" in str(refused)
