"""Whole counts, further rules: an odd number of parameters, counts after each other, a teacher."""

from __future__ import annotations

import json

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import QWEN, count_it, make_config
from trainer.settings.config import ConfigError


def test_an_odd_number_of_parameters_is_counted_under_every_strategy():
    def run() -> None:
        from trainer.counting.inputs import Pictures, build_empty_model
        from trainer.counting.steps import count

        text = "model=vit_tiny dataset=synthetic image_size=16 micro_batch_size=4 global_batch_size=8"
        three, held = Pictures(labels=3, channels=3), {}
        for strategy in ("ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp"):
            more = " dp_shard=2" if strategy == "hsdp" else ""
            config = make_config(f"{text} strategy={strategy}{more}")
            held[strategy] = count(config, 2, 0, three).between.by_cause()["optimizer state"]
        whole = sum(p.numel() for p in build_empty_model(config, three).parameters())
        assert whole % 2 == 1
        assert held["ddp"] >= 8 * whole
        assert all(4 * whole <= found < 5 * whole for name, found in held.items() if name != "ddp"), held

    run_ranks(run, 1)


def test_counts_after_each_other_are_those_of_a_fresh_process():
    """Meshes of other shapes, DeepSpeed, and a count that fails leave nothing behind."""

    def run() -> None:
        import os

        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.nn.parallel import DistributedDataParallel

        owners = torch.nn.Module, DistributedDataParallel, DeviceMesh, torch.UntypedStorage
        before, environment = [dict(vars(owner)) for owner in owners], dict(os.environ)
        fsdp = f"{QWEN} strategy=fsdp global_batch_size=16"
        first = count_it(fsdp)
        with pytest.raises(ConfigError, match="TRAINER_LORA_TARGETS='nowhere'"):
            count_it(f"{QWEN} strategy=fsdp global_batch_size=16 lora_rank=2 lora_targets=nowhere")
        count_it(f"{QWEN} strategy=nd layout=given pp=2 tp=2 dp_shard=2 global_batch_size=8", rank=7)
        count_it(f"{QWEN} strategy=zero3 global_batch_size=16")
        again = count_it(fsdp)
        assert first.peak.total == again.peak.total and first.peak.by_cause() == again.peak.by_cause()
        assert [dict(vars(owner)) for owner in owners] == before and dict(os.environ) == environment
        assert not dist.is_initialized()

    run_ranks(run, 1)


def test_a_teacher_is_whole_where_the_loss_is(tmp_path):
    from tests.trainer.shapes.test_teacher_rules import WORDS
    from trainer.shapes.teacher_rules import count_teacher_bytes

    (tmp_path / "config.json").write_text(json.dumps(WORDS))

    def run() -> None:
        for strategy in ("fsdp", "zero3"):
            text = f"{QWEN} strategy={strategy} global_batch_size=4"
            alone, taught = count_it(text, 2), count_it(f"{text} teacher={tmp_path}", 2)
            held = taught.between.by_cause()["teacher"]
            bytes_held = count_teacher_bytes(make_config(f"{text} teacher={tmp_path}"))
            assert bytes_held <= held < bytes_held + 512 * len(taught.between.storages)
            assert taught.between.total - alone.between.total == held
        stages = f"{QWEN} strategy=nd layout=given pp=2 global_batch_size=8 teacher={tmp_path}"
        first, last = (count_it(stages, 2, rank).between.by_cause()["teacher"] for rank in (0, 1))
        assert first == 0 and last > 0

    run_ranks(run, 1)
