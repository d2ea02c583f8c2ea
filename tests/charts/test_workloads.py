"""The four workload APIs start the same pods: the image cannot tell which."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import CHARTS, Document, helm_template, pick, render
from tests.charts.test_valid_objects import EVERYTHING
from tests.charts.unwrapping import RUNNING, WORKLOADS, unwrap_pods, workload_values
from trainer import failures

# What the contract of the trainer asks for where mpirun starts it: no operator injects it there.
MPI_VARIABLES = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "2",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ID": "golden",
    "PET_MAX_RESTARTS": "0",
}
TIMEOUT_S = str(86400 + EVERYTHING["scheduling"]["waitSeconds"] + 600)
WAITING = ["python", "-m", "trainer.program", "worker_pod", TIMEOUT_S]
WORKER_COMMANDS = {
    "mpijob-v1": WAITING,
    "mpijob-v2beta1": [*WAITING, "/usr/sbin/sshd", "-De", "-o", "SetEnv=%s STRATLAB_NODE=$(STRATLAB_NODE)"],
}
SSHD_CONFIG = Path(__file__).parents[2] / "images/trainer/ssh/sshd_config"
# sshd takes the first SetEnv alone, and the command line before its file (tried with OpenSSH 9.2)
SET_BY_SSHD = next(
    line.removeprefix("SetEnv ")
    for line in SSHD_CONFIG.read_text().splitlines()
    if line.startswith("SetEnv ")
)
OF_THE_CLUSTER = (
    *("affinity", "runtimeClassName", "topologySpreadConstraints", "initContainers"),
    *("hostNetwork", "hostIPC", "dnsPolicy", "serviceAccountName"),
)
each_workload = pytest.mark.parametrize(
    ("api", "topology"), WORKLOADS, ids=[f"{api}-{topology}" for api, topology in WORKLOADS]
)


def rendered_pods(helm: Path, api: str, topology: str = "worker-only") -> dict[str, Document]:
    arguments = ["--set", "run.nodes=2", *workload_values(api, topology)]
    pods = unwrap_pods(render(helm, CHARTS / "ddp", arguments, values={"run": same_everywhere()}))
    return {name: pods[name] for name in WORKLOADS[api, topology]}


def same_everywhere() -> Document:
    return {name: value for name, value in EVERYTHING.items() if name not in ("nodes", "processesPerNode")}


def without_exceptions(pod: Document, api: str) -> Document:
    """The pod's labels and spec, after checking and undoing what an API may have of its own."""
    pod = copy.deepcopy(pod)
    (container,) = pod["spec"]["containers"]
    if api.startswith("mpijob"):
        own = [entry for entry in container["env"] if entry["name"] in MPI_VARIABLES]
        assert {entry["name"]: entry["value"] for entry in own} == MPI_VARIABLES
        container["env"] = [entry for entry in container["env"] if entry not in own]
        assert container["command"] == [part.replace("%s", SET_BY_SSHD) for part in WORKER_COMMANDS[api]]
        container["command"] = ["python", "-m", "trainer"]
    if api == "trainjob":
        assert container["name"] == "node" and pod["spec"].pop("restartPolicy") == "Never"
        container["name"] = "pytorch"
    return {"labels": pod["metadata"]["labels"], "spec": pod["spec"]}


@each_workload
def test_the_pods_that_train_are_the_same(helm: Path, api: str, topology: str) -> None:
    reference = rendered_pods(helm, "pytorchjob")["PyTorchJob.Worker"]
    for name, pod in rendered_pods(helm, api, topology).items():
        if name in RUNNING:
            assert without_exceptions(pod, api) == without_exceptions(reference, "pytorchjob"), name


@each_workload
def test_the_grace_period_reaches_every_pod_and_the_trainer(helm: Path, api: str, topology: str) -> None:
    arguments = ["--set", "run.graceSeconds=300,run.nodes=2", *workload_values(api, topology)]
    pods = unwrap_pods(render(helm, CHARTS / "ddp", arguments))
    assert WORKLOADS[api, topology]
    for name in WORKLOADS[api, topology]:
        spec = pods[name]["spec"]
        assert spec["terminationGracePeriodSeconds"] == 300
        (container,) = spec["containers"]
        assert {"name": "TRAINER_GRACE_S", "value": "300"} in container["env"]


@pytest.mark.parametrize("api", ["mpijob-v1", "mpijob-v2beta1"])
def test_the_launcher_is_a_worker_without_accelerators(helm: Path, api: str) -> None:
    """It passes its environment on to the workers: so it has to have all of it."""
    pods = rendered_pods(helm, api)
    launcher, worker = (copy.deepcopy(pods[name]["spec"]) for name in ("MPIJob.Launcher", "MPIJob.Worker"))
    assert launcher.pop("automountServiceAccountToken") == (api == "mpijob-v1")
    assert worker.pop("automountServiceAccountToken") is False
    first, second = launcher["containers"][0], worker["containers"][0]
    assert first.pop("command") == ["python", "-m", "trainer.mpi_launcher"]
    assert "nvidia.com/gpu" in second["resources"]["limits"]
    resources = first.pop("resources")
    assert resources.keys() == {"requests", "limits"} and "nvidia.com/gpu" not in str(resources)
    assert "IPC_LOCK" in second["securityContext"]["capabilities"].pop("add")
    second.pop("command")
    second.pop("resources")
    for field in OF_THE_CLUSTER:  # tests/charts/test_cluster_values.py
        worker.pop(field)
    worker["volumes"], second["volumeMounts"] = worker["volumes"][:3], second["volumeMounts"][:3]
    launcher.pop("serviceAccountName", None)
    assert launcher == worker


@pytest.mark.parametrize("api", ["mpijob-v1", "mpijob-v2beta1"])
def test_a_launcher_has_the_resources_that_values_give_it(helm: Path, api: str) -> None:
    """A quota on ephemeral storage refuses a pod that names none."""
    given = {"requests": {"ephemeral-storage": "1Gi"}, "limits": {"ephemeral-storage": "2Gi", "cpu": 1}}
    documents = render(
        helm,
        CHARTS / "ddp",
        ["--set", f"run.workload.api={api},run.podSecurity.level=baseline"],
        values={"run": {"workload": {"launcherResources": given}}},
    )
    replicas = pick(documents, "MPIJob")["spec"]["mpiReplicaSpecs"]
    launcher, worker = (
        replicas[role]["template"]["spec"]["containers"][0]["resources"] for role in ("Launcher", "Worker")
    )
    assert launcher == {
        "requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "2Gi"},
    }
    assert "ephemeral-storage" not in str(worker)


@each_workload
def test_a_run_is_at_most_six_objects_of_whatever_size(helm: Path, api: str, topology: str) -> None:
    counts = set()
    for size in ("run.nodes=2", "run.nodes=1000,run.processesPerNode=16"):
        documents = render(helm, CHARTS / "ddp", ["--set", size, *workload_values(api, topology)])
        counts.add(len([each for each in documents if "helm.sh/hook" not in str(each["metadata"])]))
    assert counts == {4 if api == "trainjob" else 3}


@each_workload
def test_the_resource_is_named_like_the_release_and_says_where_the_results_are(
    helm: Path, api: str, topology: str
) -> None:
    arguments = ["--set", "run.nodes=3,run.config.comparison=vit", *workload_values(api, topology)]
    documents = render(helm, CHARTS / "ddp", arguments)
    kind = {"trainjob": "TrainJob", "pytorchjob": "PyTorchJob"}.get(api, "MPIJob")
    resource = pick(documents, kind)
    notes = resource["metadata"]["annotations"]
    assert resource["metadata"]["name"] == "golden"
    assert len(notes.pop("stratlab/settings-sha256")) == 64
    assert notes == {
        "stratlab/run-directory": "/results/vit/golden",
        "stratlab/results-claim": "stratlab-results",
        "stratlab/results-mount": "/results",
        "stratlab/lab-image": "stratlab-lab:0.1.0",
        "stratlab/tracking-uri": "http://mlflow:5000",
        "stratlab/processes": "6",
    }
    command = unwrap_pods(documents)["Job.waiter"]["spec"]["containers"][0]["command"]
    assert command[command.index("--resource") + 1] == f"{api}/golden"


def test_a_master_takes_the_place_of_a_worker(helm: Path) -> None:
    for nodes, expected in ((1, {"Master": 1}), (3, {"Master": 1, "Worker": 2})):
        arguments = ["--set", f"run.nodes={nodes}", *workload_values("pytorchjob", "master-worker")]
        spec = pick(render(helm, CHARTS / "ddp", arguments), "PyTorchJob")["spec"]
        assert {role: each["replicas"] for role, each in spec["pytorchReplicaSpecs"].items()} == expected
        assert "elasticPolicy" not in spec


@pytest.mark.parametrize("api", ["mpijob-v1", "mpijob-v2beta1", "trainjob"])
def test_only_a_pytorchjob_has_a_master(helm: Path, api: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", workload_values(api, "master-worker"))
    assert done.returncode and "only a pytorchjob has a master" in done.stderr


@pytest.mark.parametrize("api", ["pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob"])
def test_suspend_is_said_only_when_it_is_wanted(helm: Path, api: str) -> None:
    """Kueue and people set it as well: a `false` in every upgrade would fight with them."""
    for suspend in (True, False):
        arguments = [
            "--set-json",
            f"run.suspend={str(suspend).lower()}",
            *workload_values(api, "worker-only"),
        ]
        (resource,) = [
            each
            for each in render(helm, CHARTS / "ddp", arguments)
            if each["kind"] in ("PyTorchJob", "MPIJob", "TrainJob")
        ]
        policy = resource["spec"].get("runPolicy", resource["spec"])
        assert policy.get("suspend") is (True if suspend else None)


@pytest.mark.parametrize("gang", ["volcano", "scheduler-plugins"])
@pytest.mark.parametrize(
    ("api", "topology", "pods"),
    [
        ("pytorchjob", "worker-only", 3),
        ("pytorchjob", "master-worker", 3),
        ("mpijob-v1", "worker-only", 4),  # the launcher is one of them, or mpirun waits for ever
        ("mpijob-v2beta1", "worker-only", 4),
    ],
)
def test_a_gang_has_all_pods_of_the_run(helm: Path, api: str, topology: str, pods: int, gang: str) -> None:
    arguments = ["--set", f"run.nodes=3,run.scheduling.gang={gang}", *workload_values(api, topology)]
    kind = "PyTorchJob" if api == "pytorchjob" else "MPIJob"
    spec = pick(render(helm, CHARTS / "ddp", arguments), kind)["spec"]
    replicas = spec.get("pytorchReplicaSpecs") or spec["mpiReplicaSpecs"]
    assert sum(each["replicas"] for each in replicas.values()) == pods
    assert spec["runPolicy"]["schedulingPolicy"]["minAvailable"] == pods


@pytest.fixture(scope="module")
def shipped_hash(helm: Path) -> str:
    return settings_hash(helm)


def settings_hash(helm: Path, *settings: str) -> str:
    arguments = ["--set", ",".join(settings)] if settings else []
    for each in render(helm, CHARTS / "ddp", arguments):
        if notes := each["metadata"].get("annotations", {}).get("stratlab/settings-sha256"):
            return notes
    raise AssertionError("no resource carries the hash")


@pytest.mark.parametrize(
    "setting",
    [
        "run.nodes=2",
        "run.processesPerNode=4",
        "run.config.lr=0.5",
        "run.mlflow.trackingUri=http://x",
        "run.workload.api=mpijob-v1,run.podSecurity.level=baseline",
        "run.workload.topology=master-worker,run.podSecurity.level=baseline",
        "run.scheduling.nodeSelector.a=b",
        "run.resources.limits.memory=4Gi",
        "run.workload.launcherResources.limits.memory=4Gi",
        "run.env[0].name=A,run.env[0].value=b",
    ],
)
def test_an_upgrade_would_see_another_setting(helm: Path, shipped_hash: str, setting: str) -> None:
    """It compares this hash with that of the resource in the cluster: test_install.py."""
    assert settings_hash(helm, setting) != shipped_hash


@pytest.mark.parametrize(
    "setting",
    [
        "run.suspend=true",
        "run.image.tag=x",
        "run.image.repository=registry.example/trainer",
        "run.config.lr=null",
        "run.analysis.image.tag=x",
        "run.analysis.enabled=false",
        "run.scheduling.waitSeconds=0",
    ],
)
def test_an_upgrade_may_change_what_is_no_setting_of_the_run(
    helm: Path, shipped_hash: str, setting: str
) -> None:
    assert settings_hash(helm, setting) == shipped_hash


def test_a_trainjob_comes_after_its_runtime(helm: Path) -> None:
    """The operator's webhook refuses it before; helm would sort the two by kind."""
    done = helm_template(helm, CHARTS / "ddp", ["--set", "run.workload.api=trainjob", "--no-hooks"])
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert [each["kind"] for each in documents] == ["Job", "Job", "List"]
    assert [each["kind"] for each in documents[-1]["items"]] == ["TrainingRuntime", "TrainJob"]


def test_final_codes_of_the_trainer_end_a_trainjob(helm: Path) -> None:
    """As restartPolicy ExitCode ends a PyTorchJob: below 128."""
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.workload.api=trainjob"])
    runtime = next(each for each in rendered if each["kind"] == "TrainingRuntime")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    rule, stopped, disrupted = job["template"]["spec"]["podFailurePolicy"]["rules"]
    assert stopped["action"] == disrupted["action"] == "Ignore"
    assert stopped["onExitCodes"]["values"] == [failures.TERMINATED]
    assert disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"
    assert rule["onExitCodes"]["containerName"] == "node"
    assert rule["onExitCodes"]["values"] == sorted(code for code in failures.REASONS if 0 < code < 128)


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_trainjob_lets_the_trainer_count_its_starts(helm: Path, nodes: int) -> None:
    """Every pod of an attempt fails, and Kubernetes counts them together."""
    settings = f"run.workload.api=trainjob,run.nodes={nodes},run.config.max_attempts=5"
    runtime = pick(render(helm, CHARTS / "ddp", ["--set", settings]), "TrainingRuntime")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["backoffLimit"] > 5 * nodes
