"""What the training container finds in its environment, beside the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import (
    CHARTS,
    analysis_pod,
    container,
    environment,
    helm_template,
    pick,
    render,
    training_pod,
    waiter_pod,
)
from tests.charts.unwrapping import WORKLOADS, unwrap_pods, workload_values


def env_values(*entries: tuple[str, str]) -> dict[str, Any]:
    return {"run": {"env": [{"name": name, "value": value} for name, value in entries]}}


def test_only_folders_that_can_be_written(documents: list[dict]) -> None:
    """The root file system is read-only: every cache must be on a volume."""
    pod = training_pod(documents)
    env = environment(pod, "pytorch")
    caches = ("HOME", "HF_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
    mounts = [mount["mountPath"] for mount in container(pod, "pytorch")["volumeMounts"]]
    assert {"/tmp", "/dev/shm", env["TRAINER_RESULTS"]} == set(mounts)
    for name in caches:
        assert f"{env[name]}/".startswith("/tmp/"), name


@pytest.mark.parametrize(("api", "topology"), WORKLOADS)
def test_every_pod_that_trains_knows_its_node(helm: Path, api: str, topology: str) -> None:
    """A pod's host name is its own: only the cluster can say which runs were beside each other."""
    pods = unwrap_pods(
        render(helm, CHARTS / "ddp", ["--set", "run.nodes=2", *workload_values(api, topology)])
    )
    for name in WORKLOADS[api, topology]:
        (entry,) = [e for e in pods[name]["spec"]["containers"][0]["env"] if e["name"] == "STRATLAB_NODE"]
        assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_further_variables_come_last_and_win_over_the_folders(helm: Path) -> None:
    values = env_values(("NCCL_DEBUG", "INFO"), ("HF_HOME", "/results/cache"))
    env = environment(training_pod(render(helm, CHARTS / "ddp", values=values)), "pytorch")
    assert list(env.items())[-2:] == [("NCCL_DEBUG", "INFO"), ("HF_HOME", "/results/cache")]
    assert [*env].count("HF_HOME") == 1
    assert env["HOME"] == "/tmp"


def test_a_number_needs_no_quotes(helm: Path) -> None:
    setting = "run.env[0].name=NCCL_IB_DISABLE,run.env[0].value=1"
    rendered = render(helm, CHARTS / "ddp", ["--set", setting])
    assert environment(training_pod(rendered), "pytorch")["NCCL_IB_DISABLE"] == "1"


def test_a_dollar_sign_means_itself(helm: Path) -> None:
    """Kubernetes replaces $(NAME) and $$ in values."""
    text = "$(HOME)/$$/$5"
    values = {"run": {"config": {"tokenizer": text}, **env_values(("NOTE", text))["run"]}}
    env = environment(training_pod(render(helm, CHARTS / "ddp", values=values)), "pytorch")
    assert env["TRAINER_TOKENIZER"] == env["NOTE"] == text


def test_a_fault_is_planted_only_where_the_release_allows_it(helm: Path) -> None:
    fault = ["--set", "run.config.fault=kill@37:1"]
    done = helm_template(helm, CHARTS / "ddp", fault)
    assert (
        done.returncode and "run.config.fault=kill@37:1" in done.stderr and "run.allowFaults" in done.stderr
    )
    env = environment(
        training_pod(render(helm, CHARTS / "ddp", [*fault, "--set=run.allowFaults=true"])), "pytorch"
    )
    assert (env["TRAINER_FAULT"], env["TRAINER_ALLOW_FAULTS"]) == ("kill@37:1", "true")
    assert "TRAINER_ALLOW_FAULTS" not in environment(training_pod(render(helm, CHARTS / "ddp")), "pytorch")
    unknown = helm_template(helm, CHARTS / "ddp", ["--set=run.config.fault=explode@3,run.allowFaults=true"])
    assert unknown.returncode and "fault" in unknown.stderr


def test_the_tracking_server_reaches_training_and_analysis(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.mlflow.trackingUri=http://mlflow:5000"])
    for pod, name in (
        (training_pod(rendered), "pytorch"),
        (waiter_pod(rendered), "wait"),
        (analysis_pod(rendered), "analyze"),
    ):
        assert environment(pod, name)["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_without_a_tracking_server_nothing_is_set(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.mlflow.trackingUri="])
    assert "MLFLOW_TRACKING_URI" not in str(rendered)


def test_services_of_other_runs_do_not_reach_the_environment(documents: list[dict]) -> None:
    """A release `trainer` has a Service trainer-worker-0, and service links would set TRAINER_WORKER_0_PORT."""
    for pod in (training_pod(documents), analysis_pod(documents), waiter_pod(documents)):
        assert pod["enableServiceLinks"] is False


def test_a_setting_of_the_trainer_is_refused_there(helm: Path) -> None:
    done = helm_template(helm, CHARTS / "ddp", values=env_values(("TRAINER_LR", "1")))
    assert done.returncode and "run.env: TRAINER_LR is a setting" in done.stderr
    assert "write run.config.lr" in done.stderr


def test_the_tracking_server_is_refused_there(helm: Path) -> None:
    done = helm_template(helm, CHARTS / "ddp", values=env_values(("MLFLOW_TRACKING_URI", "http://x")))
    assert done.returncode and "write run.mlflow.trackingUri" in done.stderr


def test_the_login_of_the_tracking_server_comes_out_of_a_secret(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.mlflow.existingSecret=login"])
    for pod, name in (
        (training_pod(rendered), "pytorch"),
        (analysis_pod(rendered), "analyze"),
        (pick(rendered, "Pod")["spec"], "verify"),
    ):
        env = environment(pod, name)
        assert env["MLFLOW_TRACKING_USERNAME"] == "<login/username>"
        assert env["MLFLOW_TRACKING_PASSWORD"] == "<login/password>"


def test_secrets_are_named_and_never_said(helm: Path) -> None:
    secrets = [
        {"name": "HF_TOKEN", "secret": "hub", "key": "token"},
        {"name": "HF_HOME", "secret": "hub", "key": "h"},
    ]
    rendered = render(helm, CHARTS / "ddp", values={"run": {"secrets": secrets}})
    env = environment(training_pod(rendered), "pytorch")
    assert (env["HF_TOKEN"], env["HF_HOME"]) == ("<hub/token>", "<hub/h>")
    assert "hub" not in str([analysis_pod(rendered), pick(rendered, "Pod")])


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "Password", "DB_CREDENTIALS", "AWS_ACCESS_KEY_ID"],
)
def test_a_value_that_looks_like_a_secret_is_refused(helm: Path, name: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", values=env_values((name, "hunter2")))
    assert done.returncode and f"run.env: {name} looks like a secret" in done.stderr
    assert f"run.secrets: [{{name: {name}," in done.stderr and "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "KEYBOARD", "PET_MONITOR_INTERVAL"]
)
def test_a_name_that_only_sounds_like_one_is_not(helm: Path, name: str) -> None:
    render(helm, CHARTS / "ddp", values=env_values((name, "1")))


def test_a_password_in_the_address_of_the_server_is_refused(helm: Path) -> None:
    done = helm_template(
        helm, CHARTS / "ddp", ["--set", "run.mlflow.trackingUri=http://me:hunter2@mlflow:5000"]
    )
    assert done.returncode and "trackingUri" in done.stderr


RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR"),
    *("MASTER_PORT", "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_STANDALONE", "PET_START_METHOD"),
)


@pytest.mark.parametrize("block", ["env", "secrets"])
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("TRAINER_LR", "write run.config.lr"),
        ("MLFLOW_TRACKING_PASSWORD", "write run.mlflow.existingSecret"),
        *((name, "follows from run.nodes, run.processesPerNode and run.workload") for name in RANKS),
        ("STRATLAB_NODE", "is the node that the pod is on"),
    ],
)
def test_what_the_chart_sets_itself_is_refused(helm: Path, block: str, name: str, advice: str) -> None:
    entry = {"env": {"value": "1"}, "secrets": {"secret": "s", "key": "k"}}[block]
    done = helm_template(helm, CHARTS / "ddp", values={"run": {block: [{"name": name, **entry}]}})
    assert done.returncode and f"run.{block}: {name}" in done.stderr.replace("for MLFLOW", "MLFLOW")
    assert advice in done.stderr


def test_a_variable_is_either_plain_or_secret(helm: Path) -> None:
    secret = {"name": "A", "secret": "s", "key": "k"}
    done = helm_template(
        helm, CHARTS / "ddp", values={"run": {**env_values(("A", "1"))["run"], "secrets": [secret]}}
    )
    assert done.returncode and "run.secrets: A is there twice" in done.stderr


def test_a_name_given_twice_is_refused(helm: Path) -> None:
    """The API server would refuse the PyTorchJob: the list is keyed by name."""
    done = helm_template(helm, CHARTS / "ddp", values=env_values(("A", "1"), ("A", "2")))
    assert done.returncode and "run.env: A is there twice" in done.stderr
