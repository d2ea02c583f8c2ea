"""Adapters stand on random weights only where that was asked for, and a run says what it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stratlab_spec.registry import adapter_problems, describe_starting_weights
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from trainer.launch.batch_validation import check_run

CODE = "SL-lora-without-init"


def check(elsewhere: bool = True, **settings: Any) -> list[str]:
    """Codes of the check before a start."""
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in {"run": "r", **settings}.items()}
    found = check_run(env, elsewhere=elsewhere, replaces=True, opened=set())
    assert found["code"] in (0, 2)
    return find_codes(found["problems"])


@pytest.mark.parametrize("elsewhere", [True, False])
def test_adapters_on_random_weights_are_asked_for(elsewhere, tmp_path):
    given = {"lora_rank": 4, "image_size": 32, "results": tmp_path, "steps": 40}
    assert check(elsewhere, **given) == [CODE]
    assert check(elsewhere, **given, init="scratch") == check(elsewhere, **given | {"lora_rank": 0}) == []


def test_a_folder_is_no_answer_by_itself_but_a_name_and_another_run_are():
    """Left out, `init` is scratch: the folder would say the architecture alone."""
    for settings, codes in (
        ({"model_path": "/net"}, [CODE]),
        ({"model_path": "/net", "init": "pretrained"}, []),
        ({"model": "mobilenet_finetuned"}, []),
        ({"resume_from": "default/first"}, []),
    ):
        config = Config.from_env(
            {"TRAINER_RUN": "r", **{f"TRAINER_{k.upper()}": v for k, v in settings.items()}}
        )
        assert find_codes(adapter_problems(config.model_copy(update={"lora_rank": 4}))) == codes


def test_the_chart_of_adapters_asks_which_weights():
    values = Path(__file__).parents[3] / "charts" / "lora" / "values.yaml"
    asked = yaml.safe_load(values.read_text())["run"]["config"]
    assert check(**asked) == [CODE] and check(**asked, init="scratch") == []
    assert check(**asked, model="vit_base", dataset="cifar100", init="pretrained") == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_path": "/data/net"}, "random weights"),
        ({"model_path": "/data/net", "init": "pretrained"}, "the weights in /data/net"),
        ({"model": "mobilenet_finetuned"}, "the published weights of mobilenet"),
        ({"model": "owner/name", "init": "pretrained"}, "the published weights of owner/name"),
        ({"resume_from": "demo/ddp"}, "a checkpoint of demo/ddp"),
    ],
)
def test_a_run_says_what_it_starts_from(settings, said):
    assert describe_starting_weights(Config(run="r", **settings)) == said
