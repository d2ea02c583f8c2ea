from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.charts.core_object import core_object_problems
from tests.charts.golden_file import GOLDEN
from tests.charts.rendering import pick, read_documents

Job = dict[str, Any]


def pod(job: Job) -> Job:
    return job["spec"]["template"]["spec"]


def rules(job: Job) -> list[Job]:
    return job["spec"]["podFailurePolicy"]["rules"]


MUTATIONS: dict[str, tuple[Callable[[Job], Any], str]] = {
    "unknown field in spec": (lambda j: j["spec"].update(backofLimit=1), "backofLimit"),
    "unknown field in container": (lambda j: pod(j)["containers"][0].update(comand=["x"]), "comand"),
    "unknown field in init container": (lambda j: pod(j).update(initContainers=[
        pod(j)["containers"][0] | {"name": "first", "comand": ["x"]}]), "comand"),
    "deadline is text": (lambda j: j["spec"].update(activeDeadlineSeconds="60"), "is not of type"),
    "unknown kind": (lambda j: j.update(kind="Jobb"), "no schema"),
    "name too long": (lambda j: j["metadata"].update(name="r" * 64), "at most 63 characters"),
    "restartPolicy Always": (lambda j: pod(j).update(restartPolicy="Always"), "takes Never or OnFailure"),
    "no restartPolicy": (lambda j: pod(j).pop("restartPolicy"), "takes Never or OnFailure"),
    "failure policy without Never": (lambda j: pod(j).update(restartPolicy="OnFailure"), "needs restartPolicy"),
    "action Bogus": (lambda j: rules(j)[0].update(action="Stop"), "action Stop"),
    "operator Bogus": (lambda j: rules(j)[0]["onExitCodes"].update(operator="Is"), "operator Is"),
    "exit codes descend": (lambda j: rules(j)[0]["onExitCodes"]["values"].reverse(), "ascending"),
    "exit code 0": (lambda j: rules(j)[0]["onExitCodes"].update(values=[0, 2]), "0 is no failure"),
    "two conditions": (lambda j: rules(j)[1].update(rules(j)[0]), "either onExitCodes"),
    "status of a condition": (lambda j: rules(j)[1]["onPodConditions"][0].update(status="yes"), "True, False"),
    "mount without volume": (lambda j: pod(j)["containers"][0].update(volumeMounts=[
        {"name": "zz", "mountPath": "/z"}]), "has no volume"),
    "label value": (lambda j: j["metadata"]["labels"].update(team="a b"), "label team"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good() -> Job:
    job = pick(read_documents((GOLDEN / "ddp.yaml").read_text()), "Job")
    assert core_object_problems(job) == []
    return job


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_job_is_refused(good: Job, name: str) -> None:
    change, reason = MUTATIONS[name]
    job = copy.deepcopy(good)
    change(job)
    assert any(reason in problem for problem in core_object_problems(job)), core_object_problems(job)


def test_a_kind_without_rules_is_not_waved_through() -> None:
    claim = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    assert "give it rules" in core_object_problems(claim)[0]
