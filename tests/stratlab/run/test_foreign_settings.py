"""Names of other programs, with hand-written answers."""

import json
from pathlib import Path

import pytest

from stratlab import UserError
from stratlab.foreign_settings import FLAGS, NotOneThing, translate_file, translate_setting
from stratlab.run_settings import SETTINGS
from tests.codes import find_codes

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
def test_a_flag_becomes_settings(name: str, value: str, ours: dict[str, str] | None) -> None:
    assert translate_setting(name, value) == ours


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("optim", "adafactor", "SL-foreign-value"),
        ("report_to", "wandb", "SL-foreign-tracker"),
        ("WANDB_PROJECT", "x", "SL-foreign-tracker"),
    ],
)
def test_a_flag_without_a_counterpart_is_refused(name: str, value: str, code: str) -> None:
    with pytest.raises(NotOneThing) as refusal:
        translate_setting(name, value)
    assert find_codes(str(refusal.value)) == [code]


def test_every_rule_leads_to_a_setting() -> None:
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


def test_files_of_deepspeed_and_accelerate(tmp_path: Path) -> None:
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
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, text: str | None, code: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as refusal:
        translate_file(tmp_path / name)
    assert find_codes(str(refusal.value)) == [code]
