"""A pod that a quota or a LimitRange refuses is said as that, with what helps; amounts of pods can be given."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.check.pod_checks import PodsRequest, judge_image, judge_sharing
from stratlab.check.quotas import check_quotas
from stratlab.check.small_job import check_small_job
from stratlab.cluster.admission import PodRefused, explain_refusal
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_resources import PodResources, parse_pod_resources
from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.user_error import UserError
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import JOBS
from tests.stratlab.cluster.lab import Lab, lab

__all__ = ["lab"]

POD = 'pods "stratlab-volume-x" is forbidden: '
EXCEEDED = "exceeded quota: team, requested: limits.cpu=1, used: limits.cpu=4, limited: limits.cpu=4"
UNSPECIFIED = "failed quota: team: must specify limits.cpu for: volume; limits.memory for: volume"
RANGE = "[maximum cpu usage per Container is 500m, but limit is 1, minimum memory usage per Pod is 1Gi]"
RATIO = "cpu max limit to request ratio per Container is 2, but provided ratio is 50.000000"
RIGHT = 'pods is forbidden: User "ana" cannot create resource "pods" in API group "" in the namespace "lab"'
SECURITY = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities'


@pytest.mark.parametrize(
    ("message", "kind", "passes", "fix"),
    [
        (EXCEEDED, "quota", True, "raise the quota"),
        (UNSPECIFIED, "quota", False, "--pod-resources limits.cpu=AMOUNT"),
        (RANGE, "LimitRange", False, "--pod-resources"),
        (RATIO, "LimitRange", False, "--pod-resources"),
    ],
)
def test_what_refuses_is_named(message: str, kind: str, passes: bool, fix: str) -> None:
    refused = explain_refusal(POD + message)
    assert refused and f"a {kind} refuses" in refused.seen and message.strip("[]") in refused.seen
    assert refused.passes is passes and fix in refused.fix and refused.status != 403


@pytest.mark.parametrize("message", [RIGHT, SECURITY, "no API server answers"])
def test_anything_else_is_left_as_it_is(message: str) -> None:
    assert explain_refusal(message) is None


@pytest.mark.parametrize("message", [EXCEEDED, UNSPECIFIED, RANGE])
def test_every_verb_that_starts_a_pod_says_it(lab: Lab, message: str) -> None:
    connection, kubelet = lab
    kubelet.deny = (403, POD + message)
    with pytest.raises(PodRefused, match="refuses its pod"):
        run_on_volume(connection, "lab", claim=None, mount="/results", image="lab", command=["python"])


def test_a_check_blames_no_role(lab: Lab) -> None:
    refused = explain_refusal(POD + UNSPECIFIED)
    assert refused
    request = PodsRequest("claim", "/results", "lab", "trainer", "")
    for finding in (judge_image("image", "lab", refused), *judge_sharing(request, refused, refused)):
        assert finding.state == "problem" and "Role" not in finding.fix and "quota" in finding.seen
    later = explain_refusal(POD + EXCEEDED)
    assert later and judge_image("image", "lab", later).state == "warning"


def test_a_check_does_not_call_the_operator_away(lab: Lab) -> None:
    """It may not make the pod, and says so in an event: the job has no status then."""
    connection, kubelet = lab
    kubelet.operates = False
    events = "/api/v1/namespaces/lab/events"
    put = kubelet.api.put

    def create(collection: str, thing: dict) -> dict:
        if collection == JOBS:
            name = thing["metadata"]["name"]
            message = f"Error creating: {POD}{EXCEEDED}"
            told = [  # only the newest warning about this job counts
                (name, "Warning", f"Error creating: {POD}{UNSPECIFIED}"),
                (name, "Warning", message),
                ("other", "Warning", f"Error creating: {POD}{UNSPECIFIED}"),
                (name, "Normal", f"Error creating: {POD}{UNSPECIFIED}"),
            ]
            for number, (about, kind, text) in enumerate(told):
                event = {"type": kind, "reason": "FailedCreatePod", "message": text}
                put(events, {"metadata": {"name": f"e{number}"}, "involvedObject": {"name": about}, **event})
        return put(collection, thing)

    kubelet.api.put = create  # type: ignore[method-assign]
    (finding,) = check_small_job(connection, "lab", "lab", lambda text: None, patience_s=1)
    assert finding.state == "warning" and EXCEEDED in finding.seen and "operator" not in finding.seen


def quota(hard: dict[str, str], used: dict[str, str]) -> dict:
    return {"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"used": used}}


@pytest.mark.parametrize(
    ("hard", "used", "limit", "states"),
    [
        ({"limits.cpu": "4"}, {"limits.cpu": "1500m"}, {}, ["ok", "warning"]),
        ({"limits.cpu": "4"}, {"limits.cpu": "4000m"}, {"default": {"cpu": "1"}}, ["warning"]),
        ({"limits.cpu": "4"}, {}, {"max": {"cpu": "1"}}, ["ok"]),
        ({"limits.cpu": "4"}, {}, {"type": "Pod", "max": {"cpu": "1"}}, ["ok", "warning"]),
        ({"limits.cpu": "4"}, {}, {"defaultRequest": {"cpu": "1"}}, ["ok", "warning"]),
        ({"pods": "50"}, {"pods": "3"}, {}, ["ok"]),
        ({"pods": "0"}, {"pods": "0"}, {}, ["ok"]),  # none is meant to be there
        ({"requests.memory": "4Gi"}, {"requests.memory": "0"}, {}, ["ok"]),
    ],
)
def test_quotas_of_the_namespace(
    api: FakeApi,
    connection: Connection,
    hard: dict[str, str],
    used: dict[str, str],
    limit: dict[str, Any],
    states: list[str],
) -> None:
    core = "/api/v1/namespaces/lab"
    api.put(f"{core}/resourcequotas", quota(hard, used))
    limits = [{"type": "Container", **limit}]
    api.put(f"{core}/limitranges", {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    findings = list(check_quotas(connection, "lab"))
    assert [finding.state for finding in findings] == states
    assert "team" in findings[0].subject
    if len(findings) > 1:
        assert "run.analysis.resources.limits.cpu" in findings[1].fix


def test_a_namespace_without_quotas_has_no_line(api: FakeApi, connection: Connection) -> None:
    api.served |= {f"/api/v1/namespaces/lab/{kind}" for kind in ("resourcequotas", "limitranges")}
    assert list(check_quotas(connection, "lab")) == []


def test_amounts_of_a_pod_are_small_bounded_and_settable() -> None:
    (container,) = build_pod(["python"], PodRequest())["spec"]["containers"]
    assert {*container["resources"]["limits"]} == {*container["resources"]["requests"]} == {"cpu", "memory"}
    given = parse_pod_resources("limits.cpu=500m,requests.memory=2Gi,limits.ephemeral-storage=1Gi")
    (container,) = build_pod(["python"], PodRequest(limits={"gpu": 1}), given)["spec"]["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "500m",
        "memory": "2Gi",
        "ephemeral-storage": "1Gi",
        "gpu": 1,
    }
    assert container["resources"]["requests"] == {"cpu": "20m", "memory": "2Gi"}
    assert parse_pod_resources("limits.memory=64Mi").requests["memory"] == "64Mi"
    assert parse_pod_resources("") == PodResources()


@pytest.mark.parametrize(
    "text", ["cpu=1", "limits.cpu", "limits.cpu=much", "limits.cpu=1,requests.cpu=2", "requests.=1"]
)
def test_amounts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--pod-resources"):
        parse_pod_resources(text)


def test_the_amounts_reach_the_pods_that_are_started(lab: Lab) -> None:
    from dataclasses import replace

    connection = replace(lab[0], pod_resources=parse_pod_resources("limits.cpu=2"))
    run_on_volume(connection, "lab", claim=None, mount="/x", image="lab", command=["python", "-c", "pass"])
    (pod,) = lab[1].created
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"
