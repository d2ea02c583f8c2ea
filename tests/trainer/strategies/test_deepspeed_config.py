from __future__ import annotations

import json

import pytest
from torch import nn

from trainer.engines.deepspeed_config import FORCED_GATHERS, ZERO, ModelSizes, build_settings, measure_sizes
from trainer.engines.deepspeed_keys import KNOWN, check_keys
from trainer.settings.config import Config, ConfigError
from trainer.settings.precision import Precision

SMALL = ModelSizes(parameters=1000, block=300, outside=100)
HUGE = ModelSizes(parameters=10**10, block=10**8, outside=10**9)


def settings_of(strategy="zero2", *, precision="fp32", zero=None, device_type="cpu", sizes=SMALL, **settings):
    config = Config(**{"run": "try", "strategy": strategy} | settings)
    return build_settings(
        config,
        Precision(precision),
        world_size=2,
        processes_per_node=2,
        sizes=sizes,
        device_type=device_type,
        zero=zero,
    )


# Left to DeepSpeed on purpose: they name another value, or belong to a feature that is not used.
LEFT_OUT = {"zenflow", "leaf_module"}


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "zeropp"])
def test_every_value_of_the_zero_section_is_written_out(strategy):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    known = {
        field.alias or name
        for name, field in fields.items()
        if not (field.json_schema_extra or {}).get("deprecated")
    }
    if strategy in ("zero1", "zero2"):
        known = {name for name in known if not name.startswith("stage3")}
    offloads = {"offload": "all" if strategy in ("zero3", "zeropp") else "optimizer"}
    written = settings_of(strategy, **offloads)["zero_optimization"].keys()
    if "offload_param" not in written:
        known.discard("offload_param")
    assert written == known - LEFT_OUT


def test_our_list_of_known_keys_is_deepspeeds():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    def names(model) -> set[str]:
        return {field.alias or name for name, field in model.model_fields.items()}

    for section, model in {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "fp16": DeepSpeedFP16Config,
        "bf16": DeepSpeedBF16Config,
    }.items():
        assert set(KNOWN[section]) <= names(model), section


def test_our_list_of_top_level_keys_is_read_by_deepspeed():
    from pathlib import Path

    import deepspeed.profiling.constants as profiling
    import deepspeed.runtime.config as read
    import deepspeed.runtime.constants as constants
    import deepspeed.utils.config as timers

    text = "".join(Path(module.__file__).read_text() for module in (profiling, read, constants, timers))
    for name in KNOWN:
        leaf = name.rpartition(".")[2]
        assert f'"{leaf}"' in text or f"'{leaf}'" in text or name.startswith("zero_optimization"), name


def test_the_flops_profilers_section_is_whole_and_on_where_it_is_asked_for():
    from deepspeed.profiling.config import DeepSpeedFlopsProfilerConfig

    written = settings_of(profile_first_step=7, profile_warmup=2)["flops_profiler"]
    assert written.keys() == vars(DeepSpeedFlopsProfilerConfig({})).keys() == set(KNOWN["flops_profiler"])
    assert (written["enabled"], written["profile_step"], written["recompute_fwd_factor"]) == (False, 4, 0.0)
    asked = settings_of(flops_profiler=True, activation_checkpointing="blocks")["flops_profiler"]
    assert (asked["enabled"], asked["recompute_fwd_factor"]) == (True, 1.0)


MISSPELT = [
    (
        {"zero_optimisation": {}},
        "DeepSpeed setting zero_optimisation: unknown, .* did you mean zero_optimization?",
    ),
    ({"gradient_cliping": 1.0}, "gradient_cliping: unknown, .* did you mean gradient_clipping?"),
    ({"zero_optimization": {"stage3_max_live": 0}}, "zero_optimization.stage3_max_live: unknown"),
    ({"torch_autocast": {"enable": True}}, "torch_autocast.enable: unknown, .* did you mean enabled?"),
    (
        {"zero_optimization": {"offload_param": {"dev": "cpu"}}},
        "zero_optimization.offload_param.dev: unknown",
    ),
    ({"optimizer": {"params": {"momentun": 1}}}, "optimizer.params.momentun: unknown"),
]


@pytest.mark.parametrize(("settings", "sentence"), MISSPELT)
def test_a_misspelt_key_is_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_keys(settings)


def test_a_misspelt_override_is_refused_where_the_settings_are_built():
    with pytest.raises(ConfigError, match="stage3_max_live_parameter: unknown"):
        settings_of("zero3", zero={"stage3_max_live_parameter": 0})
    assert FORCED_GATHERS.items() <= settings_of("zero3", zero=FORCED_GATHERS)["zero_optimization"].items()


def test_all_misspelt_keys_are_named_at_once():
    with pytest.raises(ConfigError) as failure:
        check_keys({"a": 1, "bf16": {"b": 2}})
    assert len(failure.value.problems) == 2


def test_clipping_off_is_written_as_zero():
    assert settings_of()["gradient_clipping"] == 0.0
    assert settings_of(clip_norm=0.5)["gradient_clipping"] == 0.5


def test_the_batch_arithmetic_is_deepspeeds():
    settings = settings_of(global_batch_size=24, micro_batch_size=4)
    assert settings["gradient_accumulation_steps"] * 2 * 4 == settings["train_batch_size"] == 24


def test_no_optimizer_is_compiled_at_the_first_start():
    for strategy, offload in (("zero1", "optimizer"), ("zero3", "all")):
        settings = settings_of(strategy, offload=offload, device_type="cuda")
        assert settings["optimizer"]["params"]["torch_adam"] and not settings["zero_force_ds_cpu_optimizer"]
        assert settings["zero_optimization"]["offload_optimizer"]["pin_memory"] is True


def test_the_parts_of_zero_plus_plus_are_what_was_asked_for():
    def part(zeropp: str) -> tuple:
        zero = settings_of("zeropp", zeropp=zeropp)["zero_optimization"]
        return tuple(
            zero[k] for k in ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")
        )

    assert part("hpz") == (2, False, False)
    assert part("qwz,qgz") == (1, False, False), "the lab's own, beside DeepSpeed's switches"
    assert settings_of("zero3")["zero_optimization"]["zero_hpz_partition_size"] == 1


def test_bf16_and_fp16_are_the_model_s_own_affair():
    on = {}
    for name in ("fp32", "bf16", "bf16_native", "fp16"):
        settings = settings_of(precision=name)
        on[name] = [key for key in ("torch_autocast", "fp16", "bf16") if settings[key]["enabled"]]
    assert on == {"fp32": [], "bf16": [], "bf16_native": ["bf16"], "fp16": []}


def test_the_settings_can_be_written_to_the_run_directory():
    settings = settings_of("zero3", offload="all")
    assert json.loads(json.dumps(settings)) == settings


def test_the_stages_differ_in_the_table_alone():
    assert [ZERO[name]["stage"] for name in ("zero1", "zero2", "zero3", "zeropp")] == [1, 2, 3, 3]
    one, two = settings_of("zero1"), settings_of("zero2")
    two["zero_optimization"]["stage"] = 1
    assert one == two


def test_what_makes_a_step_fast_is_on():
    """By hand, not by the table: stage 3 fetches the next layers ahead and reduces beside the backward pass."""
    for strategy in ("zero3", "zeropp"):
        zero = settings_of(strategy, sizes=HUGE)["zero_optimization"]
        assert zero["overlap_comm"] is True
        assert zero["stage3_prefetch_bucket_size"] == 10**8, "one block is gathered ahead"
        assert zero["stage3_max_live_parameters"] == 12 * 10**8, "what is in no block, and two blocks"
        assert zero["stage3_max_reuse_distance"] == 10**8, "kept for what comes within one block"
        assert zero["stage3_param_persistence_threshold"] == 100_000, "small parameters stay whole"
    for strategy in ("zero1", "zero2", "zero3"):
        assert not settings_of(strategy)["timers"]["throughput"]["enabled"], "it would wait for the device"
        zero = settings_of(strategy)["zero_optimization"]
        assert zero["overlap_comm"] is True, "reductions beside the backward pass"
        assert zero["contiguous_gradients"] is True and zero["reduce_scatter"] is True
        assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 1000  # of a model this small


def test_knobs_become_deepspeeds_numbers():
    def zero(strategy="zero3", **settings):
        return settings_of(strategy, sizes=HUGE, **settings)["zero_optimization"]

    assert zero()["reduce_bucket_size"] == 192 * 2**18 == zero("zero1")["allgather_bucket_size"]
    assert zero(reduce_bucket_mib=3)["reduce_bucket_size"] == 3 * 2**18, "elements of 4 bytes"
    assert zero("zero2", gather_bucket_mib=5)["allgather_bucket_size"] == 5 * 2**18
    assert zero(overlap_reduction=False)["overlap_comm"] is False
    assert zero(persistent_elements=7)["stage3_param_persistence_threshold"] == 7
    ahead = zero(prefetch_blocks=3)
    assert (ahead["stage3_prefetch_bucket_size"], ahead["stage3_max_live_parameters"]) == (
        3 * 10**8,
        14 * 10**8,
    )
    kept = zero(reshard_after_forward="off")
    assert min(kept["stage3_max_live_parameters"], kept["stage3_max_reuse_distance"]) >= HUGE.parameters
    assert zero(activation_checkpointing="blocks")["stage3_max_reuse_distance"] == 2 * 10**8
    assert settings_of(reduce_dtype="bf16")["communication_data_type"] == "bf16"


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_buckets_of_a_model_with_an_odd_number_of_parameters(strategy):
    zero = settings_of(strategy, sizes=ModelSizes(parameters=999, block=9, outside=9))["zero_optimization"]
    assert zero["allgather_bucket_size"] == zero["reduce_bucket_size"] == 1000, (
        "stages 1 and 2 assert even ones"
    )


def test_sizes_of_a_model():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 3, bias=False), nn.Linear(2, 5, bias=False)])
            self.head = nn.Linear(7, 1, bias=False)

        def blocks(self):
            return list(self.layers)

    assert measure_sizes(Two()) == ModelSizes(parameters=23, block=10, outside=7)


def test_every_optimizer_is_told_its_weight_decay():
    for name in ("adamw", "sgd"):
        given = settings_of(optimizer=name, weight_decay=0.3, lr=0.02)["optimizer"]["params"]
        assert (given["weight_decay"], given["lr"]) == (0.3, 0.02)


def test_what_is_added_up_over_ranks_is_fp32():
    for precision in ("fp32", "bf16", "bf16_native", "fp16"):
        assert settings_of(precision=precision)["communication_data_type"] == "fp32"
