"""Who may do what: as little as works, and as much as the charts need."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.check.rights import MINE
from tests.charts.rendering import CHARTS, Document, find_program, helm_template, read_documents
from tests.manifests.kustomize import kinds, pick

WATCH = {"get", "list", "watch"}
HELM = WATCH | {"create", "patch", "update", "delete"}
# apiVersion and kind of what a chart may render -> group and plural
RESOURCES = {
    ("kubeflow.org/v1", "PyTorchJob"): ("kubeflow.org", "pytorchjobs"),
    ("kubeflow.org/v1", "MPIJob"): ("kubeflow.org", "mpijobs"),
    ("kubeflow.org/v2beta1", "MPIJob"): ("kubeflow.org", "mpijobs"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): ("trainer.kubeflow.org", "trainjobs"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): ("trainer.kubeflow.org", "trainingruntimes"),
    ("batch/v1", "Job"): ("batch", "jobs"),
    ("v1", "Pod"): ("", "pods"),
}
NEEDED = {"prepare": ["--set", "prepare.dataset=org/pets"]}
HOOK = {
    "get",
    "list",
    "watch",
    "create",
    "patch",
    "delete",
}  # Helm 4 makes the pod of `helm test` with `patch`

SEEN = ("persistentvolumeclaims", "services", "serviceaccounts", "resourcequotas", "limitranges")
"""What `stratlab check` reads."""


def allowed(role: Document) -> dict[tuple[str, str], set[str]]:
    """(group, resource) -> verbs, over all rules."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs.setdefault((group, resource), set()).update(rule["verbs"])
    return verbs


def test_no_wildcards_and_no_way_to_more_rights(documents: list[Document]) -> None:
    assert len(kinds(documents, "Role")) == 2
    for role in kinds(documents, "Role"):
        for (group, resource), verbs in allowed(role).items():
            assert "*" not in {group, resource} | verbs
            assert not verbs & {"escalate", "bind", "impersonate", "deletecollection"}
            assert group not in ("rbac.authorization.k8s.io", "networking.k8s.io")
            assert resource not in (
                "pods/exec",
                "pods/attach",
                "serviceaccounts/token",
                "pods/ephemeralcontainers",
            )


def test_the_analysis_reads_custom_resources_and_starts_a_job(documents: list[Document]) -> None:
    assert allowed(pick(documents, "Role", "stratlab-analysis")) == {
        ("kubeflow.org", "pytorchjobs"): WATCH,
        ("kubeflow.org", "mpijobs"): WATCH,
        ("trainer.kubeflow.org", "trainjobs"): WATCH,
        ("batch", "jobs"): {"get", "patch"},
    }


def test_only_the_analysis_account_is_bound(documents: list[Document]) -> None:
    (binding,) = kinds(documents, "RoleBinding")
    assert binding["roleRef"]["name"] == "stratlab-analysis"
    (subject,) = binding["subjects"]
    (account,) = kinds(documents, "ServiceAccount")
    assert subject == {
        "kind": "ServiceAccount",
        "name": account["metadata"]["name"],
        "namespace": account["metadata"]["namespace"],
    }
    assert account["automountServiceAccountToken"] is False


def test_what_lies_on_the_volume_is_not_the_users_to_delete(documents: list[Document]) -> None:
    user = allowed(pick(documents, "Role", "stratlab-user"))
    assert {name: verbs for (group, name), verbs in user.items() if group == ""} == {
        "secrets": {"get", "list", "create", "update", "delete"},  # helm's releases
        "pods": HOOK,
        "pods/log": {"get"},
        "pods/portforward": {"create"},
        "events": WATCH,
        **{name: {"get", "list"} for name in SEEN},
    }


def test_users_have_the_rights_that_a_check_looks_for(kind: list[Document]) -> None:
    user = allowed(pick(kind, "Role", "stratlab-user"))
    assert all(verb in user.get((group, resource), set()) for group, resource, verb in MINE)


def rendered_kinds() -> set[tuple[str, str]]:
    """Of every chart, with every workload API that it knows."""
    found: set[tuple[str, str]] = set()
    helm = find_program("helm")
    for path in sorted(CHARTS.glob("*/Chart.yaml")):
        for api in (None, "pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob"):
            arguments = ["--set", f"run.workload.api={api},run.podSecurity.level=baseline"] if api else []
            arguments += NEEDED.get(path.parent.name, [])
            done = helm_template(helm, path.parent, arguments)
            found |= {(d["apiVersion"], d["kind"]) for d in read_documents(done.stdout)}
    return found


@pytest.fixture(scope="module")
def rendered() -> set[tuple[str, str]]:
    return rendered_kinds()


def test_users_may_install_upgrade_and_remove_every_kind_of_every_chart(
    rendered: set[tuple[str, str]], kind: list[Document]
) -> None:
    assert {("kubeflow.org/v1", "PyTorchJob"), ("batch/v1", "Job")} <= rendered
    unknown: Any = rendered - RESOURCES.keys()
    assert not unknown, "add it to RESOURCES and to the Role stratlab-user"
    user = allowed(pick(kind, "Role", "stratlab-user"))
    for api_kind in rendered:
        needed = HOOK if api_kind == ("v1", "Pod") else HELM
        assert needed <= user.get(RESOURCES[api_kind], set()), api_kind
