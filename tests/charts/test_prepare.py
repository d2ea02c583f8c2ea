"""charts/prepare: one Job, whose arguments the trainer accepts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.charts.core_object import core_object_problems
from tests.charts.pod_security import find_pods, restricted_problems
from tests.charts.rendering import (
    CHARTS,
    NAMESPACE,
    RELEASE,
    Document,
    container,
    environment,
    expand,
    find_program,
    helm_template,
    render,
    training_pod,
)
from trainer import failures
from trainer.data.text.cache import cache_name
from trainer.prepare.request import STALE_AFTER_S, Request, read_request
from trainer.settings.config import Config
from trainer.settings.published_weights import PUBLISHED_FILES

CHART = CHARTS / "prepare"
PETS = ("--set", "prepare.dataset=org/pets")


def job(helm: Path, *arguments: str, **options: object) -> Document:
    (document,) = render(helm, CHART, [*arguments], **options)
    return document


def request(document: Document, mount: Path) -> Request:
    """What the trainer makes of the rendered arguments; `mount` stands for the results volume."""
    (entry,) = document["spec"]["template"]["spec"]["containers"]
    assert entry["command"] == ["python", "-m", "trainer.prepare"]
    arguments = [expand(text, {}) for text in entry["args"]]
    (to,) = [text for text in arguments if text.startswith("--to=")]
    assert {"name": "results", "mountPath": to.removeprefix("--to=")} in entry["volumeMounts"]
    return read_request([f"--to={mount}" if text == to else text for text in arguments])


def test_one_job_that_the_cluster_accepts(helm: Path) -> None:
    tokens = ("--set", "prepare.dataset=arithmetic,prepare.tokenize=qwen_tiny,run.config.packing=false")
    for arguments in (PETS, ("--set", "prepare.model=org/net"), tokens):
        document = job(helm, *arguments)
        assert (document["apiVersion"], document["kind"]) == ("batch/v1", "Job")
        assert core_object_problems(document) == []
        (pod,) = find_pods(document)
        assert restricted_problems(pod) == []
        assert pod["automountServiceAccountToken"] is False
        assert container(pod, "prepare")["securityContext"]["readOnlyRootFilesystem"] is True
    assert core_object_problems(job(helm, *PETS, release="r" * 52)) == []


def test_the_pod_is_that_of_a_run(helm: Path) -> None:
    """The same user, volumes, folders and image as a training pod; no accelerator."""
    run = training_pod(render(helm, CHARTS / "ddp"))
    (pod,) = find_pods(job(helm, *PETS))
    mine, theirs = container(pod, "prepare"), container(run, "pytorch")
    assert pod["securityContext"] == run["securityContext"]
    assert mine["securityContext"] == theirs["securityContext"]
    assert mine["image"] == theirs["image"] and mine["imagePullPolicy"] == theirs["imagePullPolicy"]
    assert all(volume in run["volumes"] for volume in pod["volumes"])
    assert environment(pod, "prepare").items() <= environment(run, "pytorch").items()
    assert set(mine["resources"]["limits"]) == {"cpu", "memory"}


def test_labels(helm: Path) -> None:
    document = job(helm, *PETS)
    for labels in (document["metadata"]["labels"], document["spec"]["template"]["metadata"]["labels"]):
        assert labels == {
            "app.kubernetes.io/name": "prepare",
            "app.kubernetes.io/instance": RELEASE,
            "app.kubernetes.io/component": "prepare",
            "app.kubernetes.io/part-of": "stratlab",
            "app.kubernetes.io/managed-by": "Helm",
        }


def test_the_trainer_accepts_what_is_rendered(helm: Path, tmp_path: Path) -> None:
    plain = request(job(helm, *PETS), tmp_path)
    assert plain == Request("dataset", "org/pets", RELEASE, tmp_path, "", "", STALE_AFTER_S)
    values = {
        "dataset": "/results/raw/$(HOME) $$x",
        "name": "my.pets",
        "subset": '-x "y" {{ z }}',
        "staleAfterSeconds": 3600,
    }
    full = request(job(helm, values={"prepare": values}), tmp_path)
    assert full == Request("dataset", values["dataset"], "my.pets", tmp_path, "", values["subset"], 3600)
    model = request(job(helm, "--set", "prepare.model=org/net,prepare.revision=refs/pr/1"), tmp_path)
    assert (model.kind, model.source, model.revision) == ("model", "org/net", "refs/pr/1")


def test_a_token_cache_is_the_one_that_a_run_with_the_same_settings_reads(helm: Path, tmp_path: Path) -> None:
    rows = {"seq_len": 1048576, "packing": False, "validation_fraction": 0.25, "train_samples": 16777216}
    plain = request(job(helm, "--set", "prepare.dataset=arithmetic,prepare.tokenize=qwen_tiny"), tmp_path)
    values = {
        "prepare": {"dataset": "arithmetic", "tokenize": "qwen_tiny"},
        "run": {"config": {**rows, "lr": 0.5}},
    }
    given = request(job(helm, values=values), tmp_path)
    for found, settings in ((plain, {}), (given, rows)):
        run = Config(run="r", results=str(tmp_path), model="qwen_tiny", dataset="arithmetic", **settings)
        assert (found.kind, found.name) == ("tokens", cache_name(run))
    assert plain.name != given.name
    typed = "prepare.dataset=arithmetic,prepare.tokenize=qwen_tiny,run.config.packing=true"
    assert request(job(helm, "--set", typed), tmp_path).name == plain.name
    folder = {"prepare": {"dataset": "/results/raw/$(HOME)", "tokenize": "/results/$x/tokenizer"}}
    arguments = job(helm, values=folder)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [expand(text, {}) for text in arguments[:2]] == [
        "--dataset=/results/raw/$(HOME)",
        "--tokenize=/results/$x/tokenizer",
    ]


def test_permanent_failures_end_the_job(helm: Path) -> None:
    rules = job(helm, *PETS)["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["action"] == "FailJob"
    permanent = [failures.BAD_CONFIG, failures.DATA_MISSING, failures.STORAGE_FULL]
    assert rules[0]["onExitCodes"] == {"operator": "In", "values": permanent}


def test_a_changed_request_is_a_new_job(helm: Path) -> None:
    names = {
        job(helm, *arguments)["metadata"]["name"]
        for arguments in (PETS, PETS, (*PETS, "--set", "prepare.revision=v2"))
    }
    assert len(names) == 2 and all(name.startswith(f"{RELEASE}-prepare-") for name in names)


def test_a_token_comes_from_a_secret_only(helm: Path) -> None:
    secrets = json.dumps([{"name": "HF_TOKEN", "secret": "hub", "key": "token"}])
    (pod,) = find_pods(job(helm, *PETS, "--set-json", f"run.secrets={secrets}"))
    entry = next(e for e in container(pod, "prepare")["env"] if e["name"] == "HF_TOKEN")
    assert entry == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    done = helm_template(
        helm, CHART, [*PETS, "--set", "run.env[0].name=HF_TOKEN", "--set", "run.env[0].value=hf_x"]
    )
    assert done.returncode != 0 and "looks like a secret" in done.stderr


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("", "give one of them"),
        ("prepare.dataset=a/b,prepare.model=a/b", "both are given"),
        ("prepare.model=a/b,prepare.weights=vgg", "prepare.model, prepare.weights: both are given"),
        ("prepare.dataset=a/b,prepare.model=a/b,prepare.weights=vgg", "all are given"),
        ("prepare.weights=vgg,prepare.revision=x", "weights of torchvision have none"),
        ("prepare.weights=vgg,prepare.subset=x", "a model has none"),
        ("prepare.weights=vgg,prepare.tokenize=qwen_tiny", "needs prepare.dataset, the texts"),
        ("prepare.weights=alexnet", r"prepare[./]weights"),
        ("prepare.dataset=digits", "nothing to prepare"),
        ("prepare.model=a/b,prepare.subset=x", "a model has none"),
        ("prepare.model=a/b,prepare.tokenize=qwen_tiny", "needs prepare.dataset, the texts"),
        ("prepare.tokenize=qwen_tiny", "give one of them"),
        ("prepare.dataset=a/b,prepare.tokenize=qwen_tiny,prepare.name=x", "prepare.name=x: not with"),
        ("prepare.dataset=a/b,prepare.tokenize=qwen_tiny,prepare.revision=x", "prepare.revision=x: not with"),
        ("prepare.dataset=a/b,prepare.tokenize=qwen_tiny,prepare.subset=x", "prepare.subset=x: not with"),
        ("prepare.dataset=a/b,prepare.tokenize=../x", r"prepare[./]tokenize"),
        ("prepare.dataset=a/b,prepare.deadlineSeconds=null", "deadlineSeconds"),
        ("prepare.dataset=a/b,prepare.deadlineSeconds=9000000000", r"prepare[./]deadlineSeconds"),
        (
            "prepare.dataset=a/b,prepare.ttlSecondsAfterFinished=2147483648",
            r"prepare[./]ttlSecondsAfterFinished",
        ),
        ("prepare.dataset=a/b,prepare.resources=null", "resources"),
        ("prepare.dataset=a/b,prepare.tokenize=qwen_tiny,run.config.seq_len=1", r"seq_len"),
        ("prepare.dataset=../x", r"prepare[./]dataset"),
        ("prepare.dataset=a b", r"prepare[./]dataset"),
        ("prepare.model=/x", r"prepare[./]model"),
        ("prepare.dataset=a/b,prepare.name=../x", r"prepare[./]name"),
        ("prepare.dataset=a/b,prepare.staleAfterSeconds=0", r"prepare[./]staleAfterSeconds"),
        ("prepare.dataset=a/b,prepare.datset=x", "datset"),
        ("prepare.dataset=a/b,dataset=x", r"'dataset' not allowed|property dataset is not allowed"),
        ("prepare.dataset=a/b,run.nodez=2", "nodez"),
    ],
)
def test_refusals(helm: Path, settings: str, text: str) -> None:
    done = helm_template(helm, CHART, ["--set", settings] if settings else [])
    assert done.returncode != 0 and re.search(text, done.stderr), done.stderr


def test_the_chart_knows_the_trainers_weights(helm: Path, tmp_path: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["prepare"]["properties"]["weights"]["enum"]
    assert known == ["", *PUBLISHED_FILES]
    asked = request(job(helm, "--set", "prepare.weights=vgg,prepare.name=w"), tmp_path)
    assert (asked.kind, asked.source, asked.name) == ("weights", "vgg", "w")


@pytest.mark.parametrize(
    ("given", "deadline", "ttl"),
    [({}, 86400, 86400), ({"deadlineSeconds": 7200, "ttlSecondsAfterFinished": 1000000}, 7200, 1000000)],
)
def test_how_long_the_job_and_its_pod_may_take(
    helm: Path, given: dict[str, int], deadline: int, ttl: int
) -> None:
    spec = job(helm, *PETS, values={"prepare": given})["spec"]
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (deadline, ttl)
    assert spec["backoffLimit"] == 3 and spec["podFailurePolicy"]["rules"][1] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 60)
    assert container(pod, "prepare")["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_queue(helm: Path) -> None:
    labels = job(helm, *PETS, "--set", "prepare.queue=batch")["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "batch"


def notes(*arguments: str) -> str:
    """Helm 4 only: `helm install --dry-run=client` of Helm 3 asks for a cluster."""
    command = [str(find_program("helm")), "install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client"]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "KUBECONFIG": os.devnull},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("NOTES:\n")[1]


def test_notes_say_how_a_run_reads_it() -> None:
    text = notes("--set", "prepare.dataset=org/pets,prepare.name=pets")
    assert "--set run.config.dataset_path=/results/_prepared/pets\n" in text
    assert "components/hub-access" in text
    assert "components/hub-access" not in notes("--set", "prepare.dataset=/results/raw/pets")
    said = notes("--set", "prepare.dataset=metamathqa,prepare.tokenize=qwen2.5-3b")
    assert said.startswith(
        "Tokens of metamathqa go to /results/_prepared/tokens-... on the claim stratlab-results"
    )
    assert "finds them by itself" in said and "dataset_path" not in said and "golden/DONE" not in said
    said = notes("--set", "prepare.weights=vgg")
    assert "--set run.env[0].name=TORCH_HOME,run.env[0].value=/results/_prepared/golden\n" in said
    assert "download.pytorch.org has to be reachable" in said
    assert 'from_pretrained("/results/_prepared/golden")' in notes("--set", "prepare.model=org/net")
