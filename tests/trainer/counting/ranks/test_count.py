"""Whole counts, in processes of their own: two at once share no process, several after each other do."""

import json

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import QWEN, count_it


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
        # of each layer biases of q, k, v and two norms; the last norm
        vectors = 4 * (64 + 32 + 32 + 64 + 64) + 64
        table = 320 * 64  # of words, in the root group, which is gathered once
        twice = 2 * (2 * (whole - vectors) + 4 * vectors) - (2 * table + 4 * 64)
        assert fsdp.collectives["allgather_base", "uint8"] == twice, "weights of products in 16 bits"
        assert {dtype for name, dtype in fsdp.collectives if "reduce" in name} == {"float32"}
        assert 0 < fsdp.gathered_bytes < 4 * whole, "layer by layer"
        assert fsdp.waits == {}

        ddp = count_it(f"{QWEN} strategy=ddp global_batch_size=32")  # two micro-batches
        causes = ddp.peak.by_cause()
        held = causes["gradient buckets"] + causes["gradients"]
        assert 4 * whole <= held < 5 * whole, "they accumulate in the buckets"
        assert causes["gathered"] == 0 and ddp.waits == {}

    run_ranks(run, 1)


def test_a_copy_that_the_engine_keeps_raises_the_count_by_its_bytes_and_a_wait_is_named():
    def run() -> None:
        from trainer.engines import torch_engine
        from trainer.strategies import single

        settings = f"{QWEN} strategy=single global_batch_size=2"
        honest, build, measure = count_it(settings, ranks=1), single.build, torch_engine.whole_norm

        def wasteful(*given):
            engine = build(*given)
            engine.kept = [parameter.detach().clone() for parameter in engine.module.parameters()]
            return engine

        def impatient(*given):
            norm = measure(*given)
            assert norm.item() >= 0
            return norm

        single.build, torch_engine.whole_norm = wasteful, impatient
        found = count_it(settings, ranks=1)
        parameters = honest.between.by_cause()["parameters"] - 512 * 2  # without the two rotary buffers
        assert found.peak.total - honest.peak.total == parameters
        assert found.between.total - honest.between.total == parameters
        assert found.peak.by_cause()["other"] - honest.peak.by_cause()["other"] == parameters
        assert honest.waits == {} and list(found.waits.values()) == [1]
        (wait,) = found.waits
        assert wait.asked_by.endswith(" impatient") and wait.asked_by.startswith("tests/")
        assert wait.line.startswith("trainer/engines/torch_engine.py:") and wait.line.endswith(" _update")

    run_ranks(run, 1)


def test_no_step_of_a_composition_waits():
    def run() -> None:
        text = (
            f"{QWEN} strategy=nd layout=given dp_shard=2 tp=2 global_batch_size=8 packing=true clip_norm=1.0"
        )
        found = count_it(text, 4)
        assert found.waits == {} and found.peak.total > found.between.total > 0

    run_ranks(run, 1)


def test_the_command_writes_what_it_has_counted(tmp_path):
    def run() -> None:
        from trainer.memory_estimation.command import main

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
