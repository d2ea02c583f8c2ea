"""The counting instrument on further settings, by hand, against real processes, and what follows from small counts."""

import json
import os
from pathlib import Path

import pytest

from tests.nightly.trainer.test_foreseen import BAR, PICTURES, environment
from tests.parity_llm.models import write_models
from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import QWEN, VIT, compare, compare_over_gloo, count_it, make_config

TWICE = f"{QWEN} global_batch_size=32"  # two micro-batches on 8 ranks
WHOLE = 4 * 169024
"""Bytes of all gradients of qwen_tiny."""


def test_real_tensors_are_counted_over_gloo_and_over_the_group_that_moves_nothing() -> None:
    for settings in ("strategy=ddp precision=fp32", "strategy=zero1 precision=bf16"):
        compare_over_gloo(f"{VIT} {settings}")
    for strategy in ("fsdp", "zero3"):
        settings = f"{VIT} strategy={strategy} precision=bf16"
        run_ranks(lambda settings=settings: compare(settings, 1, 0, fake_group=True), 1)


def test_compositions_can_be_counted() -> None:
    def run() -> None:
        for settings, rank in (
            ("strategy=nd layout=given dp_shard=8 ep=4 model=qwen_moe_tiny global_batch_size=16", 5),
            (
                "strategy=nd layout=given pp=2 cp=2 dp_shard=2 pp_schedule=interleaved1f1b global_batch_size=16",
                4,
            ),
            ("strategy=zero3 model=qwen_moe_tiny global_batch_size=16", 3),
            ("strategy=hsdp dp_replicate=2 dp_shard=4 global_batch_size=16 precision=fp16", 3),
        ):
            found = count_it(f"{QWEN} {settings}", rank=rank)
            assert found.peak.total > found.between.total > 0
            assert found.between.by_cause()["activations"] == 0

    run_ranks(run, 1)


def test_families_with_own_attention_or_experts_can_be_counted(tmp_path: Path) -> None:
    """Windows longer than a row, and experts that strategies keep in fp32."""
    text = "task=text dataset=arithmetic tokenizer=bytes init=scratch seq_len=32 precision=bf16"
    sizes = "micro_batch_size=1 global_batch_size=8"

    def run() -> None:
        write_models(tmp_path, ["phi3", "gpt_oss"])
        for form, strategy in (("phi3", "fsdp"), ("gpt_oss", "ddp"), ("gpt_oss", "zero3")):
            found = count_it(f"{text} {sizes} strategy={strategy} model_path={tmp_path / form}")
            assert found.peak.total > found.between.total > 0

    run_ranks(run, 1)


def test_an_odd_number_of_parameters_is_counted_under_every_strategy() -> None:
    def run() -> None:
        from stratlab_spec.models.pictures import Pictures
        from trainer.memory_estimation.steps import build_empty_model, count

        text = "model=vit_tiny dataset=synthetic image_size=16 micro_batch_size=4 global_batch_size=8"
        three, held = Pictures(labels=3, channels=3), {}
        for strategy in ("ddp", "fsdp", "hsdp dp_shard=2", "zero1", "zero2", "zero3", "zeropp"):
            config = make_config(f"{text} strategy={strategy}")
            held[strategy] = count(config, 2, 0, three).between.by_cause()["optimizer state"]
        whole = sum(p.numel() for p in build_empty_model(config, three).parameters())
        assert whole % 2 == 1
        assert held["ddp"] >= 8 * whole
        assert all(4 * whole <= found < 5 * whole for name, found in held.items() if name != "ddp"), held

    run_ranks(run, 1)


def test_counts_after_each_other_are_those_of_a_fresh_process() -> None:
    """Meshes of other shapes, DeepSpeed, and a count that fails leave nothing behind."""

    def run() -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.nn.parallel import DistributedDataParallel

        from stratlab_spec.settings.config import ConfigError

        owners = torch.nn.Module, DistributedDataParallel, DeviceMesh, torch.UntypedStorage
        before, environment = [dict(vars(owner)) for owner in owners], dict(os.environ)
        fsdp = f"{QWEN} strategy=fsdp global_batch_size=16"
        first = count_it(fsdp)
        with pytest.raises(ConfigError):
            count_it(f"{fsdp} lora_rank=2 lora_targets=nowhere")
        count_it(f"{QWEN} strategy=nd layout=given pp=2 tp=2 dp_shard=2 global_batch_size=8", rank=7)
        count_it(f"{QWEN} strategy=zero3 global_batch_size=16")
        again = count_it(fsdp)
        assert first.peak.total == again.peak.total and first.peak.by_cause() == again.peak.by_cause()
        assert [dict(vars(owner)) for owner in owners] == before and dict(os.environ) == environment
        assert not dist.is_initialized()

    run_ranks(run, 1)


def test_a_teacher_is_whole_where_the_loss_is(tmp_path: Path) -> None:
    from stratlab_spec.models.teacher import count_teacher_bytes
    from tests.trainer.shapes.test_teacher import WORDS

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


def test_knobs_change_what_is_held_by_hand() -> None:
    """DDP's buckets stay; what accumulates is sharded or whole; what is gathered; what is computed again."""

    def run() -> None:
        def causes(text: str) -> dict[str, int]:
            return count_it(text).peak.by_cause()

        for found in (causes(f"{TWICE} strategy=ddp"), causes(f"{QWEN} strategy=ddp global_batch_size=16")):
            assert WHOLE <= found["gradient buckets"] < 1.05 * WHOLE
            assert found["gradients"] < WHOLE / 4, "none beside them but what a layer has just made"

        for strategy, shards in (
            ("fsdp", 8),
            ("hsdp dp_replicate=2 dp_shard=4", 4),
            ("nd layout=given dp_shard=8", 8),
        ):
            found, whole = (causes(f"{TWICE} strategy={strategy}{how}") for how in ("", " accumulate=whole"))
            # what replicas have yet to add up is still in a bucket
            sharded = found["gradients"] + found["gradient buckets"]
            assert WHOLE / shards <= sharded < WHOLE / 2, (strategy, sharded)
            assert whole["gradients"] + whole["gradient buckets"] > 0.9 * WHOLE, (strategy, whole)

        for strategy in (
            "fsdp",
            "zero3 persistent_elements=0",
            "zero3 persistent_elements=0 precision=bf16_native",
        ):
            block = count_it(f"{TWICE} strategy={strategy}").gathered_bytes
            kept = count_it(f"{TWICE} strategy={strategy} reshard_after_forward=off").gathered_bytes
            assert block < 0.7 * kept and kept > 0.5 * WHOLE, (strategy, block, kept)

        text = f"{QWEN} global_batch_size=16 strategy=fsdp seq_len=256 activation_checkpointing"
        kinds = ("none", "selective", "every_2", "blocks")
        none, selective, second, blocks = (causes(f"{text}={kind}")["activations"] for kind in kinds)
        assert blocks < second < none and blocks < selective < none

    run_ranks(run, 1)


def test_a_file_that_was_counted_at_another_depth_answers_for_the_model_s_own(tmp_path: Path) -> None:
    """14 layers were asked for; vit_tiny has 4, which a run means that asks for none."""

    def run() -> None:
        from stratlab_spec.memory.prediction import forecast_memory
        from stratlab_spec.memory.profiles import FOLDER, read_operations_file
        from stratlab_spec.models.pictures import find_pictures
        from trainer.memory_estimation.memory_profile import build_operations
        from trainer.memory_estimation.steps import count

        text = f"{PICTURES} strategy=single"
        content = build_operations(environment(text, 2, 32), 1, 1, say=lambda text: None)
        path = tmp_path / FOLDER / "operations.json"
        path.parent.mkdir()
        path.write_text(json.dumps(content))
        batch = f"precision=bf16 micro_batch_size=6 global_batch_size=12 results={tmp_path}"
        config = make_config(f"{text.replace(' model_layers=14', '')} {batch}")
        whole = count(config, 1, 0, find_pictures(config)).peak.total
        file, pod = read_operations_file(path), forecast_memory(config, 1, 1)
        assert pod is not None and file.layers == pod.file.layers == 4
        assert file.peak(6, 1).total == pod.peak.total == pytest.approx(whole, rel=BAR)
        assert file.peak(6, 1, 14).total > 2 * whole

    run_ranks(run, 1)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_room_for_all_gradients_is_foreseen_where_deep_models_take_it(strategy: str, tmp_path: Path) -> None:
    """Two blocks fill a bucket. What is held from there on grows otherwise with the depth than what was held before."""
    text = (
        f"model=vit_small dataset=synthetic image_size=224 model_layers=20 precision=bf16 reduce_bucket_mib=8 "
        f"strategy={strategy}"
    )

    def run() -> None:
        from stratlab_spec.memory.profiles import read_operations_file
        from stratlab_spec.models.pictures import find_pictures
        from trainer.memory_estimation.memory_profile import build_operations
        from trainer.memory_estimation.steps import count
        from trainer.memory_estimation.timeline import AT_ONCE

        content = build_operations(environment(text, 16, 16), 1, 1, say=lambda text: None)
        assert {sample["layers"] for sample in content["samples"]} == {4, 8}
        config = make_config(f"{text} micro_batch_size=12 global_batch_size=12")
        whole = count(config, 1, 0, find_pictures(config)).peak.total
        path = tmp_path / "operations.json"
        path.write_text(json.dumps(content))
        peak = read_operations_file(path).peak(12, 1, 20)
        assert peak.window == AT_ONCE and peak.total == pytest.approx(whole, rel=0.002)
        for sample in content["samples"]:
            del sample["windows"][AT_ONCE]
        path.write_text(json.dumps(content))
        without = read_operations_file(path).peak(12, 1, 20).total
        assert without < (1 - BAR) * whole, f"without the window {100 * (without / whole - 1):+.2f} %"

    run_ranks(run, 1)


def test_counts_that_share_an_engine_are_those_of_an_engine_each() -> None:
    text = f"{PICTURES} strategy=zero3"

    def run() -> None:
        from stratlab_spec.models.pictures import find_pictures
        from trainer.memory_estimation.steps import count, count_batches

        configs = [
            make_config(f"{text} micro_batch_size={rows} global_batch_size={16 * rows}") for rows in (1, 4, 2)
        ]
        pictures = find_pictures(configs[0])
        together = count_batches(configs, 8, 0, pictures)
        for config, found in zip(configs, together, strict=True):
            alone = count(config, 8, 0, pictures)
            for one, other in zip(
                (found.peak, found.between, found.gathered, *found.windows.values()),
                (alone.peak, alone.between, alone.gathered, *alone.windows.values()),
                strict=True,
            ):
                assert one.by_cause() == other.by_cause()
            assert (found.collectives, found.waits) == (alone.collectives, alone.waits)
            assert max(one.total for one in found.windows.values()) == found.peak.total
        assert len({found.peak.total for found in together}) == 3

    run_ranks(run, 1)
