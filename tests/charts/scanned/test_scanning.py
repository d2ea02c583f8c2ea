"""checkov sees every pod of every chart, also inside of custom resources, and finds nothing that is not waived."""

from __future__ import annotations

import copy

import pytest

from tests.charts.pod_security import restricted_problems
from tests.charts.rendering import (
    CHARTS,
    OTHER_CHARTS,
    Document,
    discover_charts,
    discover_other_charts,
    find_program,
    pick,
    render,
)
from tests.charts.scanning import Finding, read_waivers, scan
from tests.charts.unwrapping import WORKLOADS, unwrap_pods, workload_values

HARDENED = ["--values", str(CHARTS.parent / "tests" / "charts" / "hardened.yaml")]
SECTIONS = {"shipped": ("always", "as_shipped"), "hardened": ("always",)}


def plant(documents: list[Document]) -> list[Document]:
    planted = copy.deepcopy(documents)
    pod = pick(planted, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["hostNetwork"] = True
    pod["containers"][0]["securityContext"]["privileged"] = True
    return planted


@pytest.fixture(scope="module")
def objects() -> dict[str, Document]:
    """Pods by section, chart or workload, and pod; a planted one; and the planted resource as the cluster gets it."""
    helm = find_program("helm")
    found: dict[str, Document] = {}
    for chart in discover_charts(CHARTS):
        for name, pod in unwrap_pods(render(helm, CHARTS / chart)).items():
            found[f"shipped {chart} {name}"] = pod
    for chart in discover_other_charts():
        for name, pod in unwrap_pods(render(helm, CHARTS / chart, OTHER_CHARTS[chart])).items():
            found[f"shipped {chart} {name}"] = pod
    for api, topology in WORKLOADS:
        for section, values in (("shipped", []), ("hardened", HARDENED)):
            settings = ["--set", "run.nodes=2", *workload_values(api, topology), *values]
            documents = render(helm, CHARTS / "ddp", settings)
            for name, pod in unwrap_pods(documents).items():
                found[f"{section} {api}-{topology} {name}"] = pod
    planted = plant(render(helm, CHARTS / "ddp"))
    found["planted ddp PyTorchJob"] = pick(planted, "PyTorchJob")
    found["planted ddp PyTorchJob.Worker"] = unwrap_pods(planted)["PyTorchJob.Worker"]
    return found


@pytest.fixture(scope="module")
def findings(
    objects: dict[str, Document], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Finding]]:
    return scan(objects, tmp_path_factory.mktemp("scan"))


def test_every_pod_of_every_chart_and_workload_is_scanned(objects: dict[str, Document]) -> None:
    shipped = [name for name in objects if name.startswith("shipped")]
    training = sum(len(templates) for templates in WORKLOADS.values())
    runs, others = len(discover_charts(CHARTS)), len(discover_other_charts())
    assert len(shipped) == 4 * runs + others + 3 * len(WORKLOADS) + training
    assert len([name for name in objects if name.startswith("hardened")]) == 3 * len(WORKLOADS) + training


def test_nothing_is_found_that_is_not_waived(findings: dict[str, list[Finding]]) -> None:
    waivers = read_waivers()
    left = []
    for name, found in findings.items():
        section, _, pod = name.split(" ")
        allowed = [waiver for part in SECTIONS.get(section, ()) for waiver in waivers[part]]
        if section != "planted":
            left += [(name, f.check, f.title) for f in found if not any(w.covers(f, pod) for w in allowed)]
    assert left == []


def test_every_waiver_is_needed_and_says_why(findings: dict[str, list[Finding]]) -> None:
    for section, waivers in read_waivers().items():
        for waiver in waivers:
            where = "hardened" if section == "always" else "shipped"
            assert len(waiver.reason.split()) >= 5
            assert any(
                waiver.covers(finding, name.split(" ")[2])
                for name, found in findings.items()
                if name.startswith(where)
                for finding in found
            ), f"{waiver.check}: nothing needs it"


def test_both_checkers_see_inside_of_custom_resources(
    objects: dict[str, Document], findings: dict[str, list[Finding]]
) -> None:
    found = {finding.check for finding in findings["planted ddp PyTorchJob.Worker"]}
    assert {"CKV_K8S_16", "CKV_K8S_19"} <= found  # privileged, the host's network
    assert {"pod: hostNetwork", "pytorch: privileged"} <= {
        *restricted_problems(objects["planted ddp PyTorchJob.Worker"]["spec"])
    }


def test_why_the_pods_are_unwrapped(findings: dict[str, list[Finding]]) -> None:
    """checkov alone finds nothing in the very same resource."""
    assert findings["planted ddp PyTorchJob"] == []
