"""What `stratlab check` reads from the API server: APIs, operator, namespace, claim, rights, GPUs."""

from types import SimpleNamespace

import pytest
from kubernetes.client.exceptions import ApiException

from stratlab import namespace_checks as rights
from stratlab.namespace_checks import (
    check_account,
    check_claim,
    check_gpus,
    check_namespace,
    check_rights,
    guarded,
)
from stratlab.workload_checks import check_apis, find_served, judge_operator, read_version
from tests.codes import find_codes
from tests.stratlab.cluster.answering import Answering

DEPLOYMENTS = "/apis/apps/v1/deployments"
LAB = "/api/v1/namespaces/lab"
CLAIM, ACCOUNT = f"{LAB}/persistentvolumeclaims/results", f"{LAB}/serviceaccounts/stratlab-analysis"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
KUBEFLOW_V1, KUBEFLOW_V2, TRAINER = (
    "/apis/kubeflow.org/v1",
    "/apis/kubeflow.org/v2beta1",
    "/apis/trainer.kubeflow.org/v1alpha1",
)


class Cluster(Answering):
    def serve(self, path, *plurals):
        self.things[path] = {"resources": [{"name": each} for each in plurals]}


@pytest.fixture
def cluster():
    return Cluster()


def only(findings):
    (finding,) = findings
    return finding


def told(findings):
    return [(each.state, *find_codes(each.seen)) for each in findings]


def operator(name="training-operator", image="x/training-operator:v1.9.3", ready=1):
    return {
        "metadata": {"name": name, "namespace": "kubeflow"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"readyReplicas": ready} if ready else {},
    }


def test_apis_and_their_operator(cluster):
    finding = only(check_apis(cluster))
    assert finding.state == "problem" and "standalone?ref=v1.9.4" in finding.fix, "none is served"
    cluster.serve(KUBEFLOW_V1, "pytorchjobs", "pytorchjobs/status", "mpijobs")
    cluster.things[DEPLOYMENTS] = [operator()]
    assert find_served(cluster) == ["pytorchjob", "mpijob-v1"]
    apis, training = check_apis(cluster)
    assert (apis.state, training.state) == ("ok", "ok") and "pytorchjob, mpijob-v1" in apis.seen
    assert "kubeflow/training-operator " in training.seen and "version 1.9" in training.seen
    cluster.serve(KUBEFLOW_V2, "mpijobs")
    absent = ("problem", "SL-operator-absent")
    assert told(check_apis(cluster)) == [("ok",), ("warning", "SL-two-mpijob-apis"), ("ok",), absent]
    cluster.things = {DEPLOYMENTS: [operator("kubeflow-trainer-controller-manager", "x/trainer:v2.3.0")]}
    cluster.serve(TRAINER, "trainjobs")
    apis, trainer = check_apis(cluster)
    assert apis.state == "warning" and apis.fix.startswith("--set run.workload.api=trainjob")
    assert trainer.state == "ok" and "version 2.3" in trainer.seen


def test_an_operator_that_is_not_ready_or_old():
    down = judge_operator("training-operator", operator(ready=0))
    assert find_codes(down.seen) == ["SL-operator-not-ready"] and "logs deployment/" in down.fix
    old = judge_operator("training-operator", operator(image="x/training-operator:v1.8.1"))
    assert find_codes(old.seen) == ["SL-operator-old"] and "version 1.8" in old.seen
    assert judge_operator("training-operator", operator(image="x/operator@sha256:12")).state == "ok"
    for image, version in (("a.b:5000/c/op:v1.9.3", (1, 9)), ("op:1.10.0-rc", (1, 10)), ("a:5000/op", None)):
        assert read_version(operator(image=image)) == version


@pytest.mark.parametrize(
    ("api", "plural", "name", "place"),
    [
        (KUBEFLOW_V1, "pytorchjobs", "training-operator", "kubeflow"),
        (KUBEFLOW_V2, "mpijobs", "mpi-operator", "mpi-operator"),
        (TRAINER, "trainjobs", "kubeflow-trainer-manager", "kubeflow-system"),
    ],
)
def test_who_may_look_at_one_namespace_only_sees_the_operator_where_it_is_by_default(
    cluster, api, plural, name, place
):
    cluster.serve(api, plural)
    found = operator(name)
    found["metadata"]["namespace"] = place
    cluster.things |= {DEPLOYMENTS: 403, f"/apis/apps/v1/namespaces/{place}/deployments": [found]}
    assert [each.state for each in check_apis(cluster)][1:] == ["ok"]


def test_without_rights_there_is_no_verdict(cluster):
    cluster.serve(KUBEFLOW_V1, "pytorchjobs")
    operators = "/apis/apps/v1/namespaces/kubeflow/deployments"
    cluster.things |= dict.fromkeys((DEPLOYMENTS, operators, LAB, CLAIM, NODES), 403)
    unseen = ("warning", "SL-may-not-look")
    assert told(check_apis(cluster))[1:] == told(check_namespace(cluster)) == [unseen]
    assert told(check_claim(cluster, "results")) == told(check_gpus(cluster)) == [unseen]
    cluster.things[NODES] = 401
    finding = only(guarded("GPUs", lambda: check_gpus(cluster)))
    assert (finding.state, finding.subject, finding.seen) == ("problem", "GPUs", "said no")


def test_pod_security_of_the_namespace(cluster):
    assert told(check_namespace(cluster)) == [("problem", "SL-namespace-absent")]
    cluster.things[LAB] = {"metadata": {"name": "lab"}}
    assert told(check_namespace(cluster)) == [("warning", "SL-no-pod-security")]
    cluster.things[LAB] = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    finding = only(check_namespace(cluster))
    assert finding.state == "ok" and "run.workload.api=mpijob-v1" in finding.seen


@pytest.mark.parametrize(
    ("mode", "phase", "found"),
    [
        ("ReadWriteMany", "Bound", ("ok",)),
        ("ReadWriteOnce", "Bound", ("warning", "SL-claim-one-node")),
        ("ReadWriteMany", "Pending", ("warning", "SL-claim-pending")),
        ("ReadWriteOnce", "Pending", ("problem", "SL-claim-unusable")),
        ("ReadWriteMany", "Lost", ("problem", "SL-claim-unusable")),
    ],
)
def test_claim(cluster, mode, phase, found):
    assert told(check_claim(cluster, "results")) == [("problem", "SL-claim-absent")]
    cluster.things[CLAIM] = {"spec": {"accessModes": [mode]}, "status": {"phase": phase}}
    assert told(check_claim(cluster, "results")) == [found]


@pytest.mark.parametrize(
    ("spec", "default", "code"),
    [
        ({}, "false", "SL-no-default-class"),
        ({}, "true", "SL-claim-pending"),
        ({"storageClassName": "gone"}, "true", "SL-storage-class-absent"),
        ({"storageClassName": "standard"}, "false", "SL-claim-pending"),
        ({"storageClassName": ""}, "false", "SL-claim-pending"),
    ],
)
def test_a_claim_that_nothing_will_fill(cluster, spec, default, code):
    cluster.things[CLAIM] = {
        "spec": {"accessModes": ["ReadWriteMany"]} | spec,
        "status": {"phase": "Pending"},
    }
    notes = {"storageclass.kubernetes.io/is-default-class": default}
    classes = [{"metadata": {"name": "standard", "annotations": notes}}]
    cluster.things["/apis/storage.k8s.io/v1/storageclasses"] = classes
    finding = only(check_claim(cluster, "results"))
    assert find_codes(finding.seen) == [code]
    assert (finding.state == "problem") is ("storageClassName" in finding.fix) is (code != "SL-claim-pending")


def node(name, gpus, **spec):
    allocatable = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable}}


def pod_with(gpus, where, phase="Running"):
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"nodeName": where, "containers": [{"resources": resources}, {}]}
    return {"metadata": {}, "spec": spec, "status": {"phase": phase}}


def test_gpus_free_and_in_all(cluster):
    cluster.things |= {NODES: [node("a", 8), node("b", 0), node("c", 8, unschedulable=True)], PODS: []}
    finding = only(check_gpus(cluster))
    assert (finding.state, finding.seen) == ("ok", "8 of 8 are free, on 1 of 2 nodes")
    ended = [pod_with(1, "a", "Failed"), pod_with(1, "a", "Succeeded")]
    cluster.things[PODS] = [pod_with(4, "a"), pod_with(2, "a", "Pending"), pod_with(8, "c"), *ended]
    assert only(check_gpus(cluster)).seen == "2 of 8 are free, on 1 of 2 nodes"
    cluster.things[PODS] += [pod_with(2, "a")]
    finding = only(check_gpus(cluster))
    assert (finding.state, finding.seen) == ("warning", "0 of 8 are free, on 1 of 2 nodes")
    cluster.things[PODS] = 403
    assert only(check_gpus(cluster)).seen.startswith("8 on 1 of 2 nodes")
    cluster.things[NODES] = [node("b", 0)]
    assert told(check_gpus(cluster)) == [("warning", "SL-no-gpus")]


class Reviews:
    """Answers access reviews: `denied` are pairs of verb and resource; `asked` the users, each with the place of the
    review; `rights` the verbs by API group and resource; `refuses` the review itself."""

    def __init__(self, client=None):
        self.denied = set()
        self.asked = set()
        self.rights = {}
        self.refuses = False

    def create_namespaced_local_subject_access_review(self, namespace, body):
        assert body["metadata"] == {"namespace": namespace}
        return self.review(namespace, body["spec"])

    def create_self_subject_access_review(self, body):
        return self.review(None, body["spec"])

    def review(self, place, spec):
        wanted = spec["resourceAttributes"]
        self.asked.add((spec.get("user"), place, wanted["namespace"]))
        name = "/".join(filter(None, (wanted["group"], wanted["resource"], wanted.get("subresource"))))
        self.rights.setdefault(name, set()).add(wanted["verb"])
        if self.refuses:
            raise ApiException(403, "no reviews")
        allowed = (wanted["verb"], wanted["resource"]) not in self.denied
        return SimpleNamespace(status=SimpleNamespace(allowed=allowed))


@pytest.fixture
def reviews(monkeypatch):
    found = Reviews()
    monkeypatch.setattr(rights, "AuthorizationV1Api", lambda client: found)
    return found


def test_rights_of_the_analysis(cluster, reviews):
    assert told(check_account(cluster, ["pytorchjob"])) == [("problem", "SL-account-absent")]
    cluster.things[ACCOUNT] = {"metadata": {}}
    assert told(check_account(cluster, ["pytorchjob"])) == [("ok",)]
    assert reviews.asked == {("system:serviceaccount:lab:stratlab-analysis", "lab", "lab")}
    runs = {"get", "list", "watch"}
    assert reviews.rights == {"kubeflow.org/pytorchjobs": runs, "batch/jobs": {"get", "patch"}}
    reviews.denied = {("watch", "pytorchjobs")}
    finding = only(check_account(cluster, ["pytorchjob"]))
    assert find_codes(finding.seen) == ["SL-account-rights"] and "watch pytorchjobs" in finding.seen
    reviews.refuses = True
    assert told(check_account(cluster, ["pytorchjob"])) == [("warning", "SL-may-not-look")]


def test_rights_of_the_user(cluster, reviews):
    assert told(check_rights(cluster, ["pytorchjob"])) == [("ok",)] and reviews.asked == {(None, None, "lab")}
    assert reviews.rights == {
        "pods": {"get", "list", "watch", "create", "delete"},
        "pods/log": {"get"},
        "secrets": {"list", "create", "update", "delete"},
        "batch/jobs": {"create", "watch"},
        "kubeflow.org/pytorchjobs": {"create", "watch", "delete"},
    }
    reviews.denied = {("create", "pytorchjobs"), ("create", "pods")}
    finding = only(check_rights(cluster, ["pytorchjob"]))
    assert find_codes(finding.seen) == ["SL-user-rights"] and "stratlab-user" in finding.fix
    assert "create pods, create pytorchjobs" in finding.seen
