"""MLflow behind an authority of one's own: one setting reaches every pod that speaks to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.cluster.workloads import APIS, Workload
from tests.charts.rendering import CHARTS, OTHER_CHARTS, Document, environment, helm_template, pick, render
from tests.charts.unwrapping import WORKLOADS, unwrap_pods, workload_values

FILE = "/etc/stratlab/certificates/ca.crt"
SETTINGS = ["--set", "run.certificates.configMap=company-ca"]


def trusts(pod: Document) -> bool:
    """Whether each container of the pod is told of the file, and finds it there."""
    spec = pod["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "certificates"]
    (source,) = volume["projected"]["sources"]
    assert source == {"configMap": {"name": "company-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    mount = {"name": "certificates", "mountPath": str(Path(FILE).parent), "readOnly": True}
    return all(
        environment(spec, each["name"]).get("STRATLAB_CA_FILE") == FILE and mount in each["volumeMounts"]
        for each in spec["containers"]
    )


@pytest.mark.parametrize(("api", "topology"), WORKLOADS)
def test_every_pod_of_a_run_trusts_it(helm: Path, api: str, topology: str) -> None:
    pods = unwrap_pods(render(helm, CHARTS / "ddp", [*SETTINGS, *workload_values(api, topology)]))
    assert {"Job", "Job.waiter", "Pod"} < pods.keys()
    assert {name: trusts(pod) for name, pod in pods.items()} == dict.fromkeys(pods, True)


def test_the_pods_of_the_tools_trust_what_the_run_names(helm: Path) -> None:
    run = pick(render(helm, CHARTS / "ddp", SETTINGS), "PyTorchJob")
    named = Workload(APIS["pytorchjob"], run).facts.certificates
    assert trusts(build_pod(["python"], PodRequest(certificates=named)))


def test_the_pod_that_prepares_data_trusts_it(helm: Path) -> None:
    """A mirror of the hub may be signed by the same authority."""
    asked = [*SETTINGS, *OTHER_CHARTS["prepare"]]
    pods = unwrap_pods(render(helm, CHARTS / "prepare", asked))
    assert pods and {name: trusts(pod) for name, pod in pods.items()} == dict.fromkeys(pods, True)
    spec = unwrap_pods(render(helm, CHARTS / "prepare", OTHER_CHARTS["prepare"]))
    assert spec and "STRATLAB_CA_FILE" not in str(spec), "as shipped nothing of it"


def test_a_secret_with_another_key(helm: Path) -> None:
    rendered = render(
        helm, CHARTS / "ddp", ["--set", "run.certificates.secret=tls,run.certificates.key=root.pem"]
    )
    for pod in unwrap_pods(rendered).values():
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "certificates"]
        items = [{"key": "root.pem", "path": "ca.crt"}]
        assert volume["projected"]["sources"] == [{"secret": {"name": "tls", "items": items}}]


def test_nothing_of_it_as_shipped(documents: list[Document]) -> None:
    """Not even in the hash of the settings: a release from before it can be upgraded."""
    assert "certificates" not in str(documents) and "STRATLAB_CA_FILE" not in str(documents)


def test_two_places_and_a_variable_of_ones_own_are_refused(helm: Path) -> None:
    both = helm_template(helm, CHARTS / "ddp", [*SETTINGS, "--set", "run.certificates.secret=tls"])
    assert both.returncode and "run.certificates: configMap=company-ca and secret=tls" in both.stderr
    own = "run.env[0].name=STRATLAB_CA_FILE,run.env[0].value=/x"
    done = helm_template(helm, CHARTS / "ddp", ["--set", own])
    assert done.returncode and "write run.certificates" in done.stderr
