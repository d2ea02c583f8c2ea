"""The trainer accepts what a chart renders, and the analysis looks where the trainer writes."""

from stratlab_spec.layout.mesh_rules import resolve_axes
from stratlab_spec.settings.config import Config
from tests.charts.rendering import (
    analysis_pod,
    container,
    environment,
    pick,
    training_pod,
    waiter_pod,
    world_size,
)


def check_trainer_contract(documents):
    """The rendered environment is a valid configuration, whose axes use every process that the chart starts.

    Raises:
        ConfigError: the trainer would refuse to start.
        AssertionError: it would run, but not as the chart says.
    """
    job = pick(documents, "PyTorchJob")
    config = Config.from_env(environment(training_pod(documents), "pytorch"))
    assert config.run == job["metadata"]["name"] == job["spec"]["elasticPolicy"]["rdzvId"]
    assert resolve_axes(config, world_size(documents)).world_size == world_size(documents)
    assert config.image == container(training_pod(documents), "pytorch")["image"]


def check_analysis_contract(documents):
    """Waiter and analysis are given the run directory of docs/run_directory.md, on the volume the trainer writes to."""
    config = Config.from_env(environment(training_pod(documents), "pytorch"))
    directory = f"{config.results}/{config.comparison}/{config.run}"
    pod = analysis_pod(documents)
    assert container(waiter_pod(documents), "wait")["command"][:3] == ["stratlab", "wait", directory]
    assert container(pod, "analyze")["command"] == ["stratlab", "analyze", directory]
    for entry in (
        container(training_pod(documents), "pytorch"),
        container(waiter_pod(documents), "wait"),
        container(pod, "analyze"),
    ):
        assert {"name": "results", "mountPath": config.results} in entry["volumeMounts"]
    assert _claims(pod) == _claims(training_pod(documents)) != []


def _claims(pod):
    return [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
