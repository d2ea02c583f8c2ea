"""summary.json by hand: three unequal ranks, an even and an odd number of steps, peaks by exact names."""

import copy
from typing import Any

import pytest

from stratlab_spec.models.decoder import count_flops_per_token
from stratlab_spec.models.decoder_presets import SHAPES
from stratlab_spec.settings.config import Config
from stratlab_spec.timed_steps import COUNTS, TIMES, TimedSteps, TrainedStep
from trainer.distributed.world import World
from trainer.measuring import memory
from trainer.measuring.held_tensors import Observed
from trainer.measuring.memory import peak_device_memory_gib, peak_host_memory_gib
from trainer.metrics.summary import build_summary, read_peak_flops
from trainer.tasks.evaluation import Classification, LanguageModelling

GPU = "NVIDIA H200"
RESOLVED: dict[str, Any] = {
    "backend": "nccl", "device_type": "cuda", "device_name": GPU, "world_size": 3, "nodes": 3, "steps": 40,
    "grad_accum_steps": 1, "flops_per_sample": 989e10, "parameters": 400, "trainable_parameters": 100,
    "precision": "bf16", "axes": {"dp_replicate": 3, "dp_shard": 1}, "flops_per_token": 3e12,
    "flops_per_token_literature": 989e9,
}  # fmt: skip
LAST = {"train_loss": 0.5, "validation_loss": 0.6, "skipped_steps": 1, "train_time_s": 90.0}


def rank(number: int, state: tuple[float, float, float], **facts: Any) -> dict[str, Any]:
    plain = {
        "rank": number, "peak_memory_gib": 1.0, "peak_reserved_gib": 2.0, "peak_host_memory_gib": 3.0,
        "data_set_memory_gib": 0.5, "alloc_retries": number, "training_memory": None,
        "state_memory_gib": dict(zip(("parameters", "gradients", "optimizer"), state, strict=True)),
        "dtypes": {
            kind: ["float32"] for kind in ("parameters", "gradients", "optimizer", "reductions", "products")
        },
        "wire_bytes_per_step": 10.0, "wire_bytes_per_axis": {"dp_replicate": 10.0},
        "collectives_per_step": {"all_reduce": [2, 80], "broadcast": [1, 8]},
        "data_order_sha256": "a", "initial_weights_sha256": "b",
    }  # fmt: skip
    return plain | facts


RANKS = [
    rank(0, (1.0, 5.0, 2.0)),
    rank(
        1,
        (4.0, 2.0, 3.0),
        peak_memory_gib=7.0,
        peak_host_memory_gib=9.0,
        data_set_memory_gib=0.75,
        dtypes={
            "parameters": ["float32"], "gradients": ["bfloat16"], "optimizer": ["float32"],
            "reductions": ["bfloat16", "float32"], "products": ["float32"],
        },
        training_memory={"peak_gib": 7.75, "peak_steps": [11, 20], "peak_phase": "backward"},
        wire_bytes_per_step=30.0,
        wire_bytes_per_axis={"dp_replicate": 4.0, "tp": 26.0},
    ),
    rank(
        2,
        (2.0, 1.0, 6.0),
        peak_reserved_gib=8.0,
        wire_bytes_per_axis={"dp_replicate": 12.0, "tp": 1.0},
        training_memory={"peak_gib": 1.5, "peak_steps": [21, 30], "peak_phase": "forward"},
    ),
]  # fmt: skip


def steps(*milliseconds: float, **counts: float) -> TimedSteps:
    """A tenth of a step is each of its phases. `counts`: of the first step; the others have none."""
    first = tuple(counts.get(name, 0) for name in COUNTS)
    nothing = (0,) * len(COUNTS)
    return TimedSteps(
        [
            TrainedStep(
                number, 1, 0.0, False, (ms, *(ms / 10 for _ in TIMES[1:])), nothing if number else first
            )
            for number, ms in enumerate(milliseconds)
        ]
    )


def summarise(timed: TimedSteps, facts: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    config = Config(**{"run": "try", "global_batch_size": 96, "micro_batch_size": 32} | settings)
    text = config.is_text
    test = LanguageModelling(1.5, 10, 40) if text else Classification(0.7, [[3, 1], [2, 4]], ["a", "b"])
    return build_summary(config, copy.deepcopy(RESOLVED) | (facts or {}), RANKS, timed, dict(LAST), test)


def test_utilisation_counts_every_device():
    """300 samples in 3 median steps of a second are 100 per s; x 989e10 FLOP over 3 x 989e12 FLOP/s: a third."""
    found = summarise(steps(500, 1000, 1000, samples=300))
    assert (found["samples_per_s"], found["peak_flops_per_device"]) == (pytest.approx(100), 989e12)
    assert found["mfu_pct"] == pytest.approx(100 / 3)


def test_text_has_two_counts_of_attention():
    """1800 tokens in 3 seconds; by the literature's 989e9 FLOP each 20 %; a sample costs what config.json says."""
    timed = steps(500, 1000, 1000, samples=300, tokens=1800, useful_tokens=1440, token_pairs=1440 * 30)
    found = summarise(timed, {"flops_per_token": 9e11}, model="qwen_tiny", seq_len=64)
    assert (found["tokens_per_s"], found["useful_tokens_per_s"]) == pytest.approx((600, 480))
    assert found["useful_tokens_pct"] == pytest.approx(80)
    assert (found["flops_per_token"], found["flops_per_token_literature"]) == (9e11, 989e9)
    assert found["mfu_literature_pct"] == pytest.approx(100 * 600 * 989e9 / (3 * 989e12))
    assert found["mfu_literature_pct"] == pytest.approx(20)
    assert found["test_perplexity"] == pytest.approx(4.4816890703)
    assert found["flops_per_useful_token"] is not None and found["mfu_useful_pct"] > 0


def test_useful_work_is_that_of_the_documents_alone():
    shape, seq_len, lengths = SHAPES["qwen_tiny"], 64, (10, 20, 30, 5)
    one_by_one = sum(n * count_flops_per_token(shape, n, causal=True) for n in lengths)
    costs = {
        name: count_flops_per_token(shape, seq_len, causal=causal)
        for name, causal in (("flops_per_token", True), ("flops_per_token_literature", False))
    }
    seen = {"useful_tokens": sum(lengths), "token_pairs": sum(n * n for n in lengths)}
    found = summarise(
        steps(500, 1000, 1000, samples=2, tokens=128, **seen), costs, model="qwen_tiny", seq_len=seq_len
    )
    assert found["flops_per_useful_token"] * sum(lengths) == pytest.approx(one_by_one)
    assert found["mfu_useful_pct"] == pytest.approx(100 * one_by_one / 3 / (3 * 989e12))
    whole = steps(500, 1000, 1000, samples=2, tokens=128, useful_tokens=128, token_pairs=2 * 64 * 64)
    found = summarise(whole, costs, model="qwen_tiny", seq_len=seq_len)
    assert found["flops_per_useful_token"] == pytest.approx(costs["flops_per_token"])
    nothing = summarise(steps(), costs, model="qwen_tiny", seq_len=seq_len)
    assert nothing["flops_per_useful_token"] is nothing["mfu_useful_pct"] is None


@pytest.mark.parametrize(
    ("times", "median", "high"),
    [
        ((1, 2, 30), 2, 30),  # their mean is another number
        *[
            (range(1, count + 1), median, high)
            for count, median, high in ((2, 1.5, 2), (20, 10.5, 19), (41, 21, 39), (101, 51, 96))
        ],
    ],
)
def test_median_and_95th_percentile_in_ms(times, median, high):
    """The value with the rank nearest to 0.95 (n - 1), counted from 0."""
    found = summarise(steps(*sorted(times, key=lambda n: n * 7 % 11)))
    assert found["measured_steps"] == len(times)
    assert (found["step_time_ms_p50"], found["step_time_ms_p95"]) == (median, high)
    assert found["forward_ms_p50"] == pytest.approx(median / 10)


def test_a_run_without_measured_steps_knows_no_times():
    found = summarise(steps())
    for name in ("step_time_ms_p50", "step_time_ms_p95", "data_ms_p50", "samples_per_s", "mfu_pct"):
        assert found[name] is None


def test_of_unequal_ranks_the_largest_counts():
    found = summarise(steps(10))
    assert found["peak_memory_gib"] == 7 and found["peak_reserved_gib"] == 8
    assert found["peak_host_memory_gib"] == 9 and found["data_set_memory_gib"] == 0.75
    assert found["alloc_retries"] == 0 + 1 + 2
    assert (found["peak_memory_step"], found["peak_memory_phase"]) == (20, "backward")  # of rank 1
    assert found["parameter_memory_gib"] == 4  # of rank 1
    assert found["gradient_memory_gib"] == 5  # of rank 0
    assert found["optimizer_memory_gib"] == 6  # of rank 2
    assert found["wire_bytes_per_step"] == 30
    assert found["wire_bytes_per_axis"] == {"dp_replicate": 12, "tp": 26}
    assert (found["collectives_per_step"], found["trainable_parameters_pct"]) == (3, 25)


def test_bytes_become_gib():
    assert Observed({"parameters": 3 * 2**30, "optimizer": 2**29}).memory_gib() == {
        "parameters": 3.0,
        "optimizer": 0.5,
    }


def test_the_system_s_kilobytes_become_gib(monkeypatch):
    class Usage:
        ru_maxrss = 3 << 20

    monkeypatch.setattr(memory.resource, "getrusage", lambda who: Usage)
    assert peak_host_memory_gib() == 3.0


def test_torch_s_bytes_become_gib(monkeypatch):
    monkeypatch.setattr(memory.torch.cuda, "max_memory_allocated", lambda device: 5 << 30)
    assert peak_device_memory_gib(World(0, 0, 1, 1, "cuda", "cuda:0", GPU, "here")) == 5.0


BF16_TFLOPS = {
    "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA A10": 125, "NVIDIA A10G": 70, "NVIDIA L40": 181,
    "NVIDIA L4": 121,
}  # fmt: skip


def test_cards_whose_names_hold_each_other_are_told_apart() -> None:
    found = {name: read_peak_flops(name, "bf16") for name in BF16_TFLOPS}
    assert found == {name: tflops * 1e12 for name, tflops in BF16_TFLOPS.items()}


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # a seventh of the card
        "NVIDIA H100",
        "",
    ],
)
def test_a_name_that_no_data_sheet_has_has_no_peak(name: str) -> None:
    assert all(read_peak_flops(name, precision) is None for precision in ("bf16", "fp16", "fp32"))


def test_what_a_card_cannot_compute_in_has_no_peak() -> None:
    assert read_peak_flops("Tesla V100-SXM2-32GB", "bf16") is None
    assert read_peak_flops("Tesla V100-SXM2-32GB", "fp16") == 125e12
    assert read_peak_flops("Tesla V100-PCIE-16GB", "fp16") == 112e12
    assert read_peak_flops("Tesla T4", "bf16") is None and read_peak_flops("Tesla T4", "fp16") == 65e12
