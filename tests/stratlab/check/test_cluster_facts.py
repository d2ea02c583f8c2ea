"""What `stratlab check` reads from the API server: APIs, operator, namespace, claim, rights, GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratlab.check.finding import Finding, guarded
from stratlab.check.gpus import check_gpus, offers_gpus
from stratlab.check.namespace import check_claim, check_namespace
from stratlab.check.rights import check_account, check_rights
from stratlab.check.workload_checks import check_apis, find_served, judge_operator, read_version
from stratlab.cluster.connection import Connection
from tests.codes import find_codes
from tests.stratlab.cluster import fake_api
from tests.stratlab.cluster.conftest import api, connection
from tests.stratlab.cluster.fake_api import FakeApi, Handler, connect_to, serve

__all__ = ["api", "connection"]

DEPLOYMENTS = "/apis/apps/v1/deployments"
NAMESPACES = "/api/v1/namespaces"
LAB = f"{NAMESPACES}/lab"
NODES, ALL_PODS = "/api/v1/nodes", "/api/v1/pods"


def only(findings: Iterator[Finding]) -> Finding:
    (finding,) = findings
    return finding


def told(findings: Iterator[Finding]) -> list[tuple[str, ...]]:
    """(state, codes) of each."""
    return [(each.state, *find_codes(each.seen)) for each in findings]


def deny(api: FakeApi, *paths: str) -> None:
    api.fault = lambda path, query: {"status": 403, "message": "no right"} if path in paths else None


def serve_apis(api: FakeApi, **plurals: list[str]) -> None:
    """`kubeflow_v1=["pytorchjobs"]`: the answer of the API server about one group version."""
    known = {
        "kubeflow_v1": "/apis/kubeflow.org/v1",
        "kubeflow_v2beta1": "/apis/kubeflow.org/v2beta1",
        "trainer": "/apis/trainer.kubeflow.org/v1alpha1",
    }
    for key, names in plurals.items():
        collection, _, name = known[key].rpartition("/")
        resources = [{"name": each} for each in names]
        api.collections.setdefault(collection, {})[name] = {"metadata": {}, "resources": resources}


def operator(
    name: str = "training-operator", image: str = "x/training-operator:v1.9.3", ready: int = 1
) -> dict[str, Any]:
    containers = [{"image": image}]
    return {
        "metadata": {"name": name, "namespace": "kubeflow"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": containers}}},
        "status": {"readyReplicas": ready} if ready else {},
    }


def install(api: FakeApi, deployment: dict[str, Any]) -> None:
    """Under the path of the whole cluster, which the fake does not derive by itself."""
    api.collections.setdefault(DEPLOYMENTS, {})[deployment["metadata"]["name"]] = deployment


def test_apis_and_their_operator(api: FakeApi, connection: Connection) -> None:
    serve_apis(api, kubeflow_v1=["pytorchjobs", "pytorchjobs/status", "mpijobs"])
    install(api, operator())
    assert find_served(connection) == ["pytorchjob", "mpijob-v1"]
    apis, training = check_apis(connection)
    assert (apis.state, training.state) == ("ok", "ok") and "pytorchjob, mpijob-v1" in apis.seen
    assert "kubeflow/training-operator " in training.seen and "version 1.9" in training.seen


def test_no_api_or_another_than_the_default_names_the_way_out(api: FakeApi, connection: Connection) -> None:
    finding = only(check_apis(connection))
    assert finding.state == "problem" and "standalone?ref=v1.9.4" in finding.fix
    serve_apis(api, trainer=["trainjobs"])
    install(api, operator("kubeflow-trainer-controller-manager", "x/trainer:v2.3.0"))
    apis, trainer = check_apis(connection)
    assert apis.state == "warning" and apis.fix.startswith("--set run.workload.api=trainjob")
    assert trainer.state == "ok" and "version 2.3" in trainer.seen


def test_an_operator_that_is_not_there_not_ready_or_old(api: FakeApi, connection: Connection) -> None:
    serve_apis(api, kubeflow_v1=["pytorchjobs", "mpijobs"], kubeflow_v2beta1=["mpijobs"])
    install(api, operator())
    absent = ("problem", "SL-operator-absent")
    assert told(check_apis(connection)) == [("ok",), ("warning", "SL-two-mpijob-apis"), ("ok",), absent]
    down = judge_operator("training-operator", operator(ready=0))
    assert find_codes(down.seen) == ["SL-operator-not-ready"] and "logs deployment/" in down.fix
    old = judge_operator("training-operator", operator(image="x/training-operator:v1.8.1"))
    assert find_codes(old.seen) == ["SL-operator-old"] and "version 1.8" in old.seen
    assert judge_operator("training-operator", operator(image="x/operator@sha256:12")).state == "ok"
    for image, version in (("a.b:5000/c/op:v1.9.3", (1, 9)), ("op:1.10.0-rc", (1, 10)), ("a:5000/op", None)):
        assert read_version(operator(image=image)) == version


@pytest.mark.parametrize(
    ("served", "name", "place"),
    [
        ({"kubeflow_v1": ["pytorchjobs"]}, "training-operator", "kubeflow"),
        ({"kubeflow_v2beta1": ["mpijobs"]}, "mpi-operator", "mpi-operator"),
        ({"trainer": ["trainjobs"]}, "kubeflow-trainer-manager", "kubeflow-system"),
    ],
)
def test_who_may_look_at_one_namespace_only_sees_the_operator_where_it_is_by_default(
    api: FakeApi, connection: Connection, served: dict[str, list[str]], name: str, place: str
) -> None:
    serve_apis(api, **served)
    found = operator(name)
    found["metadata"]["namespace"] = place
    api.collections[f"/apis/apps/v1/namespaces/{place}/deployments"] = {name: found}
    deny(api, DEPLOYMENTS)
    assert [each.state for each in check_apis(connection)][1:] == ["ok"]


def test_without_rights_there_is_no_verdict(api: FakeApi, connection: Connection) -> None:
    serve_apis(api, kubeflow_v1=["pytorchjobs"])
    operators = "/apis/apps/v1/namespaces/kubeflow/deployments"
    deny(api, DEPLOYMENTS, operators, LAB, f"{LAB}/persistentvolumeclaims/results", NODES)
    looks: list[Callable[[], Iterator[Finding]]] = [
        lambda: iter(list(check_apis(connection))[1:]),
        lambda: check_namespace(connection, "lab"),
        lambda: check_claim(connection, "lab", "results"),
        lambda: check_gpus(connection),
    ]
    for look in looks:
        assert told(look()) == [("warning", "SL-may-not-look")]


def test_pod_security_of_the_namespace(api: FakeApi, connection: Connection) -> None:
    api.namespaces.clear()
    assert told(check_namespace(connection, "lab")) == [("problem", "SL-namespace-absent")]
    api.put(NAMESPACES, {"metadata": {"name": "lab"}})
    assert told(check_namespace(connection, "lab")) == [("warning", "SL-no-pod-security")]
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.put(NAMESPACES, {"metadata": {"name": "lab", "labels": labels}})
    finding = only(check_namespace(connection, "lab"))
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
def test_claim(api: FakeApi, connection: Connection, mode: str, phase: str, found: tuple[str, ...]) -> None:
    claim = {"metadata": {"name": "results"}, "spec": {"accessModes": [mode]}, "status": {"phase": phase}}
    api.put(f"{LAB}/persistentvolumeclaims", claim)
    assert told(check_claim(connection, "lab", "results")) == [found]
    assert told(check_claim(connection, "lab", "other")) == [("problem", "SL-claim-absent")]


@pytest.mark.parametrize(
    ("wanted", "default", "code"),
    [
        (None, "false", "SL-no-default-class"),
        (None, "true", "SL-claim-pending"),
        ("gone", "true", "SL-storage-class-absent"),
        ("standard", None, "SL-claim-pending"),
        ("", None, "SL-claim-pending"),
    ],
)
def test_a_claim_that_nothing_will_fill(
    api: FakeApi, connection: Connection, wanted: str | None, default: str | None, code: str
) -> None:
    spec = {"accessModes": ["ReadWriteMany"]} | ({} if wanted is None else {"storageClassName": wanted})
    claim = {"metadata": {"name": "results"}, "spec": spec, "status": {"phase": "Pending"}}
    api.put(f"{LAB}/persistentvolumeclaims", claim)
    notes = {"storageclass.kubernetes.io/is-default-class": default} if default else {}
    kind = {"metadata": {"name": "standard", "annotations": notes}}
    api.collections["/apis/storage.k8s.io/v1/storageclasses"] = {"standard": kind}
    finding = only(check_claim(connection, "lab", "results"))
    assert find_codes(finding.seen) == [code]
    assert (finding.state == "problem") is ("storageClassName" in finding.fix) is (code != "SL-claim-pending")


def node(name: str, gpus: int, unschedulable: bool = False) -> dict[str, Any]:
    allocatable = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    spec = {"unschedulable": True} if unschedulable else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable}}


def pod_with(gpus: int, where: str, phase: str = "Running") -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"nodeName": where, "containers": [{"resources": resources}, {}]}
    return {"metadata": {}, "spec": spec, "status": {"phase": phase}}


def test_gpus_free_and_in_all(api: FakeApi, connection: Connection) -> None:
    api.collections[NODES] = {"a": node("a", 8), "b": node("b", 0), "c": node("c", 8, unschedulable=True)}
    api.served.add(ALL_PODS)
    finding = only(check_gpus(connection))
    assert (finding.state, finding.seen) == ("ok", "8 of 8 are free, on 1 of 2 nodes")
    api.collections[ALL_PODS] = {
        "p": pod_with(4, "a"),
        "q": pod_with(2, "a", "Pending"),
        "r": pod_with(8, "c"),
        "failed": pod_with(1, "a", "Failed"),
        "succeeded": pod_with(1, "a", "Succeeded"),
    }
    assert only(check_gpus(connection)).seen == "2 of 8 are free, on 1 of 2 nodes"
    api.collections[ALL_PODS]["s"] = pod_with(2, "a")
    finding = only(check_gpus(connection))
    assert (finding.state, finding.seen) == ("warning", "0 of 8 are free, on 1 of 2 nodes")
    deny(api, ALL_PODS)
    assert only(check_gpus(connection)).seen.startswith("8 on 1 of 2 nodes")
    api.collections[NODES] = {"b": node("b", 0)}
    assert told(check_gpus(connection)) == [("warning", "SL-no-gpus")]


def test_a_gpu_is_asked_for_where_a_pod_could_get_one(api: FakeApi, connection: Connection) -> None:
    for nodes, offers in (([node("b", 8)], True), ([node("a", 8, unschedulable=True)], False)):
        api.collections[NODES] = {each["metadata"]["name"]: each for each in nodes}
        assert offers_gpus(connection) is offers
    deny(api, NODES)
    assert offers_gpus(connection) is False


@pytest.fixture
def reviewed(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, dict[str, Any]]]:
    """Answers access reviews: `denied` are pairs of verb and resource; `asked` the users, each with the place of the
    review; `rights` the verbs by API group and resource; `code` refuses the review."""
    review: dict[str, Any] = {"denied": set(), "asked": [], "rights": {}, "code": 201}

    class ReviewHandler(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            wanted = body["spec"]["resourceAttributes"]
            place = (self.path.rpartition("/v1/")[2], wanted["namespace"])
            review["asked"].append((body["spec"].get("user"), *place))
            name = "/".join(filter(None, (wanted["group"], wanted["resource"], wanted.get("subresource"))))
            review["rights"].setdefault(name, set()).add(wanted["verb"])
            if review["code"] != 201:
                self._answer(review["code"], "no reviews")
                return
            allowed = (wanted["verb"], wanted["resource"]) not in review["denied"]
            self._json(201, body | {"status": {"allowed": allowed}})

    monkeypatch.setattr(fake_api, "Handler", ReviewHandler)
    with serve(api) as address:
        yield connect_to(address), review


def test_rights_of_the_analysis(api: FakeApi, reviewed: tuple[Connection, dict[str, Any]]) -> None:
    connection, review = reviewed
    assert told(check_account(connection, "lab", ["pytorchjob"])) == [("problem", "SL-account-absent")]
    api.put(f"{LAB}/serviceaccounts", {"metadata": {"name": "stratlab-analysis"}})
    assert only(check_account(connection, "lab", ["pytorchjob"])).state == "ok"
    account = "system:serviceaccount:lab:stratlab-analysis"
    assert set(review["asked"]) == {(account, "namespaces/lab/localsubjectaccessreviews", "lab")}
    assert review["rights"] == {
        "kubeflow.org/pytorchjobs": {"get", "list", "watch"},
        "batch/jobs": {"get", "patch"},
    }
    review["denied"] = {("watch", "pytorchjobs")}
    finding = only(check_account(connection, "lab", ["pytorchjob"]))
    assert find_codes(finding.seen) == ["SL-account-rights"] and "watch pytorchjobs" in finding.seen
    review["code"] = 403
    assert only(check_account(connection, "lab", ["pytorchjob"])).state == "warning"


def test_rights_of_the_user(reviewed: tuple[Connection, dict[str, Any]]) -> None:
    connection, review = reviewed
    assert only(check_rights(connection, "lab", ["pytorchjob"])).state == "ok"
    assert set(review["asked"]) == {(None, "selfsubjectaccessreviews", "lab")}
    assert review["rights"] == {
        "pods": {"get", "list", "watch", "create", "delete"},
        "pods/log": {"get"},
        "secrets": {"list", "create", "update", "delete"},
        "batch/jobs": {"create", "watch"},
        "kubeflow.org/pytorchjobs": {"create", "watch", "delete"},
    }
    review["denied"] = {("create", "pytorchjobs"), ("create", "pods")}
    finding = only(check_rights(connection, "lab", ["pytorchjob"]))
    assert find_codes(finding.seen) == ["SL-user-rights"] and "stratlab-user" in finding.fix
    assert "create pods, create pytorchjobs" in finding.seen


def test_an_api_that_fails_is_one_problem(api: FakeApi, connection: Connection) -> None:
    api.fault = lambda path, query: {"status": 401, "message": "Unauthorized"}
    finding = only(guarded("GPUs", lambda: check_gpus(connection)))
    assert (finding.state, finding.subject) == ("problem", "GPUs") and "Unauthorized" in finding.seen
