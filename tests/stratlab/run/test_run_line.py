"""`stratlab run`: what a line becomes, with numbers by hand, and lines that are refused.
Names of other programs, with hand-written answers."""

import json
from pathlib import Path

import pytest
import yaml

from stratlab.commands.run import Target, run
from stratlab.foreign_settings import FLAGS, translate_file, translate_setting
from stratlab.run_line import RunRequest, build_run_line
from stratlab.run_settings import SETTINGS
from tests.codes import find_codes
from tests.stratlab.raised import raised

CHARTS = ("ddp", "fsdp", "llm-2d", "lora", "single", "zero2")


def build(model="cnn", strategies="ddp", local_gpus=0, **options):
    return build_run_line(RunRequest(model, strategies, **options), CHARTS, local_gpus=local_gpus)


@pytest.mark.parametrize(
    ("local_gpus", "options", "processes", "batch", "micro"),
    [
        (0, {}, 2, "64", "32"),
        (8, {}, 8, "64", "8"),
        (3, {}, 3, "66", "22"),
        (0, {"strategies": "single"}, 1, "64", "32"),
        (0, {"gpus": 16, "nodes": 2}, 8, "64", "4"),
        (0, {"batch": 96}, 2, "96", "24"),
        (0, {"batch": 100, "micro_batch": 5}, 2, "100", "5"),
        (0, {"model": "qwen_tiny"}, 2, "64", "4"),
        (0, {"settings": ["micro_batch_size=6"]}, 2, "72", "6"),
        (0, {"settings": ["batch_size_per_gpu=8", "gradient_accumulation_steps=4"]}, 2, "64", "8"),
        (None, {}, None, None, None),
        (None, {"strategies": "llm-2d", "gpus": 8, "model": "qwen_tiny"}, 8, None, None),
    ],
)
def test_processes_and_batch_sizes(local_gpus, options, processes, batch, micro):
    line = build(local_gpus=local_gpus, **options)
    sizes = (line.config.get("global_batch_size"), line.config.get("micro_batch_size"))
    assert (line.processes, *sizes) == (processes, batch, micro)


def make_model(folder, architecture, *, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    if weights:
        (folder / "model.safetensors").touch()
    return folder


def test_models_and_data(tmp_path):
    llama = make_model(tmp_path / "My Llama", "LlamaForCausalLM", weights=True)
    vit = make_model(tmp_path / "vit", "ViTForImageClassification", weights=False)
    chat = tmp_path / "chat.jsonl"
    chat.touch()
    assert dict(build(str(llama), data=str(chat)).config) == {
        "model_path": str(llama),
        "task": "text",
        "init": "pretrained",
        "dataset_path": str(chat),
        "global_batch_size": "64",
        "micro_batch_size": "4",
        "comparison": "my-llama-chat",
    }
    assert (
        build(str(llama / "config.json"), data=str(chat)).config == build(str(llama), data=str(chat)).config
    )
    assert {"init": "scratch", "dataset": "digits"}.items() <= build(str(vit)).config.items()
    assert "task" not in build(str(vit)).config
    assert build("Qwen/Qwen2.5-0.5B", data="a/b").config["init"] == "pretrained"
    assert build("Qwen/Qwen2.5-0.5B", settings=["init=scratch"]).config["init"] == "scratch"
    assert build("qwen2.5-0.5b", data=str(chat)).config["init"] == "pretrained"
    assert build("qwen2.5-0.5b", "lora").config["init"] == "pretrained"
    assert "init" not in build("qwen2.5-0.5b").config and build("resnet50").config["model"] == "resnet"
    assert build("qwen_tiny").config["dataset"] == "arithmetic"
    assert build("qwen_tiny", settings=["dataset=metamathqa"]).config["dataset"] == "metamathqa"
    assert build(str(llama), "llm-2d").config["model"] == "null"
    on_volume = build("/results/llama", data="/results/chat.jsonl", settings=["task=text"]).config
    assert on_volume["model_path"] == "/results/llama" and on_volume["dataset_path"] == "/results/chat.jsonl"
    assert build("/results/llama", settings=["task=text"]).config["dataset"] == "arithmetic"


def test_strategies_settings_and_files(tmp_path):
    line = build(
        strategies="fsdp_stage2, ddp",
        settings=["lr=0.1", "run.config.seed=3", "run.env=null", "lora_targets=a,b"],
    )
    assert line.strategies == ("zero2", "ddp") and line.paths == ("run.env=null",)
    assert {"run.config.lr=0.1", "run.config.seed=3", "run.config.lora_targets=a\\,b"} < set(line.settings)
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, "gradient_clipping": 1, "steps_per_print": 5}')
    line = build(strategies="", config=file, settings=["clip_norm=2"])
    assert line.strategies == ("zero2",) and line.config["clip_norm"] == "2"
    assert any("steps_per_print" in note for note in line.notes)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"strategies": ""}, "SL-run-no-strategy"),
        ({"strategies": "dpd"}, "SL-run-strategy"),
        ({"strategies": "zero2,fsdp_stage2"}, "SL-run-strategy-twice"),
        ({"model": "vit_tny"}, "SL-run-model"),
        ({"model": "/"}, "SL-run-model-folder"),
        ({"data": "./absent"}, "SL-run-no-data"),
        ({"settings": ["lr"]}, "SL-run-set-form"),
        ({"settings": ["lrr=1"]}, "SL-run-set-unknown"),
        ({"settings": ["batch_size=8"]}, "SL-run-set-elsewhere"),
        ({"settings": ["gradient_accumulation_steps=2"]}, "SL-run-accumulation"),
        (
            {"settings": ["gradient_accumulation_steps=2"], "batch": 64, "micro_batch": 8},
            "SL-run-batch-conflict",
        ),
        ({"settings": ["micro_batch_size=x"]}, "SL-run-whole-number"),
        ({"strategies": "single,ddp"}, "SL-run-single"),
        ({"gpus": 3, "nodes": 2}, "SL-run-nodes"),
        ({"batch": 3}, "SL-run-batch"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused(options, code):
    assert find_codes(str(raised(build, **options))) == [code]


def test_scripts_and_a_sweep_have_the_same_settings(tmp_path, monkeypatch, capsys):
    from stratlab.commands import local, sweep

    calls = []
    monkeypatch.setattr(
        local, "render", lambda chart, starter, **given: calls.append((chart.name, starter, given))
    )
    monkeypatch.setattr(sweep, "sweep", lambda file: calls.append((file,)))
    charts = Path("charts").resolve()
    model = make_model(tmp_path / "llama", "LlamaForCausalLM", weights=True)
    monkeypatch.chdir(tmp_path)
    options = {"gpus": 4, "charts": charts, "steps": 30}
    run("cnn", "ddp,zero2", target=Target.ssh, output=tmp_path / "out", **options)
    (_, starter, given), (name, _, other) = calls
    assert (name, starter, given["output"].name) == ("zero2", "hostfile", "ddp.sh")
    assert given["processes"] == 4
    assert given["settings"] == other["settings"] and "run.config.steps=30" in given["settings"]
    run("cnn", "ddp,zero2", namespace="lab", **options)
    run("cnn", "ddp,zero2", namespace="lab", **options)  # the same line continues
    content = yaml.safe_load(calls[-1][0].read_text())
    assert content["matrix"] == {"strategy": ["ddp", "zero2"]} and content["namespace"] == "lab"
    assert content["set"]["run.config.steps"] == 30 and content["set"]["run.processesPerNode"] == 4
    for code, wrong in {
        "SL-run-sweep-file": {"namespace": "other"},
        "SL-run-data-here": {"namespace": "lab", "data": str(tmp_path)},
        "SL-run-model-here": {"namespace": "lab", "model": str(model)},
        "SL-run-place": {"namespace": "lab", "target": Target.ssh},
        "SL-run-scripts": {"target": Target.ssh},
        "SL-run-json": {"as_json": True},
    }.items():
        given = {"model": "cnn", "strategies": "ddp,zero2"} | options | wrong
        assert find_codes(str(raised(run, **given))) == [code]
    capsys.readouterr()
    run("cnn", "ddp", dry_run=True, as_json=True, **options)
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["steps"] == "30" and shown["processes_per_node"] == 4


PARTS = ("accumulation", "processes", "nodes", "strategy", "betas")


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("per_device_train_batch_size", "8", {"micro_batch_size": "8"}),
        ("--per-device-train-batch-size", "8", {"micro_batch_size": "8"}),
        ("gradient_accumulation_steps", "4", {"accumulation": "4"}),
        ("max_steps", "-1", {}),
        ("max_steps", "100", {"steps": "100"}),
        ("bf16", "True", {"precision": "bf16"}),
        ("fp16", "false", {}),
        ("gradient_checkpointing", "true", {"activation_checkpointing": "blocks"}),
        ("lr_scheduler_type", "constant_with_warmup", {"lr_schedule": "constant"}),
        ("optim", "adamw_torch_fused", {"optimizer": "adamw"}),
        ("report_to", "none", {}),
        ("report_to", "tensorboard", {"tensorboard": "true"}),
        ("warmup_fraction", "1", None),
    ],
)
def test_a_flag_becomes_settings(name, value, ours):
    assert translate_setting(name, value) == ours


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("optim", "adafactor", "SL-foreign-value"),
        ("report_to", "wandb", "SL-foreign-tracker"),
        ("WANDB_PROJECT", "x", "SL-foreign-tracker"),
    ],
)
def test_a_flag_without_a_counterpart_is_refused(name, value, code):
    assert find_codes(str(raised(translate_setting, name, value))) == [code]


def test_every_rule_leads_to_a_setting():
    for name, rule in FLAGS.items():
        named = (
            {rule.setting} if rule.setting else {key for each in (rule.values or {}).values() for key in each}
        )
        assert named <= {*SETTINGS, *PARTS}, name


DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "stage3_prefetch_bucket_size": 1,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}},
}
ACCELERATE = """
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_activation_checkpointing: true, fsdp_version: 1}
mixed_precision: 'no'
num_machines: 2
num_processes: 16
machine_rank: 0
"""


def test_files_of_deepspeed_and_accelerate(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE)
    deepspeed, accelerate = (translate_file(tmp_path / name) for name in ("ds.json", "accelerate.yaml"))
    assert deepspeed.parts == {
        "global_batch_size": "64",
        "micro_batch_size": "8",
        "clip_norm": "1.0",
        "precision": "bf16",
        "strategy": "zero3",
        "offload": "optimizer",
        "optimizer": "adamw",
        "lr": "3e-05",
        "beta1": "0.9",
        "beta2": "0.95",
    }
    assert deepspeed.unused == ["zero_optimization.stage3_prefetch_bucket_size"]
    assert accelerate.parts == {
        "strategy": "fsdp",
        "reshard_after_forward": "off",
        "activation_checkpointing": "blocks",
        "precision": "fp32",
        "nodes": "2",
        "processes": "16",
    }
    assert accelerate.unused == ["machine_rank"]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("ds.json", "{", "SL-foreign-file"),
        ("ds.json", "[]", "SL-foreign-file-shape"),
        ("absent.json", None, "SL-foreign-file"),
        ("a.yaml", "bf16: true\nfp16: true\n", "SL-foreign-conflict"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, name, text, code):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert find_codes(str(raised(translate_file, tmp_path / name))) == [code]
