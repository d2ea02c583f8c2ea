"""zero1, zero2, zero3, zeropp: DeepSpeed ZeRO over all processes; ZERO in deepspeed_config.py has the stages' settings.

          sharded over dp_shard                collectives per step, in bytes of the parameters
zero1     O    optimizer state                 reduce G, once a step; all-gather P          2 (n-1)/n
zero2     GO   and gradients                   reduce G, every backward; all-gather P       2 (n-1)/n
zero3     PGO  and parameters                  all-gather P per module in forward and
                                               backward, reduce-scatter G                   3 (n-1)/n
zeropp    PGO  as zero3; hpz: a second copy    all-gather P in backward stays in the node;
          of P per node                        qwz: 8 bits of P, qgz: 4 bits of G, in two steps

dp_shard ─▶  ┌──────────────┐ ┌──────────────┐
     zero1   │ P   G   O/2  │ │ P   G   O/2  │     P parameters  G gradients  O optimizer state
     zero2   │ P   G/2 O/2  │ │ P   G/2 O/2  │
     zero3   │ P/2 G/2 O/2  │ │ P/2 G/2 O/2  │
             └──────────────┘ └──────────────┘
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch
from torch import nn

from trainer.engine import Engine
from trainer.engines.deepspeed_config import build_settings, measure_sizes
from trainer.engines.quantization import apply_quantized_gathers, apply_quantized_reduction, load_quantizer
from trainer.engines.torch_engine import apply_compile
from trainer.engines.zero_engine import DeepSpeedEngine
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import apply_gathered_linears, is_product_weight
from trainer.run import Run
from trainer.strategies.sharding import tie_weights


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Build the model under ZeRO.

    In stages 1 and 2 every rank holds it whole. In stage 3 rank 0's weights are distributed parameter by parameter, so
    that a device holds at most its shards and one parameter. deepspeed.zero.Init as a context around a Hugging Face
    constructor gives wrong initial weights silently; on a finished module it works as documented.
    """
    config, device_type, world_size = run.config, run.mesh.device_type, run.axes.dp_shard
    if device_type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read at import; there is no argument for it
    import deepspeed
    import deepspeed.ops

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls names that torch will rename: one warning per collective, thousands of lines per run
    warnings.filterwarnings("ignore", "`torch.distributed.* is deprecated", FutureWarning)
    if device_type == "cpu":
        # Operators are compiled at every first start and only used for inference; a stale lock in their cache hangs for
        # ever.
        # Replace the table: reading it tries each operation with the compiler, in every rank
        # (deepspeed/ops/__init__.py).
        deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    settings = build_settings(
        config,
        run.precision,
        world_size=world_size,
        processes_per_node=run.world.local_size,
        sizes=measure_sizes(model),
        device_type=device_type,
        profile_first=run.plan.profile_first,
    )
    stage = settings["zero_optimization"]["stage"]
    if stage == 3 and run.precision.autocast_dtype is None:  # else mixed_precision.py keeps it
        apply_gathered_linears(model)
    if config.compile:
        apply_compile(model.blocks(), run.compile_backend)  # type: ignore[operator]
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    if stage == 3:
        _deal_out(model, settings, device_type)
    else:
        model.to(device_type)
    trainable = [p for p in model.parameters() if p.requires_grad]
    settings["flops_profiler"]["enabled"] = False  # see engines/zero_engine.py
    engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=trainable)
    parts = config.zeropp.split(",") if config.strategy == "zeropp" else []
    quantizer = load_quantizer() if {"qwz", "qgz"} & set(parts) else None
    if quantizer and "qwz" in parts:
        apply_quantized_gathers(engine.module.parameters(), quantizer)
    if quantizer and "qgz" in parts:
        apply_quantized_reduction(engine.optimizer, quantizer, run.world.local_size)
    if stage == 3 and run.precision.autocast_dtype is not None:
        _gather_products(engine, run.precision.autocast_dtype)
    return DeepSpeedEngine(run, engine, phases, settings)


def _deal_out(model: nn.Module, settings: dict[str, Any], device_type: str) -> None:
    """Distribute rank 0's weights in shards to all ranks, in place; other ranks may use the meta device."""
    import deepspeed
    from deepspeed.utils import groups

    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device="cpu")  # the system never allocates memory that is never written
        tie_weights(model)
    if settings["bf16"]["enabled"]:
        model.to(torch.bfloat16)
    # hpZ's group of an earlier engine: only one may exist
    hpz = settings["zero_optimization"]["zero_hpz_partition_size"] > 1
    node = groups._get_zero_param_intra_parallel_group() if hpz else None
    deepspeed.zero.Init(module=model, config_dict_or_path=settings, zero_param_parallel_group=node)
    for name, buffer in list(model.named_buffers()):
        owner, _, leaf = name.rpartition(".")
        whole = buffer.to(device_type)
        torch.distributed.broadcast(whole, src=0)
        setattr(model.get_submodule(owner), leaf, whole)


def _gather_products(engine: Any, dtype: torch.dtype) -> None:
    """Gather product weights in the products' type, and still reduce in fp32.

    Gathering asks the parameter for its type (partition_parameters.py, get_allgather_dtype). So would reduction if
    DeepSpeed's own autocast were on; without it the setting communication_data_type applies.
    """
    for module in engine.module.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if is_product_weight(module, name):
                parameter.comm_dtype = dtype
