"""summary.json by hand: three unequal ranks, an even and an odd number of steps, peaks by exact names."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from stratlab_spec.models.decoder import count_flops_per_token
from stratlab_spec.models.decoder_config import SHAPES
from stratlab_spec.schedule import COUNTS, TIMES, TimedSteps, TrainedStep
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.step_forecast import STEP_FORECAST
from trainer.distributed.world import World
from trainer.measuring import memory
from trainer.measuring.held_tensors import Observed
from trainer.measuring.memory import peak_device_memory_gib, peak_host_memory_gib
from trainer.metrics.summary import build_summary, find_results, read_peak_flops
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
        2, (2.0, 1.0, 6.0), peak_reserved_gib=8.0,
        wire_bytes_per_axis={"dp_replicate": 12.0, "tp": 1.0},
        training_memory={"peak_gib": 1.5, "peak_steps": [21, 30], "peak_phase": "forward"},
    ),
]  # fmt: skip


def steps(*milliseconds: float, **counts: float) -> TimedSteps:
    """A tenth of a step is each of its phases. `counts`: of the first step; the others have none."""
    given = [tuple(counts.get(name, 0) for name in COUNTS)] + [(0,) * len(COUNTS)] * len(milliseconds)
    times = [(ms, *(ms / 10 for _ in TIMES[1:])) for ms in milliseconds]
    return TimedSteps([TrainedStep(n, 1, 0.0, False, ms, given[n]) for n, ms in enumerate(times)])


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


def test_the_forecast_of_the_step_stands_next_to_the_measured_one():
    """A step of a second against 400 ms, each phase 100 ms; the forward pass is foreseen to take 10."""
    phases = {"data": 100.0, "forward": 10.0, "backward": 200.0, "optimizer": 90.0}
    forecast = {"step_ms": 400.0, "band_pct": [-30, 30], "phases_ms": phases}
    found = summarise(steps(500, 1000, 1000, samples=300), {STEP_FORECAST: forecast})
    assert (found["forecast_step_ms"], found["forecast_step_error_pct"]) == (400.0, pytest.approx(-60))
    assert (
        found["forecast_forward_error_ms"] == pytest.approx(-90)
        and found["forecast_step_deviates"] == "forward"
    )
    results = find_results(found)
    assert {name for name in results if name.startswith("forecast_step")} == {
        "forecast_step_ms", "forecast_step_error_pct",
    }  # fmt: skip
    without = summarise(steps(500, 1000, 1000), {STEP_FORECAST: {"step_ms": None, "reason": "no card"}})
    assert not [name for name in without if name.startswith("forecast_")]


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
    shape, lengths = SHAPES["qwen_tiny"], (10, 20, 30, 5)
    one_by_one = sum(n * count_flops_per_token(shape, n, causal=True) for n in lengths)
    costs = {
        name: count_flops_per_token(shape, 64, causal=causal)
        for name, causal in (("flops_per_token", True), ("flops_per_token_literature", False))
    }

    def summed_up(*milliseconds: float, **counts: float) -> dict[str, Any]:
        timed = steps(*milliseconds, samples=2, tokens=128, **counts)
        return summarise(timed, costs, model="qwen_tiny", seq_len=64)

    found = summed_up(500, 1000, 1000, useful_tokens=sum(lengths), token_pairs=sum(n * n for n in lengths))
    assert found["flops_per_useful_token"] * sum(lengths) == pytest.approx(one_by_one)
    assert found["mfu_useful_pct"] == pytest.approx(100 * one_by_one / 3 / (3 * 989e12))
    found = summed_up(500, 1000, 1000, useful_tokens=128, token_pairs=2 * 64 * 64)
    assert found["flops_per_useful_token"] == pytest.approx(costs["flops_per_token"])
    nothing = summed_up()
    assert nothing["flops_per_useful_token"] is nothing["mfu_useful_pct"] is None


@pytest.mark.parametrize(
    ("times", "median", "high"),
    [
        ((1, 2, 30), 2, 30),  # their mean is another number
        (range(1, 3), 1.5, 2), (range(1, 21), 10.5, 19), (range(1, 42), 21, 39), (range(1, 102), 51, 96),
    ],
)  # fmt: skip
def test_median_and_95th_percentile_in_ms(times, median, high):
    """The value with the rank nearest to 0.95 (n - 1), counted from 0."""
    found = summarise(steps(*sorted(times, key=lambda n: n * 7 % 11)))
    assert found["measured_steps"] == len(times) and found["forward_ms_p50"] == pytest.approx(median / 10)
    assert (found["step_time_ms_p50"], found["step_time_ms_p95"]) == (median, high)


def test_a_run_without_measured_steps_knows_no_times():
    found = summarise(steps())
    for name in ("step_time_ms_p50", "step_time_ms_p95", "data_ms_p50", "samples_per_s", "mfu_pct"):
        assert found[name] is None


def test_of_unequal_ranks_the_largest_counts():
    found = summarise(steps(10))
    assert found.items() >= {
        "peak_memory_gib": 7, "peak_reserved_gib": 8, "peak_host_memory_gib": 9, "data_set_memory_gib": 0.75,
        "alloc_retries": 0 + 1 + 2, "peak_memory_step": 20, "peak_memory_phase": "backward",
        "parameter_memory_gib": 4, "gradient_memory_gib": 5, "optimizer_memory_gib": 6,  # of ranks 1, 0, 2
        "wire_bytes_per_step": 30, "collectives_per_step": 3, "trainable_parameters_pct": 25,
    }.items()  # fmt: skip
    assert found["wire_bytes_per_axis"] == {"dp_replicate": 12, "tp": 26}


def test_bytes_become_gib():
    held = Observed({"parameters": 3 * 2**30, "optimizer": 2**29})
    assert held.memory_gib() == {"parameters": 3.0, "optimizer": 0.5}


def test_the_system_s_kilobytes_and_torch_s_bytes_become_gib(monkeypatch):
    monkeypatch.setattr(memory.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3 << 20))
    assert peak_host_memory_gib() == 3.0
    monkeypatch.setattr(memory.torch.cuda, "max_memory_allocated", lambda device: 5 << 30)
    assert peak_device_memory_gib(World(0, 0, 1, 1, "cuda", "cuda:0", GPU, "here")) == 5.0


PEAK_TFLOPS = {
    "bf16": {
        "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA A10": 125, "NVIDIA A10G": 70,
        "NVIDIA L40": 181, "NVIDIA L4": 121, "Tesla V100-SXM2-32GB": None, "Tesla T4": None,
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb": None, "NVIDIA H100": None, "": None,  # in no data sheet
    },
    "fp16": {"Tesla V100-SXM2-32GB": 125, "Tesla V100-PCIE-16GB": 112, "Tesla T4": 65, "NVIDIA H100": None},
    "fp32": {"NVIDIA H100": None, "": None},
}  # fmt: skip


@pytest.mark.parametrize("precision", PEAK_TFLOPS)
def test_a_card_has_the_peak_of_its_own_name_in_what_it_can_compute_in(precision):
    found = {name: read_peak_flops(name, precision) for name in PEAK_TFLOPS[precision]}
    assert found == {name: tflops and tflops * 1e12 for name, tflops in PEAK_TFLOPS[precision].items()}
