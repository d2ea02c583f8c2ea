"""Who can talk to whom, asked of the labels that the charts really render."""

import pytest
from kubeflow.training.constants import constants

from tests.charts.golden_file import GOLDEN, read_goldens
from tests.charts.rendering import Document
from tests.charts.valid_objects import unwrap_pods
from tests.manifests.kustomize import build_overlay, kinds, pick
from tests.manifests.network_rules import Peer, Port, may_connect, may_enter

LABEL = "app.kubernetes.io/"
MLFLOW, DNS, API, HTTPS, ANY = Port(5000), Port(53, "UDP"), Port(6443), Port(443), Port(41234)
CLUSTER_DNS = Peer({"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"})
STRANGER = Peer({f"{LABEL}name": "web"}, {"kubernetes.io/metadata.name": "default"})
API_SERVER, HUB, METADATA, NEIGHBOUR = (
    Peer(address=address) for address in ("203.0.113.7", "198.51.100.80", "169.254.169.254", "10.0.0.9")
)


def rendered_pods() -> dict[str, dict[str, str]]:
    """component -> labels of its pods, over the charts."""
    goldens = read_goldens(GOLDEN)
    documents = [*goldens["ddp-pytorchjob"], *goldens["prepare"]]
    found = [pod["metadata"]["labels"] for pod in unwrap_pods(documents[:-1]).values()]
    found += [pod["metadata"]["labels"] for pod in unwrap_pods(documents[-1:]).values()]
    return {labels[f"{LABEL}component"]: labels for labels in found}


@pytest.fixture(scope="module")
def pods(kind: list[Document]) -> dict[str, Peer]:
    found = {component: Peer(labels) for component, labels in rendered_pods().items()}
    assert {"training", "analysis", "prepare", "test"} <= found.keys()
    template = pick(kind, "Deployment", "mlflow")["spec"]["template"]
    found["mlflow"] = Peer(template["metadata"]["labels"])
    # made by stratlab itself
    found["volume"] = Peer({f"{LABEL}component": "volume", f"{LABEL}part-of": "stratlab"})
    found["comparison"] = Peer({f"{LABEL}component": "comparison", f"{LABEL}part-of": "stratlab"})
    return found


@pytest.fixture(scope="module")
def policies(kind: list[Document]) -> list[Document]:
    return kinds(kind, "NetworkPolicy")


# who calls -> whom, on which port: everything that goes through, with the base alone
OPEN = {
    ("training", "training", ANY),
    ("training", "training", MLFLOW),
    ("training", "training", HTTPS),
    ("training", "training", API),
    ("training", "training", DNS),
    *((component, "mlflow", MLFLOW) for component in ("training", "analysis", "comparison", "test")),
    *((component, "dns", DNS) for component in ("training", "analysis", "comparison", "test", "prepare")),
    ("analysis", "api server", API),
    ("analysis", "api server", HTTPS),
    ("analysis", "hub", HTTPS),  # the price of not knowing the API server's address
    ("analysis", "hub", API),
    ("analysis", "metadata", HTTPS),
    ("analysis", "metadata", API),
    *(("analysis", name, port) for name in ("stranger", "dns") for port in (HTTPS, API)),
}


def test_the_truth_table(pods: dict[str, Peer], policies: list[Document]) -> None:
    others = {
        "dns": CLUSTER_DNS,
        "stranger": STRANGER,
        "api server": API_SERVER,
        "hub": HUB,
        "metadata": METADATA,
    }
    passed = {
        (source, target, port)
        for source, here in (pods | {"stranger": STRANGER}).items()
        for target, there in (pods | others).items()
        for port in (MLFLOW, DNS, API, HTTPS, ANY)
        if "stranger" not in (source, target) or source != target
        if source in pods or target in pods
        if may_connect(policies, here, there, port)
    }
    assert passed == OPEN


def test_long_answers_of_the_name_server_come_over_tcp(
    pods: dict[str, Peer], policies: list[Document]
) -> None:
    for source, target, port in OPEN:
        if target == "dns" and port == DNS:
            assert may_connect(policies, pods[source], CLUSTER_DNS, Port(53)), source
    opened = kinds(build_overlay("kind", "external-stores"), "NetworkPolicy")
    assert may_connect(opened, pods["mlflow"], CLUSTER_DNS, Port(53))


def test_mlflow_s_own_policy_lets_in_who_has_to_and_nobody_else(
    pods: dict[str, Peer], policies: list[Document]
) -> None:
    """Not only because the others may not send: whoever opens their way out must not open MLflow with it."""
    server = pods["mlflow"]
    for name in ("training", "analysis", "comparison", "test"):
        assert may_enter(policies, pods[name], server, MLFLOW), name
        for port in (HTTPS, ANY, Port(5432)):
            assert not may_enter(policies, pods[name], server, port), (name, port)
    trained = dict(pods["training"].labels or {})
    strangers = {
        **{name: pods[name] for name in ("prepare", "volume", "mlflow")},
        "a pod without labels": Peer({}),
        "one that calls itself training": Peer({f"{LABEL}component": "training"}),
        "one of stratlab's without a component": Peer({f"{LABEL}part-of": "stratlab"}),
        "training of another namespace": Peer(trained, {"kubernetes.io/metadata.name": "default"}),
        "the node": NEIGHBOUR,
        "the world": HUB,
    }
    for name, peer in strangers.items():
        assert not may_enter(policies, peer, server, MLFLOW), name


def test_the_hub_is_opt_in_and_never_a_private_address(
    pods: dict[str, Peer], policies: list[Document]
) -> None:
    opened = kinds(build_overlay("kind", "hub-access"), "NetworkPolicy")
    for name in ("training", "prepare"):
        assert not may_connect(policies, pods[name], HUB, HTTPS)
        assert may_connect(opened, pods[name], HUB, HTTPS)
        assert may_connect(opened, pods[name], Peer(address="2600:9000::1"), HTTPS)
        assert not may_connect(opened, pods[name], HUB, Port(80))
        for address in ("169.254.169.254", "10.1.2.3", "172.20.0.1", "192.168.1.1", "fd00::1"):
            assert not may_connect(opened, pods[name], Peer(address=address), HTTPS), address
    for name in ("volume", "test", "mlflow"):
        assert not may_connect(opened, pods[name], HUB, HTTPS), name


def test_the_launcher_of_an_mpijob_reaches_the_api_server(pods: dict[str, Peer]) -> None:
    """By the label that the operator sets; workers do not."""
    policies = kinds(build_overlay("kind", "mpi"), "NetworkPolicy")
    role = constants.REPLICA_TYPE_LABEL
    training = dict(pods["training"].labels or {})
    assert may_connect(policies, Peer(training | {role: "launcher"}), API_SERVER, API)
    assert not may_connect(policies, Peer(training | {role: "worker"}), API_SERVER, API)


def test_external_stores(pods: dict[str, Peer], policies: list[Document]) -> None:
    opened = kinds(build_overlay("kind", "external-stores"), "NetworkPolicy")
    for port in (Port(5432), HTTPS):
        assert may_connect(opened, pods["mlflow"], Peer(address="10.9.8.7"), port)
        assert not may_connect(policies, pods["mlflow"], Peer(address="10.9.8.7"), port)
    assert may_connect(opened, pods["mlflow"], CLUSTER_DNS, DNS)
    assert not may_connect(policies, pods["mlflow"], CLUSTER_DNS, DNS)
