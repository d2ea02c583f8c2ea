"""What each version of helm does: equal objects, an API that is not served, notes, typos."""

import re
import shutil
import subprocess

import pytest

from stratlab.cluster.workloads import APIS
from tests.charts.golden_file import FULL
from tests.charts.rendering import (
    CHARTS,
    HELMS,
    NAMESPACE,
    RELEASE,
    find_program,
    helm_template,
    pick,
    render,
    waiter_pod,
)
from tests.codes import find_codes
from tests.documents.test_commands import find_problems

# What every API server has, and Helm's own list for `helm template` has not.
CLUSTER = ["--api-versions", "apiregistration.k8s.io/v1"]
BASELINE = "run.podSecurity.level=baseline"  # mpijob-v1 and a master need it
SERVED = {
    "pytorchjob": ("kubeflow.org/v1/PyTorchJob", "trainer.git/manifests/overlays/standalone?ref=v1.9.4"),
    "mpijob-v1": ("kubeflow.org/v1/MPIJob", "trainer.git/manifests/overlays/standalone?ref=v1.9.4"),
    "mpijob-v2beta1": ("kubeflow.org/v2beta1/MPIJob", "mpi-operator.git/manifests/overlays/standalone"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1/TrainJob", "trainer.git/manifests/overlays/manager"),
}
FIRST = find_program(HELMS[0])


def served(*apis):
    return [*CLUSTER, *(part for api in apis for part in ("--api-versions", SERVED[api][0]))]


@pytest.mark.parametrize("api", SERVED)
def test_an_api_that_is_not_served(api):
    chosen = ["--set", f"run.workload.api={api},{BASELINE}"]
    done = helm_template(FIRST, CHARTS / "ddp", [*served(*(SERVED.keys() - {api})), *chosen])
    assert done.returncode == 1 and find_codes(done.stderr) == ["SL-chart-api-not-served"]
    assert SERVED[api][1] in done.stderr
    render(FIRST, CHARTS / "ddp", [*served(api), *chosen])


def test_each_helm_asks_the_cluster_where_there_is_one(helm):
    assert helm_template(helm, CHARTS / "ddp", CLUSTER).returncode == 1
    render(helm, CHARTS / "ddp", served("pytorchjob"))
    render(helm, CHARTS / "ddp", ["--is-upgrade"])


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["mpijob-v1", "pytorchjob", "trainjob"], "pytorchjob"),
        (["mpijob-v2beta1", "trainjob"], "trainjob"),
        (["mpijob-v2beta1"], "mpijob-v2beta1"),
        (["mpijob-v1"], "mpijob-v1"),
        ([], "pytorchjob"),  # without a cluster
    ],
)
def test_auto_takes_what_the_cluster_serves(names, chosen):
    arguments = served(*names) if names else []
    documents = render(FIRST, CHARTS / "ddp", [*arguments, "--set", f"run.workload.api=auto,{BASELINE}"])
    workload = pick(documents, APIS[chosen].kind)
    assert f"{workload['apiVersion']}/{workload['kind']}" == SERVED[chosen][0]
    waiter = waiter_pod(documents)["containers"][0]["command"]
    assert waiter[waiter.index("--resource") + 1].partition("/")[0] == chosen


def test_auto_with_a_master():
    """Which only a PyTorchJob has: what is missing is said, and not that nothing else has one."""
    settings = ["--set", f"run.workload.api=auto,run.workload.topology=master-worker,{BASELINE}"]
    done = helm_template(FIRST, CHARTS / "ddp", [*served("trainjob"), *settings])
    assert find_codes(done.stderr) == ["SL-chart-api-not-served"]
    documents = render(FIRST, CHARTS / "ddp", [*served("trainjob", "pytorchjob"), *settings])
    assert "Master" in pick(documents, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]


@pytest.fixture(scope="module")
def notes_chart(tmp_path_factory):
    """`helm template` leaves NOTES.txt out, so here they are in an object. Any helm, no cluster."""
    charts = tmp_path_factory.mktemp("charts")
    for name in ("run", "ddp"):
        shutil.copytree(CHARTS / name, charts / name, symlinks=True)
    notes = (charts / "ddp" / "templates" / "NOTES.txt").read_text().strip()
    expression = re.fullmatch(r"\{\{ (include .*) \}\}", notes)
    assert expression
    text = f"kind: Notes\ntext: {{{{ {expression[1]} | quote }}}}\n"
    (charts / "ddp" / "templates" / "run.yaml").write_text(text)
    return charts / "ddp"


def read_notes(chart, settings, helm=None):
    rendered = render(helm or find_program(HELMS[0]), chart, ["--set", settings])
    return str(pick(rendered, "Notes")["text"])


def test_notes_name_the_run_and_its_results(helm, notes_chart):
    text = read_notes(notes_chart, "run.config.comparison=vit,run.nodes=2,run.processesPerNode=4", helm)
    commands = re.findall(r"^ *(stratlab (?!predict).*?)(?: {5,}.*)?$", text, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["watch", "logs", "compare"]
    for command in commands:
        assert [*find_problems(command)] == [] and command.endswith(f" --namespace {NAMESPACE}")
    for part in (
        f"/results/vit/{RELEASE}/analysis/report.html",
        "port-forward service/mlflow 5000:5000",
        f"helm -n {NAMESPACE} test {RELEASE} ",
        f"uninstall {RELEASE} ",
        "cpu 8, memory 32Gi, nvidia.com/gpu 4",
    ):
        assert part in text, part


FIRST_HELM, *OTHERS = HELMS


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", FULL)
def test_a_full_render(name, other):
    chart, arguments = FULL[name]
    first, second = (render(find_program(helm), CHARTS / chart, arguments) for helm in (FIRST_HELM, other))
    assert first == second


# setting, what helm must name; of helm 4 a place is /a/b, of helm 3 a.b
TYPOS = [
    ("numNodes=2", "numNodes"),
    ("run.nodez=2", "nodez"),
    ("run.config.tpp=2", "tpp"),
    ("run.config.lr=fast", "config/lr"),
    ("run.analysis.image.pullPolicy=No", "analysis/image/pullPolicy"),
    ("run.secrets[0].name=A", "secrets/0"),
    ("run.env[0].name=TRAINER_LR,run.env[0].value=1", "run.config.lr"),
]


@pytest.mark.parametrize(("setting", "named"), TYPOS)
def test_a_typo(helm, setting, named):
    done = helm_template(helm, CHARTS / "ddp", ["--set", setting])
    assert (done.returncode, done.stdout) == (1, "")
    assert (named.replace("/", ".") if helm.name == "helm3" else named) in done.stderr
    assert find_codes(done.stderr) == (["SL-env-setting"] if "TRAINER" in setting else [])


@pytest.mark.parametrize("chart", ["ddp", "prepare"])
def test_lint(helm, chart):
    command = [helm, "lint", CHARTS / chart, "--set", "prepare.dataset=a/b"]
    done = subprocess.run(command[: 3 if chart == "ddp" else 5], capture_output=True, text=True)
    assert done.returncode == 0 and "[WARNING]" not in done.stdout, done.stdout
