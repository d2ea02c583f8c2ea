from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.charts.contract import check_analysis_contract, check_trainer_contract
from tests.charts.rendering import (
    CHARTS,
    Document,
    analysis_pod,
    container,
    environment,
    pick,
    render,
    training_pod,
    waiter_pod,
)
from trainer.settings.config import Config
from trainer.settings.fields import Strategy


def test_the_trainer_accepts_what_the_chart_renders(documents: list[Document]) -> None:
    check_trainer_contract(documents)


def test_the_analysis_looks_where_the_trainer_writes(documents: list[Document]) -> None:
    check_analysis_contract(documents)


def test_strategy_has_the_name_of_the_chart(documents: list[Document], chart: str) -> None:
    """A chart with another name is a preset, a variant of some strategy."""
    strategy = Config.from_env(environment(training_pod(documents), "pytorch")).strategy
    assert strategy == chart or chart not in get_args(Strategy)


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_multiply(helm: Path, nodes: int) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", f"run.nodes={nodes},run.config.micro_batch_size=1"])
    check_trainer_contract(rendered)
    policy = pick(rendered, "PyTorchJob")["spec"]["elasticPolicy"]
    assert policy["minReplicas"] == policy["maxReplicas"] == nodes


def test_comparison_and_place_reach_trainer_and_analysis(helm: Path) -> None:
    settings = "run.config.comparison=vit.1,run.results.mountPath=/data/a b,run.results.claim=fast"
    rendered = render(helm, CHARTS / "fsdp", ["--set", settings])
    check_trainer_contract(rendered)
    check_analysis_contract(rendered)
    assert environment(training_pod(rendered), "pytorch")["TRAINER_COMPARISON"] == "vit.1"


def test_without_comparison_both_take_the_default_of_the_trainer(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp")
    assert "TRAINER_COMPARISON" not in environment(training_pod(rendered), "pytorch")
    default = Config.model_fields["comparison"].default
    for pod, name in ((waiter_pod(rendered), "wait"), (analysis_pod(rendered), "analyze")):
        assert container(pod, name)["command"][2] == f"/results/{default}/golden"


def test_settings_arrive_as_typed(helm: Path) -> None:
    typed = {
        "lr": "0.00001",  # text to helm, a number to the trainer
        "weight_decay": "1e-5",
        "clip_norm": "3",
        "train_samples": "16777216",
        "seed": "100000000",
        "profile_shapes": "true",
        "profile_memory": "false",
        "dataset": "a/b",
    }
    settings = ",".join(f"run.config.{name}={text}" for name, text in typed.items())
    rendered = render(helm, CHARTS / "single", ["--set", settings])
    config = Config.from_env(environment(training_pod(rendered), "pytorch"))
    assert [getattr(config, name) for name in typed] == [
        1e-5,
        1e-5,
        3,
        16777216,
        100000000,
        True,
        False,
        "a/b",
    ]


def test_a_large_number_from_a_file_keeps_its_digits(helm: Path) -> None:
    """Helm holds it as a float, whose text would be 1.6777216e+07."""
    rendered = render(helm, CHARTS / "single", values={"run": {"config": {"train_samples": 16777216}}})
    assert environment(training_pod(rendered), "pytorch")["TRAINER_TRAIN_SAMPLES"] == "16777216"
