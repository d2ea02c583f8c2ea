"""No step makes the host wait for its device, of any engine; what is inherent or a library's has its number here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import count_it, make_config

IMAGES = "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2 clip_norm=1.0"
PACKED = "model=qwen_tiny dataset=arithmetic seq_len=64 packing=true micro_batch_size=2 clip_norm=1.0"
EXPERTS = PACKED.replace("qwen_tiny", "qwen_moe_tiny")
BF16, AGAIN = "precision=bf16", "activation_checkpointing=blocks"
LAYERS = 4
"""Of qwen_moe_tiny, all with experts."""


@pytest.mark.parametrize(
    ("settings", "ranks", "number", "where"),
    [
        (f"{IMAGES} strategy=fsdp global_batch_size=8 {BF16}", 2, 0, ""),
        (f"{PACKED} strategy=hsdp dp_replicate=2 global_batch_size=16 {BF16} {AGAIN}", 4, 0, ""),
        (f"{PACKED} strategy=nd layout=given pp=2 cp=2 dp_shard=2 global_batch_size=8 {BF16}", 8, 0, ""),
        (f"{EXPERTS} strategy=fsdp global_batch_size=4 {BF16}", 2, 0, ""),
        # in each layer, to know how many rows come from other ranks
        (
            f"{EXPERTS} strategy=nd layout=given dp_shard=4 ep=4 global_batch_size=8 {BF16}",
            4,
            LAYERS,
            "trainer/parallel/expert.py",
        ),
        # the norm decides whether there is an update
        (
            f"{IMAGES} strategy=ddp global_batch_size=8 precision=fp16",
            2,
            1,
            "trainer/models/mixed_precision.py",
        ),
    ],
)
def test_a_step_waits_where_it_has_to_and_nowhere_else(settings, ranks, number, where):
    def run():
        found = count_it(settings, ranks)
        assert (
            sum(found.waits.values()) == number == sum(row["count"] for row in found.as_dict()["host_waits"])
        )
        assert all(wait.line.startswith(where) for wait in found.waits), found.waits

    run_ranks(run, 1)


def test_the_loop_waits_when_it_writes_the_metrics_and_not_in_between(tmp_path):
    def run():
        import torch
        import torch.distributed as dist

        from tests.trainer.runs import run_of
        from trainer.data.batches import Batch
        from trainer.distributed.consensus import Agreement
        from trainer.loop import train
        from trainer.measuring.hardware import Meter
        from trainer.measuring.memory import TrainingMemory, open_counters
        from trainer.measuring.phases import Phases
        from trainer.measuring.profiler import StepProfiler
        from trainer.memory_estimation.steps import build_micro_batch, find_pictures
        from trainer.memory_estimation.storages import WaitWatch
        from trainer.metrics.tracking import Recorder
        from trainer.models import build_model
        from trainer.strategies import build_engine

        dist.init_process_group("gloo")
        config = make_config(f"{IMAGES} strategy=single global_batch_size=2 log_every=6")
        one = run_of(config)
        one = replace(one, plan=replace(one.plan, steps=12, evaluate_every=12, profile_first=0))
        phases, pictures = Phases("cpu"), find_pictures(config)
        model = build_model(config, image_size=32, channels=pictures.channels, num_labels=pictures.labels)
        engine = build_engine(one, model, phases)
        memory = TrainingMemory(open_counters(one.world), phases, 1, 12)
        meter = Meter(one.world, memory)
        recorder = Recorder(
            tmp_path / "metrics.jsonl",
            1,
            config.log_every,
            read_system=meter.read,
            step_measures=model.step_measures,
        )
        batch = Batch([build_micro_batch(config, pictures)], 2, 2)
        torch.manual_seed(0)
        by_step = {}
        watch = WaitWatch()

        def next_batch(step):
            by_step[step - 1] = sum(watch.found.values())  # all that came before this step
            watch.found.clear()
            return batch

        with watch:
            profiler = StepProfiler(one, 0, phases)
            train(
                one, 1, engine, next_batch, phases, memory, recorder, profiler, Agreement(60.0),
                validate=lambda _: None, after_step=lambda _: None,
            )  # fmt: skip
        waited = [step for step in range(1, 12) if by_step[step]]
        assert waited == [6] and sum(watch.found.values()) > 0, (by_step, watch.found)
        dist.destroy_process_group()

    run_ranks(run, 1)
