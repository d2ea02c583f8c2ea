"""The four workload APIs start the same pods: the image cannot tell which. What else they have in common."""

import copy
from pathlib import Path

import pytest
import yaml

from stratlab.cluster.workloads import APIS, Workload
from stratlab_spec import exit_codes as failures
from tests.charts.golden_file import BASELINE, EVERYTHING, read_full
from tests.charts.rendering import CHARTS, environment, helm_template, pick, render
from tests.charts.valid_objects import RUNNING, WORKLOADS, unwrap_pods, workload_values

# What the contract of the trainer asks for where mpirun starts it: no operator injects it there.
MPI_VARIABLES = {
    "PET_NNODES": "1000",
    "PET_NPROC_PER_NODE": "8",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ID": "golden",
    "PET_MAX_RESTARTS": "0",
}
WAITING = ["python", "-m", "trainer.program", "worker_pod", str(86400 + 600)]
SSHD_CONFIG = Path(__file__).parents[3] / "images/trainer/ssh/sshd_config"
# sshd takes the first SetEnv alone, and the command line before its file (tried with OpenSSH 9.2)
(SET_BY_SSHD,) = (line for line in SSHD_CONFIG.read_text().splitlines() if line.startswith("SetEnv "))
WORKER_COMMANDS = {
    "mpijob-v1": WAITING,
    "mpijob-v2beta1": [
        *(*WAITING, "/usr/sbin/sshd", "-De", "-o"),
        f"{SET_BY_SSHD.replace(' ', '=', 1)} STRATLAB_NODE=$(STRATLAB_NODE)",
    ],
}
OF_THE_CLUSTER = (
    *("affinity", "runtimeClassName", "topologySpreadConstraints", "initContainers"),
    *("hostNetwork", "hostIPC", "dnsPolicy", "serviceAccountName"),
)
MPI = ("mpijob-v1", "mpijob-v2beta1")


def training(documents):
    return [pod for name, pod in unwrap_pods(documents).items() if name in RUNNING]


def without_exceptions(pod, api):
    """The pod's labels and spec, after checking and undoing what an API may have of its own."""
    pod = copy.deepcopy(pod)
    (entry,) = pod["spec"]["containers"]
    if api in MPI:
        own = [each for each in entry["env"] if each["name"] in MPI_VARIABLES]
        assert {each["name"]: each["value"] for each in own} == MPI_VARIABLES
        entry["env"] = [each for each in entry["env"] if each not in own]
        assert entry["command"] == WORKER_COMMANDS[api]
        entry["command"] = ["python", "-m", "trainer"]
    if api == "trainjob":
        assert entry["name"] == "node" and pod["spec"].pop("restartPolicy") == "Never"
        entry["name"] = "pytorch"
    return {"labels": pod["metadata"]["labels"], "spec": pod["spec"]}


@pytest.mark.parametrize(("api", "topology"), [*WORKLOADS][1:])
def test_the_pods_that_train_are_the_same(helm, api, topology):
    (reference,) = training(read_full(helm, "everything-pytorchjob"))
    grace = reference["spec"]["terminationGracePeriodSeconds"]
    assert environment(reference["spec"], "pytorch")["TRAINER_GRACE_S"] == str(grace)
    found = training(render(helm, CHARTS / "llm-4d", [*EVERYTHING, *workload_values(api, topology)]))
    assert found
    assert all(without_exceptions(pod, api) == without_exceptions(reference, "pytorchjob") for pod in found)


@pytest.mark.parametrize("api", MPI)
def test_the_launcher_is_a_worker_without_accelerators(helm, api):
    """It passes its environment on to the workers: so it has to have all of it. No network of a worker's node."""
    pods = unwrap_pods(read_full(helm, f"everything-{api}"))
    assert "annotations" not in pods["MPIJob.Launcher"]["metadata"]
    launcher, worker = (copy.deepcopy(pods[f"MPIJob.{role}"]["spec"]) for role in ("Launcher", "Worker"))
    assert launcher.pop("automountServiceAccountToken") == (api == "mpijob-v1")
    assert worker.pop("automountServiceAccountToken") is False
    first, second = launcher["containers"][0], worker["containers"][0]
    assert first.pop("command") == ["python", "-m", "trainer.mpi_launcher"]
    assert "nvidia.com/gpu" in second.pop("resources")["limits"] and "gpu" not in str(first.pop("resources"))
    assert "IPC_LOCK" in second["securityContext"]["capabilities"].pop("add")
    second.pop("command")
    for field in OF_THE_CLUSTER:
        worker.pop(field)
    worker["volumes"], second["volumeMounts"] = worker["volumes"][:3], second["volumeMounts"][:3]
    launcher.pop("serviceAccountName", None)  # v1's operator makes it one
    assert launcher == worker


def test_the_resource_is_named_like_the_release_and_says_where_the_results_are(helm):
    """With these names `stratlab` finds what a release has left."""
    documents = render(helm, CHARTS / "ddp", ["--set", "run.nodes=3,run.config.comparison=vit"])
    facts = Workload(APIS["pytorchjob"], pick(documents, "PyTorchJob")).facts
    assert (facts.run_directory, facts.processes) == ("/results/vit/golden", 6)


@pytest.mark.parametrize(
    ("api", "topology", "pods"),
    [
        ("pytorchjob", "worker-only", 3),
        ("pytorchjob", "master-worker", 3),
        ("mpijob-v1", "worker-only", 4),  # the launcher is one of them, or mpirun waits for ever
        ("mpijob-v2beta1", "worker-only", 4),
    ],
)
def test_a_gang_has_all_pods_of_the_run(helm, api, topology, pods):
    arguments = ["--set", "run.nodes=3,run.scheduling.gang=volcano", *workload_values(api, topology)]
    spec = pick(render(helm, CHARTS / "ddp", arguments), APIS[api].kind)["spec"]
    replicas = spec.get("pytorchReplicaSpecs") or spec["mpiReplicaSpecs"]
    assert sum(each["replicas"] for each in replicas.values()) == pods
    assert spec["runPolicy"]["schedulingPolicy"]["minAvailable"] == pods


def settings_hash(helm, *settings):
    documents = render(helm, CHARTS / "ddp", ["--set", ",".join(settings)] if settings else [])
    notes = [each["metadata"].get("annotations", {}) for each in documents]
    (found,) = {each["stratlab/settings-sha256"] for each in notes if "stratlab/settings-sha256" in each}
    return str(found)


def test_an_upgrade_would_see_another_setting(helm):
    settings = (
        *("run.nodes=2", "run.config.lr=0.5", f"run.workload.api=mpijob-v1,{BASELINE}"),
        *("run.resources.limits.memory=4Gi", "run.env[0].name=A,run.env[0].value=b"),
        *("run.pod.annotations.a=b", "run.pod.annotations.a=c"),
    )
    assert len({settings_hash(helm), *(settings_hash(helm, each) for each in settings)}) == 8


def test_an_upgrade_may_change_what_is_no_setting_of_the_run(helm):
    no_settings = (
        *("run.suspend=true", "run.image.tag=x", "run.image.repository=registry.example/trainer"),
        *("run.config.lr=null", "run.analysis.image.tag=x", "run.scheduling.waitSeconds=0", BASELINE),
    )
    assert settings_hash(helm, *no_settings) == settings_hash(helm)


def test_a_trainjob_comes_after_its_runtime(helm):
    """The operator's webhook refuses it before; helm would sort the two by kind."""
    done = helm_template(helm, CHARTS / "ddp", ["--set", "run.workload.api=trainjob", "--no-hooks"])
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert [each["kind"] for each in documents] == ["Job", "Job", "List"]
    assert [each["kind"] for each in documents[-1]["items"]] == ["TrainingRuntime", "TrainJob"]


def test_final_codes_of_the_trainer_end_a_trainjob(helm):
    """As restartPolicy ExitCode ends a PyTorchJob: below 128."""
    runtime = pick(read_full(helm, "ddp-trainjob"), "TrainingRuntime")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    rule, stopped, _ = job["template"]["spec"]["podFailurePolicy"]["rules"]
    assert stopped["onExitCodes"]["values"] == [failures.TERMINATED]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"
    assert rule["onExitCodes"]["values"] == sorted(code for code in failures.REASONS if 0 < code < 128)


def test_a_trainjob_lets_the_trainer_count_its_starts(helm):
    """Every pod of an attempt fails, and Kubernetes counts them together."""
    settings = "run.workload.api=trainjob,run.nodes=4,run.config.max_attempts=5"
    runtime = pick(render(helm, CHARTS / "ddp", ["--set", settings]), "TrainingRuntime")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["backoffLimit"] > 5 * 4


def test_affinity_to_the_run_itself_is_the_default(helm):
    documents = read_full(helm, "everything-pytorchjob")
    affinity = training(documents)[0]["spec"]["affinity"]
    (near,) = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (away,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    selector = near["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selector.items() <= training(documents)[0]["metadata"]["labels"].items()
    assert not selector.items() <= unwrap_pods(documents)["Job"]["metadata"]["labels"].items()
    assert away["labelSelector"] == {"matchLabels": {"app": "noisy"}}, "its own"
