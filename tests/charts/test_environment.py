"""What the training container finds in its environment, beside the settings."""

from __future__ import annotations

from pathlib import Path

from tests.charts.rendering import (
    CHARTS,
    analysis_pod,
    container,
    environment,
    helm_template,
    render,
    training_pod,
)


def env_values(*entries: tuple[str, str]) -> dict[str, object]:
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


def test_further_variables_come_last_and_win_over_the_folders(helm: Path) -> None:
    values = env_values(("NCCL_DEBUG", "INFO"), ("HF_HOME", "/results/cache"))
    env = environment(training_pod(render(helm, CHARTS / "ddp", values=values)), "pytorch")
    assert list(env.items())[-2:] == [("NCCL_DEBUG", "INFO"), ("HF_HOME", "/results/cache")]
    assert env["HOME"] == "/tmp"


def test_a_number_needs_no_quotes(helm: Path) -> None:
    setting = "run.env[0].name=NCCL_IB_DISABLE,run.env[0].value=1"
    rendered = render(helm, CHARTS / "ddp", ["--set", setting])
    assert environment(training_pod(rendered), "pytorch")["NCCL_IB_DISABLE"] == "1"


def test_the_tracking_server_reaches_training_and_analysis(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.mlflow.trackingUri=http://mlflow:5000"])
    for pod, name in (
        (training_pod(rendered), "pytorch"),
        (analysis_pod(rendered), "wait"),
        (analysis_pod(rendered), "analyze"),
    ):
        assert environment(pod, name)["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_without_a_tracking_server_nothing_is_set(documents: list[dict]) -> None:
    assert "MLFLOW_TRACKING_URI" not in str(documents)


def test_services_of_other_runs_do_not_reach_the_environment(documents: list[dict]) -> None:
    """A release `trainer` has a Service trainer-worker-0, and service links would set TRAINER_WORKER_0_PORT."""
    for pod in (training_pod(documents), analysis_pod(documents)):
        assert pod["enableServiceLinks"] is False


def test_a_setting_of_the_trainer_is_refused_there(helm: Path) -> None:
    done = helm_template(helm, CHARTS / "ddp", values=env_values(("TRAINER_LR", "1")))
    assert done.returncode and "run.env: TRAINER_LR is a setting" in done.stderr
    assert "write run.config.lr" in done.stderr


def test_the_tracking_server_is_refused_there(helm: Path) -> None:
    done = helm_template(helm, CHARTS / "ddp", values=env_values(("MLFLOW_TRACKING_URI", "http://x")))
    assert done.returncode and "write run.mlflow.trackingUri" in done.stderr


def test_a_name_given_twice_is_refused(helm: Path) -> None:
    """The API server would refuse the PyTorchJob: the list is keyed by name."""
    done = helm_template(helm, CHARTS / "ddp", values=env_values(("A", "1"), ("A", "2")))
    assert done.returncode and "run.env: A is there twice" in done.stderr
