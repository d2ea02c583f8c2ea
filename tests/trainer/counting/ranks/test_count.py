"""Whole counts, in processes of their own: two at once share no process, several after each other do."""

from __future__ import annotations

import json

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.ranks.real_steps import make_config
from trainer.settings.config import ConfigError

QWEN = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 micro_batch_size=2"


def count_it(text, ranks=8, rank=0):
    from trainer.counting.inputs import find_pictures
    from trainer.counting.steps import count

    config = make_config(text)
    return count(config, ranks, rank, find_pictures(config))


def test_causes_add_up_and_are_what_the_strategy_makes_of_them():
    def run() -> None:
        fsdp = count_it(f"{QWEN} strategy=fsdp global_batch_size=16")
        whole = 169024  # parameters of qwen_tiny, divisible by 8 matrix by matrix
        for moment in (fsdp.peak, fsdp.between):
            assert sum(moment.by_cause().values()) == moment.total
        assert sum(size for *_, size in fsdp.peak.by_label()) == fsdp.peak.total
        between = fsdp.between.by_cause()
        blocks = 512 * len(fsdp.between.storages)
        assert 4 * whole / 8 <= between["parameters"] <= 4 * whole / 8 + blocks
        assert 8 * whole / 8 <= between["optimizer state"] <= 8 * whole / 8 + blocks
        assert between["gathered"] == between["gradients"] == between["activations"] == 0
        vectors = (
            4 * (64 + 32 + 32 + 64 + 64) + 64
        )  # of each layer: biases of q, k, v and two norms; the last norm
        table = 320 * 64  # of words, in the root group, which is gathered once
        twice = 2 * (2 * (whole - vectors) + 4 * vectors) - (2 * table + 4 * 64)
        assert fsdp.collectives["allgather_base", "uint8"] == twice, "weights of products in 16 bits"
        assert {dtype for name, dtype in fsdp.collectives if "reduce" in name} == {"float32"}
        assert 0 < fsdp.gathered_bytes < 4 * whole, "layer by layer"

        ddp = count_it(f"{QWEN} strategy=ddp global_batch_size=32")  # two micro-batches
        causes = ddp.peak.by_cause()
        held = causes["gradient buckets"] + causes["gradients"]
        assert 4 * whole <= held < 5 * whole, "they accumulate in the buckets"
        assert causes["gathered"] == 0

    run_ranks(run, 1)


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


def test_a_copy_that_the_engine_keeps_raises_the_count_by_its_bytes():
    def run() -> None:
        from trainer.strategies import single

        settings = f"{QWEN} strategy=single global_batch_size=2"
        honest, build = count_it(settings, ranks=1), single.build

        def wasteful(*given):
            engine = build(*given)
            engine.kept = [parameter.detach().clone() for parameter in engine.module.parameters()]
            return engine

        single.build = wasteful
        found = count_it(settings, ranks=1)
        parameters = honest.between.by_cause()["parameters"] - 512 * 2  # without the two rotary buffers
        assert found.peak.total - honest.peak.total == parameters
        assert found.between.total - honest.between.total == parameters
        assert found.peak.by_cause()["other"] - honest.peak.by_cause()["other"] == parameters

    run_ranks(run, 1)


@pytest.mark.parametrize(
    ("settings", "rank"),
    [
        ("strategy=nd layout=given dp_shard=8 ep=4 model=qwen_moe_tiny global_batch_size=16", 5),
        ("strategy=nd layout=given pp=2 cp=2 dp_shard=2 pp_schedule=interleaved1f1b global_batch_size=16", 4),
    ],
)
def test_compositions_can_be_counted(settings, rank):
    check_composition(settings, rank)


def check_composition(settings: str, rank: int) -> None:
    def run() -> None:
        found = count_it(f"{QWEN} {settings}", rank=rank)
        assert found.peak.total > found.between.total > 0
        assert found.between.by_cause()["activations"] == 0

    run_ranks(run, 1)


def test_the_command_prints_a_table_and_writes_json(tmp_path):
    def run() -> None:
        from trainer.counting.command import main

        env = {"TRAINER_MODEL": "vit_tiny", "TRAINER_STRATEGY": "ddp", "TRAINER_PRECISION": "bf16"}
        arguments = ["--ranks", "2", "--rank", "1", "--set", "global_batch_size=8", "--top", "3"]
        arguments += ["--set", "micro_batch_size=4", "--json", str(tmp_path / "count.json")]
        assert main(arguments, env) == 0

    run_ranks(run, 1)
    written = json.loads((tmp_path / "count.json").read_text())
    assert written["rank"] == 1 and written["axes"]["dp_replicate"] == 2 and written["rules"] == "cuda"
    assert sum(written["causes"].values()) == written["peak_bytes"]
    assert sum(row["bytes"] for row in written["storages"]) == written["peak_bytes"]
    assert written["config"]["strategy"] == "ddp" and [p.name for p in tmp_path.iterdir()] == ["count.json"]


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
