"""The verb: its files start what it recommends, and wrong input ends with its code."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from stratlab.helm import find_helm
from stratlab.predict.answering import answer_one
from stratlab.predict.asking import ask_of_charts
from stratlab.recommend.choice import SETTLING
from stratlab.recommend.wanted import read_wanted
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import build_sweep_plan
from tests.codes import find_codes

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000,
    "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.fixture
def call(stratlab, tmp_path):
    """Return (exit code, recommendation, values' file, sweep's file)."""

    def call(*arguments):
        values, sweep = tmp_path / "values.yaml", tmp_path / "sweep.yaml"
        code, out, _ = stratlab("recommend", *arguments, "--out", values, "--sweep", sweep, "--json")
        return code, json.loads(out), values, sweep

    return call


@pytest.mark.parametrize(
    "arguments",
    [
        ("qwen2.5-3b", "--gpu", "h100"),
        ("meta-llama/Llama-3.1-8B", "--gpu", "h100", "--gpus", 16, "--batch", 32, "--set", "lr=1e-5"),
        (
            "llama-3.1-8b",
            "--gpu",
            "l40s",
            "--gpus",
            4,
            "--allow",
            "lora",
            "--data",
            "/results/chat.jsonl",
            "--epochs",
            2,
        ),
        ("vit_huge", "--gpu", "a100-80gb", "--gpus", 2, "--goal", "cheapest"),
        ("qwen2.5-7b", "--gpu", "h100", "--goal", "leanest", "--set", "strategy=nd"),
        ("gpt2", "--gpu", "l4", "--gpus", 1),
    ],
)
def test_values_line_and_sweep_start_what_is_recommended(call, stratlab, arguments):
    code, found, values, sweep = call(*arguments)
    taken = found["recommended"]
    assert code == 0 and taken["verdict"] == "fits"

    [question] = ask_of_charts([Path("charts", found["chart"])], (), [values])
    assert question.ranks == taken["gpus"] and question.settings["strategy"] == taken["strategy"]
    assert {name: question.settings.get(name) for name in taken["settings"]} == taken["settings"]
    if not taken["at_most"]:
        assert answer_one(question, (), 79.2).needs_gib == pytest.approx(taken["on_device_gib"], rel=1e-3)

    words = shlex.split(found["run_line"])
    code, out, _ = stratlab(*words[1:], "--namespace", "lab", "--dry-run", "--json")
    line, config = json.loads(out), yaml.safe_load(values.read_text())["run"]["config"]
    assert code == 0 and line["strategies"] == [found["chart"]]
    assert {name: yaml.safe_load(text) for name, text in line["config"].items()}.items() <= config.items()

    plan = build_sweep_plan(read_sweep(sweep), sweep.parent, find_helm(), lambda told: None)
    pods = [
        {name.removeprefix("TRAINER_").lower(): text for name, text in each.environment.items()}
        for each in plan
    ]
    settling = [one["settings"].items() for one in found["settling"]]
    assert 1 <= len(pods) == len(settling) <= SETTLING
    assert all(any(settings <= pod.items() for pod in pods) for settings in settling)


def test_hours_and_price_follow_from_the_speed_and_its_band(call):
    _, found, values, _ = call(
        "qwen2.5-3b", "--gpu", "h100", "--epochs", 3, "--epoch-size", 10**9, "--price-per-gpu-hour", 2
    )
    taken = found["recommended"]
    hours = 3e9 / taken["speed"]["tokens_per_s"] / 3600
    assert taken["hours"] == pytest.approx([hours, 0.7 * hours, 1.3 * hours], rel=1e-3)
    assert taken["price"] == pytest.approx([16 * each for each in taken["hours"]], abs=0.01)
    assert yaml.safe_load(values.read_text())["run"]["config"]["epochs"] == 3


def test_every_field_of_the_values_has_a_reason(call):
    _, found, values, _ = call("qwen2.5-3b", "--gpu", "h100")
    config = yaml.safe_load(values.read_text())["run"]["config"]
    assert {"nodes", "processesPerNode", *config} == found["reasons"].keys() and all(
        found["reasons"].values()
    )
    assert all(
        " # " in line for line in values.read_text().partition("run:\n")[2].splitlines() if ": " in line
    )


@pytest.mark.parametrize(("gpus", "batch"), [(8, 64), (6, 96), (128, 128)])
def test_a_batch_that_is_not_given_leaves_each_gpu_a_power_of_two(gpus, batch):
    assert read_wanted("gpt2", gpus, "", None, 0, (), ()).batch == batch


def test_a_model_of_a_folder_is_named_by_its_path(call, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    _, found, values, _ = call(str(tmp_path), "--gpu", "l4", "--gpus", 2)
    config = yaml.safe_load(values.read_text())["run"]["config"]
    assert (config["model_path"], config["task"]) == (str(tmp_path), "text") and "model" not in config
    assert "results volume" in found["reasons"]["model_path"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("gpt2", "--gpu", "h1"), "predict-gpu"),
        (("gpt2", "--gpu", "h100", "--goal", "quick"), "recommend-goal"),
        (("gpt2", "--gpu", "h100", "--batch", 12), "recommend-batch"),
        (("gpt2", "--gpu", "h100", "--batch", 8, "--set", "global_batch_size=8"), "recommend-twice"),
        (("gpt2", "--gpu", "h100", "--allow", "luck"), "predict-allow"),
        (("gpt2", "--gpu", "h100", "--data", "./none"), "run-no-data"),
        (("gpt2", "--gpu", "h100", "--set", "lrr=1"), "set-unknown"),
        (("gpt2", "--gpu", "h100", "--out", "/none/values.yaml"), "recommend-file"),
        (("gpt2", "--gpu", "h100", "--out", "."), "recommend-file"),
        (("gpt2", "--gpu", "h100", "--out", "x.yaml", "--sweep", "./x.yaml"), "recommend-one-file"),
        (("gpt2", "--gpu", "h100", "--gpus", 12), "gpus-fill-nodes"),
        (("gpt2", "--gpu", "h100", "--epochs", 3, "--set", "steps=10"), "recommend-twice"),
    ],
)
def test_wrong_input_is_refused(stratlab, arguments, code):
    ended, out, err = stratlab("recommend", *arguments)
    assert (ended, out, find_codes(err)) == (2, "", [f"SL-{code}"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("llama-3.1-8b", "--gpu", "l4"), 10),
        (("llama-3.1-8b", "--gpu", "h100", "--set", "strategy=nd"), 3),
        (("cnn", "--gpu", "h100"), 3),
    ],
)
def test_without_an_option_nothing_is_written(call, arguments, code):
    ended, found, values, sweep = call(*arguments)
    assert (ended, found["recommended"]) == (code, None) and not values.exists() and not sweep.exists()
