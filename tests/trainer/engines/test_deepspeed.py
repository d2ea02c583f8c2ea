"""What DeepSpeed is configured with, its flops profiler, and blocks of whole numbers by a stand-in for its kernel."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.gpu.quantizer_formula import StandInQuantizer
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import BLOCK
from tests.codes import find_codes
from trainer.distributed.world import Precision
from trainer.engines.deepspeed_config import (
    FORCED_GATHERS,
    ModelSizes,
    build_settings,
    check_keys,
)
from trainer.engines.quantization import _count_real, dequantize, quantize
from trainer.measuring.held_tensors import Observed
from trainer.models.mixed_precision import ProductLinear
from trainer.strategies.zero import DeepSpeedEngine, _gather_products

SMALL = ModelSizes(parameters=1000, block=300, outside=100)
HUGE = ModelSizes(parameters=10**10, block=10**8, outside=10**9)
LEFT_OUT = {"zenflow", "leaf_module"}
"""Left to DeepSpeed on purpose: they name another value, or belong to a feature that is not used."""


def settings_of(strategy="zero2", *, precision="fp32", zero=None, device_type="cpu", sizes=SMALL, **settings):
    config = Config(**{"run": "try", "strategy": strategy} | settings)
    there = {"world_size": 2, "processes_per_node": 2, "device_type": device_type}
    return build_settings(config, Precision(precision), sizes=sizes, zero=zero, **there)


def zero(strategy="zero3", **settings):
    return settings_of(strategy, **{"sizes": HUGE} | settings)["zero_optimization"]


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_every_value_of_the_zero_section_is_written_out(strategy):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    known = {
        field.alias or name
        for name, field in DeepSpeedZeroConfig.model_fields.items()
        if not (field.json_schema_extra or {}).get("deprecated")
    }
    if strategy == "zero2":
        known = {name for name in known if not name.startswith("stage3")} - {"offload_param"}
    assert zero(strategy, offload="all" if strategy == "zero3" else "optimizer").keys() == known - LEFT_OUT


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"zero_optimisation": {}}, ("zero_optimisation", "zero_optimization?")),
        ({"optimizer": {"params": {"momentun": 1}}}, ("optimizer.params.momentun", "momentum?")),
    ],
)
def test_a_misspelt_key_is_refused(settings, named):
    with pytest.raises(ConfigError) as refused:
        check_keys(settings | {"unknown": 1})
    assert find_codes(refused.value) == ["SL-deepspeed-key"] * 2, "all at once"
    assert all(name in refused.value.problems[0] for name in named)
    check_keys({"timers": None, "optimizer": {"type": "AdamW"}})  # no section: left to DeepSpeed


def test_a_misspelt_override_is_refused_where_the_settings_are_built():
    with pytest.raises(ConfigError) as refused:
        settings_of("zero3", zero={"stage3_max_live_parameter": 0})
    assert "stage3_max_live_parameter" in str(refused.value)
    assert FORCED_GATHERS.items() <= zero(zero=FORCED_GATHERS).items()


def test_batches_clipping_and_types():
    settings = settings_of(global_batch_size=24, micro_batch_size=4)
    assert settings["gradient_accumulation_steps"] * 2 * 4 == settings["train_batch_size"] == 24
    assert settings["gradient_clipping"] == 0.0 and settings_of(clip_norm=0.5)["gradient_clipping"] == 0.5
    for name, on in (("fp32", []), ("bf16", []), ("bf16_native", ["bf16"]), ("fp16", [])):
        settings = settings_of(precision=name)
        assert [key for key in ("torch_autocast", "fp16", "bf16") if settings[key]["enabled"]] == on
        assert settings["communication_data_type"] == "fp32", "what is added up over ranks"
    assert settings_of(reduce_dtype="bf16")["communication_data_type"] == "bf16"


def test_what_makes_a_step_fast_is_on():
    """By hand, not by the table: stage 3 fetches the next layers ahead and reduces beside the backward pass."""
    found = zero()
    assert found["overlap_comm"] is True
    assert found["stage3_prefetch_bucket_size"] == 10**8, "one block is gathered ahead"
    assert found["stage3_max_live_parameters"] == 12 * 10**8, "what is in no block, and two blocks"
    assert found["stage3_max_reuse_distance"] == 10**8, "kept for what comes within one block"
    assert found["stage3_param_persistence_threshold"] == 100_000, "small parameters stay whole"
    for strategy in ("zero1", "zero2", "zero3"):
        assert not settings_of(strategy)["timers"]["throughput"]["enabled"], "it would wait for the device"
        found = zero(strategy, sizes=SMALL)
        assert found["overlap_comm"] is True, "reductions beside the backward pass"
        assert found["contiguous_gradients"] is True and found["reduce_scatter"] is True
        assert found["reduce_bucket_size"] == found["allgather_bucket_size"] == 1000  # of a model this small
    odd = zero("zero1", sizes=ModelSizes(parameters=999, block=9, outside=9))
    assert odd["allgather_bucket_size"] == odd["reduce_bucket_size"] == 1000, (
        "stages 1 and 2 assert even ones"
    )


def test_knobs_become_deepspeeds_numbers():
    assert zero()["reduce_bucket_size"] == 192 * 2**18 == zero("zero1")["allgather_bucket_size"]
    assert zero(reduce_bucket_mib=3)["reduce_bucket_size"] == 3 * 2**18, "elements of 4 bytes"
    assert zero("zero2", gather_bucket_mib=5)["allgather_bucket_size"] == 5 * 2**18
    assert zero(overlap_reduction=False)["overlap_comm"] is False
    assert zero(persistent_elements=7)["stage3_param_persistence_threshold"] == 7
    ahead = zero(prefetch_blocks=3)
    assert ahead["stage3_prefetch_bucket_size"] == 3 * 10**8
    assert ahead["stage3_max_live_parameters"] == 14 * 10**8
    kept = zero(reshard_after_forward="off")
    assert min(kept["stage3_max_live_parameters"], kept["stage3_max_reuse_distance"]) >= HUGE.parameters
    assert zero(activation_checkpointing="blocks")["stage3_max_reuse_distance"] == 2 * 10**8


def test_every_optimizer_is_told_its_weight_decay():
    for name in ("adamw", "sgd"):
        given = settings_of(optimizer=name, weight_decay=0.3, lr=0.02)["optimizer"]["params"]
        assert (given["weight_decay"], given["lr"]) == (0.3, 0.02)


def there_and_back(values: torch.Tensor, bits: int) -> torch.Tensor:
    return dequantize(*quantize(StandInQuantizer(), values, bits), bits)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_number_comes_back_within_half_a_step_and_the_largest_within_one(bits):
    values = torch.randn(7 * BLOCK, generator=torch.Generator().manual_seed(0))
    step = values.view(-1, BLOCK).abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    error = (there_and_back(values, bits) - values).view(-1, BLOCK).abs() / step
    assert 0.4 < error.median() * 2 < 0.6 and error.max() <= 1.05
    inside = values.view(-1, BLOCK) < (2 ** (bits - 1) - 1.5) * step  # what is above is cut off
    assert error[inside].max() <= 0.56  # fp16 rounds a little before
    numbers, scales = quantize(StandInQuantizer(), torch.ones(2, 3 * BLOCK, dtype=torch.bfloat16), bits)
    assert (numbers.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert numbers.shape == (6 * BLOCK * bits // 8,) and scales.shape == (6,), "bytes that are sent"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-37, 1e30])
def test_whole_steps_come_back_as_they_were_whatever_their_size(bits, size):
    """fp16, which the kernel reads, knows nothing below 6e-8 or above 65504."""
    half = 2 ** (bits - 1)
    numbers = torch.arange(2 * BLOCK) * 37 % (2 * half) - half
    unit = 2.0 ** torch.tensor(size).log2().round()
    assert torch.equal(there_and_back(numbers * unit, bits), numbers * unit)


def test_a_block_with_a_number_that_is_none_comes_back_as_such():
    for bad in (float("nan"), float("-inf")):
        values = torch.ones(3 * BLOCK)
        values[BLOCK + 5] = bad
        found = there_and_back(values, 8).view(3, BLOCK)
        assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


class Moded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.append(self.training)
        return inputs.sum(), labels


def test_an_evaluation_is_in_evaluation_mode_and_leaves_training_mode():
    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine._engine, engine._precision = Moded(), Precision("fp32")
    assert engine.evaluate(torch.ones(2), torch.ones(1)).tolist() == [2, 1]
    assert engine._engine.seen == [False] and engine._engine.training


def test_gradients_of_every_owner_are_observed():
    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine.observed, engine.module = Observed(), nn.Linear(2, 2)
    parts = {0: [torch.zeros(3), None], 1: None}
    optimizer = SimpleNamespace(fp32_partitioned_groups_flat=[torch.zeros(4)], averaged_gradients=parts)
    engine._engine = SimpleNamespace(optimizer=optimizer)
    engine._observe()
    assert engine.observed.bytes_held == {"parameters": 4 * (6 + 4), "gradients": 4 * 3}


def test_weights_of_products_alone_are_gathered_in_16_bits():
    model = nn.Sequential(ProductLinear(2, 2), nn.LayerNorm(2))
    _gather_products(SimpleNamespace(module=model), torch.bfloat16)
    found = {name: getattr(p, "comm_dtype", None) for name, p in model.named_parameters()}
    assert found == {"0.weight": torch.bfloat16} | dict.fromkeys(("0.bias", "1.weight", "1.bias"))


@pytest.mark.parametrize(("rank", "real"), [(0, 4), (1, 2), (2, 0)])
def test_the_padding_of_the_last_shards_is_no_element(rank: int, real: int):
    shard = SimpleNamespace(ds_numel=4)
    assert _count_real(SimpleNamespace(ds_tensor=shard, ds_numel=6, ds_zero_partition_rank=rank)) == real
