"""No step makes the host wait for its device, of any engine; what is inherent or a library's has its number here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import count_it, make_config

IMAGES = "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2 clip_norm=1.0"
PACKED = "model=qwen_tiny dataset=arithmetic seq_len=64 packing=true micro_batch_size=2 clip_norm=1.0"
EXPERTS = PACKED.replace("qwen_tiny", "qwen_moe_tiny")
BF16, FP16 = "precision=bf16", "precision=fp16"
LAYERS = 4
"""Of qwen_moe_tiny, all with experts."""


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        (f"{IMAGES} strategy=fsdp global_batch_size=8", 2),
        (f"{PACKED} strategy=hsdp dp_replicate=2 global_batch_size=16 activation_checkpointing=blocks", 4),
        (f"{PACKED} strategy=nd layout=given pp=2 cp=2 dp_shard=2 global_batch_size=8", 8),
    ],
)
def test_no_step_waits(settings, ranks):
    def run():
        found = count_it(f"{settings} {BF16}", ranks)
        assert found.waits == {} and "host waits per step: 0" in list(found.lines(0))

    run_ranks(run, 1)


def test_deepspeed_waits_for_each_look_at_the_norm_and_nobody_else_does():
    """Is the norm finite, twice."""

    def run():
        found = count_it(f"{PACKED} strategy=zero3 global_batch_size=8 {BF16}", 2)
        assert all("deepspeed/runtime/" in wait.asked_by for wait in found.waits), found.waits
        assert all(" train_step" in wait.line for wait in found.waits)
        assert sum(found.waits.values()) == 2 == sum(row["count"] for row in found.as_dict()["host_waits"])

    run_ranks(run, 1)


def test_fp16_waits_once_a_step_because_the_norm_decides_whether_there_is_an_update():
    def run():
        found = count_it(f"{IMAGES} strategy=ddp global_batch_size=8 {FP16}", 2).waits
        assert list(found.values()) == [1]
        assert next(iter(found)).line.startswith("trainer/models/loss_scale.py")

    run_ranks(run, 1)


@pytest.mark.parametrize(
    ("settings", "ranks", "number"),
    [
        ("strategy=fsdp global_batch_size=4", 2, 0),
        ("strategy=nd layout=given dp_shard=4 ep=4 global_batch_size=8", 4, 1),
    ],
)
def test_experts_wait_only_to_know_how_many_rows_come_from_other_ranks(settings, ranks, number):
    """`number` per layer and micro-batch."""

    def run():
        found = count_it(f"{EXPERTS} {settings} {BF16}", ranks).waits
        assert all(wait.line.startswith("trainer/parallel/expert.py") for wait in found), found
        assert sum(found.values()) == number * LAYERS, found

    run_ranks(run, 1)


def test_the_loop_waits_when_it_writes_the_metrics_and_not_in_between(tmp_path):
    def run():
        import torch
        import torch.distributed as dist

        from tests.trainer.runs import run_of
        from trainer.agreement.agreement import Agreement
        from trainer.counting.inputs import build_micro_batch, find_pictures
        from trainer.counting.waits import WaitWatch
        from trainer.data.batches import Batch
        from trainer.loop import train
        from trainer.measuring.gpu import Meter
        from trainer.measuring.memory_counters import open_counters
        from trainer.measuring.phases import Phases
        from trainer.measuring.profiler import StepProfiler
        from trainer.measuring.training_memory import TrainingMemory
        from trainer.models import build_model
        from trainer.outcome.tracking import Recorder
        from trainer.settings.schedule import Plan
        from trainer.strategies import build_engine

        dist.init_process_group("gloo")
        config = make_config(f"{IMAGES} strategy=single global_batch_size=2 log_every=6")
        one = replace(run_of(config), plan=Plan(steps=12, evaluate_every=12, profile_first=0))
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
