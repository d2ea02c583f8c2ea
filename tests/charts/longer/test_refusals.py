"""What the templates refuse, one case for each code; what leaves the Pod Security level of its namespace.

Two who do not know each other must agree: the chart's table, and the checks of pod_security.py on what it renders.
What the schema refuses is in test_values_schema.py.
"""

import re

import pytest

from tests.charts.pod_security import APPARMOR, BASELINE_CAPABILITIES, LEVELS, find_level
from tests.charts.rendering import CHARTS, refusal, render
from tests.charts.valid_objects import unwrap_pods
from tests.codes import find_codes

TINY = {"sizeLimit": "1Gi"}


def volume(path="/x", name="x", **more):
    source = more or {"configMap": {"name": "a"}}
    return {"pod": {"volumes": [{"name": name, "mountPath": path, **source}]}}


def first(**more):
    return {"pod": {"initContainers": [{"name": "x", "image": "a", "command": ["b"], **more}]}}


def env(*names):
    return {"env": [{"name": name, "value": "hunter2"} for name in names]}


OF_THE_NODE = {"hostPath": {"path": "/home/bin/gib"}}
PRIVILEGED = {"podSecurity": {"level": "privileged", "hostPaths": ["/home/bi", "/home/bin/gib/lib"]}}
SPREAD = [{"topologyKey": "rack", "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"} for skew in (1, 2)]
RDMA = "run.rdma.enabled=true,run.rdma.lockMemory=false"
# settings or values -> code, and what else must be named
OF_A_RUN = [
    ("run.processesPerNode=3,run.analysis.shares=4", "SL-shares-over-ranks", ("=4",)),
    ({"pod": {"topologySpread": SPREAD}}, "SL-spread-twice", ("rack",)),
    ("run.config.fault=kill@37:1", "SL-chart-fault-not-allowed", ("run.allowFaults",)),
    ("run.mlflow.existingSecret=a,run.mlflow.trackingUri=", "SL-login-without-server", ()),
    (env("DB_CREDENTIALS"), "SL-secret-in-values", ("run.env: DB_CREDENTIALS", "run.secrets: [{name: DB_")),
    (env("Password"), "SL-secret-in-values", ()),
    (env("AWS_ACCESS_KEY_ID"), "SL-secret-in-values", ()),
    (first(env=env("HF_TOKEN")["env"]), "SL-secret-in-values", ("run.pod.initContainers: x: env: HF_TOKEN",)),
    (env("TRAINER_LR"), "SL-env-setting", ("run.config.lr",)),
    (env("MLFLOW_TRACKING_URI"), "SL-env-mlflow-address", ("run.mlflow.trackingUri",)),
    (env("MLFLOW_TRACKING_USERNAME"), "SL-env-mlflow-login", ("run.mlflow.existingSecret",)),
    (env("STRATLAB_CA_FILE"), "SL-env-certificates", ("run.certificates",)),
    (env("WORLD_SIZE"), "SL-env-ranks", ()),
    ("run.secrets[0].name=PET_NNODES,run.secrets[0].secret=s", "SL-env-ranks", ("run.secrets: PET_NNODES",)),
    (env("HOSTNAME"), "SL-env-hostname", ()),
    (env("STRATLAB_NAMESPACE"), "SL-env-namespace", ()),
    (env("STRATLAB_NODE"), "SL-env-node", ()),
    (env("A", "A"), "SL-env-twice", ()),
    ({**env("A"), "secrets": [{"name": "A", "secret": "s", "key": "k"}]}, "SL-env-twice", ("run.secrets",)),
    ({"pod": {"labels": {"app.kubernetes.io/name": "x"}}}, "SL-label-reserved", ()),
    ({"pod": {"labels": {"job-name": "x"}}}, "SL-label-reserved", ("job-name",)),
    ("run.certificates.secret=a,run.certificates.configMap=b", "SL-certificates-two-places", ()),
    (
        "run.resources.requests.cpu=501m,run.resources.limits.cpu=0.5",
        "SL-request-over-limit",
        ("501m", "0.5"),
    ),
    ("run.scheduling.queue=a,run.scheduling.gang=none", "SL-queue-without-gang", ("run.scheduling.gang",)),
    (volume(name="mpi-job-config", emptyDir=TINY), "SL-volume-name-taken", ()),
    (volume(name="tmp", emptyDir=TINY), "SL-volume-name-taken", ()),
    (volume("/results/"), "SL-mount-path-taken", ("/results",)),
    (volume("/results/_prepared/pets/"), "SL-mount-below-own", ("/results/_prepared/pets",)),
    ({**volume("/data"), "results": {"mountPath": "/data/runs/"}}, "SL-mount-above-own", ("/data/runs",)),
    (
        volume(persistentVolumeClaim={"claimName": "stratlab-results"}),
        "SL-claim-twice",
        ("stratlab-results",),
    ),
    ({**volume(**OF_THE_NODE), **PRIVILEGED}, "SL-host-path-writable", ()),
    ({**volume(**OF_THE_NODE, readOnly=True), **PRIVILEGED}, "SL-host-path-unlisted", ("/home/bin/gib",)),
    (first(name="pytorch"), "SL-init-container-twice", ()),
    (first(command=[]), "SL-init-without-command", ()),
    (first(env=env("A", "A")["env"]), "SL-init-env-twice", ("x: env: A",)),
    ("run.workload.api=mpijob-v2beta1,run.pod.securityContext.runAsUser=20000", "SL-sshd-user", ("=20000",)),
    ("run.resources.requests.nvidia\\.com/gpu=1", "SL-accelerator-twice", ("nvidia.com/gpu",)),
    (f"{RDMA},run.rdma.resource=nvidia.com/gpu", "SL-rdma-is-accelerator", ()),
    (f"{RDMA},run.resources.limits.rdma/hca=1", "SL-rdma-twice", ("rdma/hca",)),
    ("run.workload.api=trainjob,run.workload.topology=master-worker", "SL-topology-needs-pytorchjob", ()),
    ("run.rdma.enabled=true", "SL-security-level", ("run.rdma.lockMemory=true", "level=privileged")),
]
TOKENS = "prepare.dataset=a/b,prepare.tokenize=qwen_tiny"
OF_A_PREPARATION = [
    ("", "SL-prepare-nothing"),
    ("prepare.dataset=a/b,prepare.model=a/b,prepare.weights=vgg", "SL-prepare-several"),
    ("prepare.dataset=digits", "SL-prepare-built-in"),
    (f"{TOKENS},prepare.revision=x", "SL-prepare-tokens-named"),
    ("prepare.weights=vgg,prepare.revision=x", "SL-prepare-weights-revision"),
    ("prepare.model=a/b,prepare.subset=x", "SL-prepare-model-subset"),
    ("prepare.model=a/b,prepare.tokenize=qwen_tiny", "SL-prepare-tokens-of-nothing"),
    ("prepare.dataset=a/b,run.pod.securityContext.runAsUser=0", "SL-security-level"),
    ("prepare.dataset=a/b,prepare.resources.limits.cpu=1m", "SL-request-over-limit"),
]


@pytest.mark.parametrize(("run", "code", "names"), OF_A_RUN, ids=lambda part: str(part)[:40])
def test_a_run(helm, run, code, names):
    said = (
        refusal(helm, "ddp", ["--set", run])
        if isinstance(run, str)
        else refusal(helm, "ddp", values={"run": run})
    )
    assert find_codes(said) == [code] and [name for name in names if name not in said] == []
    assert "hunter2" not in said


@pytest.mark.parametrize(("settings", "code"), OF_A_PREPARATION)
def test_a_preparation(helm, settings, code):
    assert find_codes(refusal(helm, "prepare", ["--set", settings] if settings else [])) == [code]


@pytest.mark.parametrize("release", ["1bad", "r" * 53])
def test_a_release_that_cannot_name_a_run(helm, release):
    assert find_codes(refusal(helm, "ddp", release=release)) == ["SL-chart-release-name"]


def test_every_code_of_the_templates_is_seen_here():
    """SL-chart-api-not-served and SL-settings-changed need a cluster: helms/."""
    templates = [path.read_text() for path in CHARTS.glob("*/templates/*") if "fail" in path.read_text()]
    told = [line for text in templates for line in text.splitlines() if re.search(r"\bfail [(\"]", line)]
    assert [line for line in told if len(find_codes(line)) != 1] == []
    seen = {code for _, code, _ in OF_A_RUN} | {code for _, code in OF_A_PREPARATION}
    known = {code for line in told for code in find_codes(line)}
    assert known - seen == {"SL-chart-release-name", "SL-chart-api-not-served", "SL-settings-changed"}


GIB = {
    "name": "gib",
    "mountPath": "/usr/local/gib",
    "readOnly": True,
    "hostPath": {"path": "/home/kubernetes/bin/gib"},
}
LISTED = ["/home/kubernetes/bin"]


def security(**given):
    return {"pod": {"securityContext": given}}


CASES = [
    ({"pod": {"hostNetwork": True}}, "run.pod.hostNetwork=true", "privileged"),
    ({"pod": {"hostIPC": True}}, "run.pod.hostIPC=true", "privileged"),
    ({"pod": {"volumes": [GIB]}}, "run.pod.volumes: gib", "privileged"),
    ({"rdma": {"enabled": True}}, "run.rdma.lockMemory=true", "privileged"),
    (security(capabilities=["SYS_ADMIN"]), "capabilities: SYS_ADMIN", "privileged"),
    (security(capabilities=sorted(BASELINE_CAPABILITIES)), "capabilities: AUDIT_WRITE", "baseline"),
    (security(runAsUser=-0.0), "runAsUser=0", "baseline"),
    (security(seccompProfile="Unconfined"), "seccompProfile=Unconfined", "privileged"),
    (security(seLinuxType="spc_t"), "seLinuxType=spc_t", "privileged"),
    ({"pod": {"annotations": {f"{APPARMOR}pytorch": "unconfined"}}}, f"{APPARMOR}pytorch", "privileged"),
]
RESTRICTED = {
    "rdma": {"enabled": True, "lockMemory": False},
    "pod": {
        "volumes": [
            {"name": "a", "mountPath": "/a", "csi": {"driver": "a.b"}},
            {"name": "b", "mountPath": "/b", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
        ],
        "initContainers": [{"name": "a", "image": "a", "command": ["true"]}],
        "runtimeClass": "nvidia",
        "annotations": {f"{APPARMOR}pytorch": "localhost/strict", f"{APPARMOR}wait": "runtime/default"},
        "securityContext": {
            "capabilities": ["NET_BIND_SERVICE"],
            "runAsUser": "",
            "runAsGroup": 0,
            "seLinuxType": "container_t",
            "readOnlyRootFilesystem": False,
        },
    },
}


def needed_level(helm, run, level):
    values = {"run": {**run, "podSecurity": {"level": level, "hostPaths": LISTED}}}
    pods = unwrap_pods(render(helm, CHARTS / "ddp", values=values)).values()
    found = [find_level(pod["spec"], pod["metadata"].get("annotations")) for pod in pods]
    return max(found, key=LEVELS.index)


@pytest.mark.parametrize(("run", "key", "needs"), CASES, ids=lambda case: str(case)[:60])
def test_a_value_at_its_level_and_below(helm, run, key, needs):
    assert needed_level(helm, run, needs) == needs
    below = LEVELS[LEVELS.index(needs) - 1]
    said = refusal(helm, "ddp", values={"run": {**run, "podSecurity": {"level": below, "hostPaths": LISTED}}})
    assert find_codes(said) == ["SL-security-level"]
    assert key in said and f"run.podSecurity.level={needs}" in said


def test_what_every_level_allows(helm):
    assert needed_level(helm, RESTRICTED, "restricted") == "restricted"


@pytest.mark.parametrize("workload", ["api=mpijob-v1", "topology=master-worker"])
def test_what_an_operator_adds_needs_baseline(helm, workload):
    """Whatever the values are: it is not in what is rendered."""
    said = refusal(helm, "ddp", ["--set", f"run.workload.{workload}"])
    assert find_codes(said) == ["SL-security-level"]
    assert f"run.workload.{workload}" in said and "run.podSecurity.level=baseline" in said
