from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import Strategy
from tests.charts.contract import check_analysis_contract, check_trainer_contract
from tests.charts.rendering import CHARTS, Document, discover_charts, environment, pick, render, training_pod


def read_config(documents: list[Document]) -> Config:
    return Config.from_env(environment(training_pod(documents), "pytorch"))


@pytest.mark.parametrize("chart", discover_charts(CHARTS))
def test_the_trainer_accepts_what_the_chart_renders(helm: Path, chart: str) -> None:
    """A chart with another name than a strategy's is a preset, a variant of some strategy."""
    rendered = render(helm, CHARTS / chart)
    check_trainer_contract(rendered)
    strategy = read_config(rendered).strategy
    assert strategy == chart or chart not in get_args(Strategy)


def test_the_analysis_looks_where_the_trainer_writes(helm: Path) -> None:
    check_analysis_contract(render(helm, CHARTS / "ddp"))
    elsewhere = "run.config.comparison=vit.1,run.results.mountPath=/data/a b,run.results.claim=fast"
    rendered = render(helm, CHARTS / "fsdp", ["--set", elsewhere])
    check_analysis_contract(rendered)
    assert read_config(rendered).comparison == "vit.1"


def test_nodes_multiply(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.nodes=2,run.config.micro_batch_size=1"])
    check_trainer_contract(rendered)
    policy = pick(rendered, "PyTorchJob")["spec"]["elasticPolicy"]
    assert policy["minReplicas"] == policy["maxReplicas"] == 2


def test_settings_arrive_as_typed(helm: Path) -> None:
    typed = {
        "lr": ("0.00001", 1e-5),  # text to helm, a number to the trainer
        "weight_decay": ("1e-5", 1e-5),
        "clip_norm": ("3", 3),
        "seed": ("100000000", 100000000),
        "profile_shapes": ("true", True),
        "dataset": ("a/b", "a/b"),
    }
    settings = ",".join(f"run.config.{name}={text}" for name, (text, _) in typed.items())
    config = read_config(render(helm, CHARTS / "single", ["--set", settings]))
    assert [getattr(config, name) for name in typed] == [value for _, value in typed.values()]


def test_a_large_number_from_a_file_keeps_its_digits(helm: Path) -> None:
    """Helm holds it as a float, whose text would be 1.6777216e+07."""
    rendered = render(helm, CHARTS / "single", values={"run": {"config": {"train_samples": 16777216}}})
    assert environment(training_pod(rendered), "pytorch")["TRAINER_TRAIN_SAMPLES"] == "16777216"


def test_a_dollar_sign_means_itself(helm: Path) -> None:
    """Kubernetes replaces $(NAME) and $$ in values."""
    text = "$(HOME)/$$/$5"
    values = {"run": {"config": {"tokenizer": text}, "env": [{"name": "NOTE", "value": text}]}}
    env = environment(training_pod(render(helm, CHARTS / "ddp", values=values)), "pytorch")
    assert env["TRAINER_TOKENIZER"] == env["NOTE"] == text


def test_a_setting_of_an_example_is_taken_back(helm: Path) -> None:
    nulls = ("steps", "deadline_s", "comparison", "model", "lr", "profile_first_step")
    arguments = ["--values", str(CHARTS.parent / "examples" / "llm_tiny.yaml")]
    arguments += [f"--set=run.config.{name}=null" for name in nulls]
    rendered = render(helm, CHARTS / "llm-1d", [*arguments, "--set=run.config.epochs=2"])
    env = environment(training_pod(rendered), "pytorch")
    assert env["TRAINER_EPOCHS"] == "2" and "null" not in env.values()
    assert not env.keys() & {f"TRAINER_{name.upper()}" for name in nulls}
    check_analysis_contract(rendered)  # of the comparison that the trainer takes by default


def test_variables_of_ones_own_win_over_the_folders_and_secrets_are_only_named(helm: Path) -> None:
    run = {
        "env": [
            {"name": "HF_HOME", "value": "/results/cache"},
            {"name": "TOKENIZERS_PARALLELISM", "value": 1},
        ],
        "secrets": [{"name": "HF_TOKEN", "secret": "hub", "key": "token"}],
        "config": {"fault": "kill@37:1"},
        "allowFaults": True,
    }
    rendered = render(helm, CHARTS / "ddp", values={"run": run})
    env = environment(training_pod(rendered), "pytorch")
    assert (env["HF_HOME"], env["TOKENIZERS_PARALLELISM"], env["HF_TOKEN"]) == (
        "/results/cache",
        "1",
        "<hub/token>",
    )
    assert (env["TRAINER_FAULT"], env["TRAINER_ALLOW_FAULTS"]) == ("kill@37:1", "true")
    assert "hub" not in str([pick(rendered, kind) for kind in ("Job", "waiter", "Pod")])
