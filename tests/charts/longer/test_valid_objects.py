"""Everything that a chart renders, the cluster accepts; its pods keep to Pod Security, and reserve what they need."""

import copy
from pathlib import Path

import pytest

from tests.charts.golden_file import BASE, FULL, read_full
from tests.charts.pod_security import find_level, restricted_problems
from tests.charts.rendering import CHARTS, Document, container, pick, render, training_pod
from tests.charts.valid_objects import RUNNING, problems, unwrap_pods

ON_THE_NODE = {"pod: hostNetwork", "pod: hostIPC", "pod: volume type"}


@pytest.mark.parametrize("name", FULL)
def test_a_full_render(helm: Path, name: str) -> None:
    documents = read_full(helm, name)
    assert problems(documents) == []
    pods = unwrap_pods(documents)
    assert len(pods) >= (1 if name == "prepare" else 4)
    for role, pod in pods.items():
        spec = pod["spec"]
        if name.startswith("everything") and role in RUNNING:
            own = f"{spec['containers'][0]['name']}: capabilities.add"
            assert {*restricted_problems(spec)} == ON_THE_NODE | {own}
        else:  # operators add what is not in here
            assert restricted_problems(spec) == []
        assert spec["enableServiceLinks"] is False, "a Service `trainer` would set TRAINER_..._PORT"
        assert spec["automountServiceAccountToken"] is (role == "MPIJob.Launcher" and name.endswith("v1"))
        assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            amounts = each["resources"].get("requests", {}) | each["resources"].get("limits", {})
            assert amounts.keys() >= {"cpu", "memory"} or "everything" in name, "no pod is BestEffort"


def test_the_check_is_not_blind(helm: Path) -> None:
    documents = copy.deepcopy(read_full(helm, BASE))
    container = training_pod(documents)["containers"][0]
    container["volumeMounts"].append(container["volumeMounts"][0])
    assert len(problems(documents)) == 1
    container["comand"] = pick(documents, "PyTorchJob")["spec"]["elasticPolicy"]["minReplica"] = 1
    assert len(problems(documents)) == 4  # of the container by the operator and by either version


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        ({"hostNetwork": True}, "pod: hostNetwork"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "pod: volume type"),
        ({"securityContext": {"runAsUser": 0}}, "pytorch: runAsNonRoot"),
    ],
)
def test_the_check_of_pod_security_is_not_blind(helm: Path, plant: Document, problem: str) -> None:
    pod = copy.deepcopy(training_pod(read_full(helm, BASE)))
    assert find_level(pod) == "restricted"
    assert problem in restricted_problems(pod | plant) and find_level(pod | plant) != "restricted"


def test_the_longest_names(helm: Path) -> None:
    """63 characters: the names of Jobs are labels of their pods too, and of an Indexed Job's last pod a host name."""
    jobs = {
        (shares, end): [
            each["metadata"]["name"]
            for each in render(
                helm,
                CHARTS / "ddp",
                ["--set", f"run.nodes=1000,run.analysis.shares={shares}"],
                release="r" * 51 + end,
            )
            if each["kind"] == "Job"
        ]
        for shares in (1, 1000)
        for end in "ab"
    }
    assert {len(name) for end in "ab" for name in jobs[1, end]} == {63}
    assert {len(f"{jobs[1000, end][0]}-999") for end in "ab"} == {63}
    assert len({name for names in jobs.values() for name in names}) == 8


@pytest.mark.parametrize(
    ("run", "requests"),
    [
        ({"processesPerNode": 8}, {"cpu": "16", "memory": "64Gi"}),
        # of a limit alone Kubernetes makes a request of the same amount; a larger one would be refused
        ({"resources": {"limits": {"memory": "4Gi"}}}, {"cpu": "4"}),
        (
            {"resources": {"requests": {"ephemeral-storage": "9Gi"}}},
            {"cpu": "4", "ephemeral-storage": "9Gi", "memory": "16Gi"},
        ),
    ],
    ids=str,
)
def test_what_a_pod_requests(helm: Path, run: Document, requests: dict[str, str]) -> None:
    rendered = render(helm, CHARTS / "ddp", values={"run": run})
    resources = container(training_pod(rendered), "pytorch")["resources"]
    assert resources["requests"] == requests
    assert resources["limits"]["nvidia.com/gpu"] == str(run.get("processesPerNode", 2))


SAME_OR_MORE = [
    ("501m", 2),
    ("1M", "1000k"),
    (1073741824, "1Gi"),
    ("100m", 0.1),
    ("1G", "1Gi"),
    ("1E", "2Ei"),
]


def test_a_request_may_be_its_limit_whatever_its_unit(helm: Path) -> None:
    requests = {f"a.b/c{i}": pair[0] for i, pair in enumerate(SAME_OR_MORE)}
    limits = {f"a.b/c{i}": pair[1] for i, pair in enumerate(SAME_OR_MORE)}
    render(helm, CHARTS / "ddp", values={"run": {"resources": {"requests": requests, "limits": limits}}})
