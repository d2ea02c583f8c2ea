"""summary.json by hand: three unequal ranks, an even and an odd number of steps, a peak that is known."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trainer.layout.world import World
from trainer.measuring import memory
from trainer.measuring.memory import peak_device_memory_gib, peak_host_memory_gib, peak_reserved_memory_gib
from trainer.measuring.observation import Observed
from trainer.outcome.summary import build_summary
from trainer.outcome.tracking import TIMES, Work
from trainer.settings.config import Config
from trainer.tasks.measures import Classification, LanguageModelling

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
        "state_memory_gib": dict(zip(("parameters", "gradients", "optimizer"), state, strict=True)),
        "dtypes": {kind: ["float32"] for kind in ("parameters", "gradients", "optimizer", "reductions")},
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
        wire_bytes_per_step=30.0,
        wire_bytes_per_axis={"dp_replicate": 4.0, "tp": 26.0},
    ),
    rank(2, (2.0, 1.0, 6.0), peak_reserved_gib=8.0, wire_bytes_per_axis={"dp_replicate": 12.0, "tp": 1.0}),
]


def steps(*milliseconds: float) -> list[tuple[float, ...]]:
    """A row per step, in the order of TIMES: the step itself, and a tenth of it for each phase."""
    return [(time, *(time / 10 for _ in TIMES[1:])) for time in milliseconds]


def summarise(measured: list[tuple[float, ...]], work: Work, **settings: Any) -> dict[str, Any]:
    config = Config(**{"run": "try", "global_batch_size": 96, "micro_batch_size": 32} | settings)
    text = config.is_text
    test = LanguageModelling(1.5, 10, 40) if text else Classification(0.7, [[3, 1], [2, 4]], ["a", "b"])
    resolved = copy.deepcopy(RESOLVED)
    return build_summary(config, resolved, RANKS, measured, work, dict(LAST), test)


def test_utilisation_counts_every_device():
    """250 samples in 2.5 s are 100 per s; x 989e10 FLOP over 3 x 989e12 FLOP/s: a third."""
    found = summarise(steps(500, 1000, 1000), Work(samples=250))
    assert found["samples_per_s"] == pytest.approx(100)
    assert found["peak_flops_per_device"] == 989e12
    assert found["mfu_pct"] == pytest.approx(100 / 3)


def test_text_has_two_counts_of_attention():
    """1500 tokens in 2.5 s; by the literature's 989e9 FLOP each 20 %; a sample costs what config.json says."""
    work = Work(samples=250, tokens=1500, useful_tokens=1200)
    found = summarise(steps(500, 1000, 1000), work, model="qwen_tiny", seq_len=64)
    assert (found["tokens_per_s"], found["useful_tokens_per_s"]) == pytest.approx((600, 480))
    assert found["useful_tokens_pct"] == pytest.approx(80)
    assert (found["flops_per_token"], found["flops_per_token_literature"]) == (3e12, 989e9)
    assert found["mfu_literature_pct"] == pytest.approx(100 * 600 * 989e9 / (3 * 989e12))
    assert found["mfu_literature_pct"] == pytest.approx(20)
    assert found["test_perplexity"] == pytest.approx(4.4816890703)


@pytest.mark.parametrize(
    ("count", "median", "high"),
    [(1, 1, 1), (2, 1.5, 2), (7, 4, 7), (20, 10.5, 19), (30, 15.5, 29), (41, 21, 39), (101, 51, 96)],
)
def test_median_and_95th_percentile_of_1_to_n_ms(count, median, high):
    """The value with the rank nearest to 0.95 (n - 1), counted from 0."""
    shuffled = sorted(range(1, count + 1), key=lambda n: n * 7 % 11)
    found = summarise(steps(*shuffled), Work(samples=count))
    assert found["measured_steps"] == count
    assert (found["step_time_ms_p50"], found["step_time_ms_p95"]) == (median, high)
    assert found["forward_ms_p50"] == pytest.approx(median / 10)


def test_a_run_without_measured_steps_knows_no_times():
    found = summarise([], Work())
    for name in ("step_time_ms_p50", "step_time_ms_p95", "data_ms_p50", "samples_per_s", "mfu_pct"):
        assert found[name] is None


def test_of_unequal_ranks_the_largest_counts():
    found = summarise(steps(10), Work(samples=1))
    assert found["peak_memory_gib"] == 7 and found["peak_reserved_gib"] == 8
    assert found["peak_host_memory_gib"] == 9
    assert found["parameter_memory_gib"] == 4  # of rank 1
    assert found["gradient_memory_gib"] == 5  # of rank 0
    assert found["optimizer_memory_gib"] == 6  # of rank 2
    assert found["wire_bytes_per_step"] == 30
    assert found["wire_bytes_per_axis"] == {"dp_replicate": 12, "tp": 26}
    assert found["collectives_per_step"] == 3
    assert found["trainable_parameters_pct"] == 25


def test_the_run_s_own_numbers_are_taken_as_they_are():
    found = summarise(steps(10), Work(samples=1))
    assert {name: found[name] for name in LAST} == LAST
    assert found["test_loss"] == 0.7 and found["test_accuracy_pct"] == pytest.approx(70)


def test_bytes_become_gib():
    """2^30 bytes, not 10^9."""
    assert Observed({"parameters": 3 * 2**30, "optimizer": 2**29}).memory_gib() == {
        "parameters": 3.0,
        "optimizer": 0.5,
    }


def test_the_system_s_kilobytes_become_gib(monkeypatch):
    """getrusage(2): ru_maxrss is in kilobytes, of 1024 bytes."""

    class Usage:
        ru_maxrss = 3 << 20

    monkeypatch.setattr(memory.resource, "getrusage", lambda who: Usage)
    assert peak_host_memory_gib() == 3.0


def test_torch_s_bytes_become_gib(monkeypatch):
    monkeypatch.setattr(memory.torch.cuda, "max_memory_allocated", lambda device: 5 << 30)
    monkeypatch.setattr(memory.torch.cuda, "max_memory_reserved", lambda device: 7 << 30)
    world = World(0, 0, 1, 1, "cuda", "cuda:0", GPU, "here")
    assert (peak_device_memory_gib(world), peak_reserved_memory_gib(world)) == (5.0, 7.0)
