"""Who may do what: as little as works, and as much as the charts need."""

from stratlab.namespace_checks import MINE
from tests.charts.golden_file import FULL, GOLDEN, read_goldens
from tests.charts.rendering import Document
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
HOOK = HELM - {"update"}  # Helm 4 makes the pod of `helm test` with `patch`
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


def test_the_analysis_reads_custom_resources_and_nothing_else(documents: list[Document]) -> None:
    assert allowed(pick(documents, "Role", "stratlab-analysis")) == {
        ("kubeflow.org", "pytorchjobs"): WATCH,
        ("kubeflow.org", "mpijobs"): WATCH,
        ("trainer.kubeflow.org", "trainjobs"): WATCH,
        ("batch", "jobs"): {"get", "patch"},
    }
    (binding,) = kinds(documents, "RoleBinding")
    assert binding["roleRef"]["name"] == "stratlab-analysis"
    (account,) = kinds(documents, "ServiceAccount")
    named = {name: account["metadata"][name] for name in ("name", "namespace")}
    assert binding["subjects"] == [{"kind": "ServiceAccount", **named}]
    assert account["automountServiceAccountToken"] is False


def test_users_may_install_upgrade_and_remove_every_kind_of_every_chart(kind: list[Document]) -> None:
    """And no more: what lies on the volume is not theirs to delete, and no right gives further ones."""
    full = [
        document for name, documents in read_goldens(GOLDEN).items() if name in FULL for document in documents
    ]
    assert {(document["apiVersion"], document["kind"]) for document in full} == RESOURCES.keys()
    assert len(kinds(kind, "Role")) == 2
    user = allowed(pick(kind, "Role", "stratlab-user"))
    assert {name: verbs for name, verbs in user.items() if name[0]} == {
        resource: HELM for resource in RESOURCES.values() if resource[0]
    }
    assert {name: verbs for (group, name), verbs in user.items() if group == ""} == {
        "secrets": {"get", "list", "create", "update", "delete"},  # helm's releases
        "pods": HOOK,
        "pods/log": {"get"},
        "pods/portforward": {"create"},
        "events": WATCH,
        **{name: {"get", "list"} for name in SEEN},
    }
    assert all(verb in user.get((group, resource), set()) for group, resource, verb in MINE)
