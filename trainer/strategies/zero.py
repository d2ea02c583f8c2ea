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

`DeepSpeedEngine` adapts DeepSpeed's engine: DeepSpeed owns backward and update, and reduces means instead of sums.
"""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from trainer.checkpoint.state import Staging
from trainer.engine import Engine, Snapshot, as_sums
from trainer.engines import deepspeed_checkpoint as deepspeed_state
from trainer.engines.deepspeed_checkpoint import take_snapshot
from trainer.engines.deepspeed_config import build_settings, measure_sizes
from trainer.engines.quantization import apply_quantized_gathers, apply_quantized_reduction, load_quantizer
from trainer.engines.torch_engine import StepEngine, apply_compile
from trainer.hang_detection.heartbeat import STEP
from trainer.measuring.held_tensors import list_shards, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import apply_gathered_linears, is_product_weight
from trainer.models.selective_checkpointing import hide
from trainer.run import Run
from trainer.strategies.fsdp import tie_weights


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
    if stage == 3:
        _hide_gathers(engine.optimizer.parameter_offload)
        if run.precision.autocast_dtype is not None:
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


def _hide_gathers(offload: Any) -> None:
    """Hide the hooks that gather and release weights in a block from selective checkpointing.

    A recomputed block gathers others than its forward pass did, because further weights are prefetched.
    """
    offload.pre_sub_module_forward_function = hide(offload.pre_sub_module_forward_function)
    offload.post_sub_module_forward_function = hide(offload.post_sub_module_forward_function)


log = logging.getLogger("trainer")


class DeepSpeedEngine(StepEngine):
    """Run steps with ZeRO stage 1 to 3.

    Args:
        engine: from `deepspeed.initialize`.
        settings: the settings of `deepspeed.initialize`.
    """

    def __init__(self, run: Run, engine: Any, phases: Phases, settings: dict[str, Any]) -> None:
        super().__init__(run, engine.module, phases)
        self.settings = settings
        self._engine = engine
        self._precision = run.precision
        self._staging = Staging()
        self._pulse = run.pulse
        self._flops_file = run.folder.flops_profiler if run.config.flops_profiler and run.writes else None
        # DeepSpeed's backward divides by the accumulation, its reduction by the world size: reverse both
        self._loss_factor = engine.gradient_accumulation_steps() * engine.dp_world_size
        engine.optimizer.torch_autocast_gradscaler = None  # see LossScale

    def _begin_micro_batch(self, index: int, completes_step: bool) -> None:
        if index:
            self._engine.step()  # counts the previous micro-batch, updates nothing
        elif self.loss_scale.enabled:
            self._engine.optimizer.override_loss_scale(self.loss_scale.scale)

    def _forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor]
        with self._count_flops():
            found = self._engine(self._precision.cast_input(inputs), labels)
        return found

    def _backward(self, loss: Tensor) -> None:
        self._engine.backward(loss * self._loss_factor)

    def _update(self, lr: float) -> tuple[Tensor | float, int]:
        engine, first = self._engine, "parameters" not in self.observed.dtypes
        skipped_before = engine.skipped_steps
        if first:
            self._observe()
        for group in engine.optimizer.param_groups:
            group["lr"] = lr
        engine.step()
        if first:
            self.observed.add("optimizer", state_tensors(engine.optimizer.optimizer))
        skipped = engine.skipped_steps - skipped_before
        self.loss_scale.update(bool(skipped))
        return engine.get_global_grad_norm(), skipped

    def _count_flops(self) -> AbstractContextManager[None]:
        """Profile the first micro-batch of the first step that the profiler sees; otherwise do nothing."""
        if self._flops_file is None or not self._phases.step.recording:
            return nullcontext()
        path, self._flops_file = self._flops_file, None
        return profile_flops(self._engine, self._pulse.words[STEP], path)

    def _observe(self) -> None:
        """Record parameters with their fp32 copies, and the gradients, between backward and update."""
        optimizer, parameters = self._engine.optimizer, list(self.module.parameters())
        masters = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3
        if masters is None:
            masters = optimizer.single_partition_of_fp32_groups
        self.observed.add("parameters", [*parameters, *list_shards(parameters), *masters])
        held = [p.grad for p in (*parameters, *masters) if p.grad is not None]
        for parts in optimizer.averaged_gradients.values():
            held += [part for part in parts or [] if part is not None]
        self.observed.add("gradients", held)
        filled = getattr(optimizer, "ipg_buckets", {}).values()
        made = [t for bucket in filled for t in tree_iter(vars(bucket)) if torch.is_tensor(t)]
        known = {t.untyped_storage().data_ptr() for t in held}  # a bucket may keep gradients
        if buckets := [t for t in made if t.untyped_storage().data_ptr() not in known]:
            self.observed.add("buckets", buckets)

    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self._engine.eval()
        with torch.no_grad():
            sums = as_sums(*self._engine(self._precision.cast_input(inputs), labels))
        self._engine.train()
        return sums

    def snapshot(self) -> Snapshot:
        return take_snapshot(self._staging, self._engine, self.loss_scale)

    def load(self, folder: Path) -> None:
        deepspeed_state.load(self._engine, self.loss_scale, folder)

    def gather_state(self) -> dict[str, Tensor]:
        return deepspeed_state.gather(self._engine)

    def close(self) -> None:
        self._engine.destroy()


@contextmanager
def profile_flops(engine: Any, step: int, path: Path) -> Iterator[None]:
    """Count the operations of the forward pass inside, by module, into a text file.

    A failure only loses the file. DeepSpeed's own switch (flops_profiler.enabled) would also time every phase of every
    micro-batch, wait for the device each time and print the times until the end of the run (0.19.8: it turns
    wall_clock_breakdown on). So DeepSpeed gets the section with the switch off, and this function calls its profiler.
    Inside, torch's functions are replaced and every module has hooks that wait for the device.

    Args:
        engine: DeepSpeed's, with its settings.
        step: number shown in the file.
    """
    from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler

    profiler = FlopsProfiler(engine.module, engine, engine.flops_profiler_recompute_fwd_factor())
    profiler.start_profile()
    try:
        yield
        profiler.stop_profile()
        _write_profile(profiler, engine, step, path)
    finally:
        profiler.end_profile()


def _write_profile(profiler: Any, engine: Any, step: int, path: Path) -> None:
    text, temporary = io.StringIO(), path.with_name(f".{path.name}.tmp")
    try:
        with redirect_stdout(text):
            profiler.print_model_profile(
                step,
                engine.flops_profiler_module_depth(),
                engine.flops_profiler_top_modules(),
                engine.flops_profiler_detailed(),
            )
    except Exception as failure:  # unusual models break its arithmetic: only the text is lost
        log.warning("DeepSpeed's FLOPs profiler could not print its counts: %r", failure)
        return
    try:
        if text.getvalue():
            temporary.write_text(text.getvalue())
            os.replace(temporary, path)
    except OSError as failure:
        log.warning("%s is dropped, training continues: %s", path.name, failure)
