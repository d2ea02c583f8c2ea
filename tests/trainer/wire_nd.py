"""Operations and bytes of a step of nd, counted on real meshes and by the closed formula."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stratlab_spec.layout.nd_layout import count_stages, resolve_layout
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import accumulates_sharded, reshards_after_forward
from tests.parity_llm.cases import Case
from tests.parity_llm.models import ROWS, SEQ_LEN
from tests.ranks import run_ranks
from tests.trainer.wire_formulas_nd import Work, decoder_traffic

RECOMPUTED = {"activation_checkpointing": "blocks"}
CASES = (
    Case("tied", "rep2.dp2"),
    Case("tied", "cp2.dp2", settings=RECOMPUTED),
    Case("tied", "dp2.tp2+sp", packed=True),
    Case("moe", "dp4.ep4"),
    Case("moe", "tp2.ep2+sp", settings=RECOMPUTED),
    Case("moe tied", "dp2.tp2.ep2+sp"),
    Case("tied", "pp2.cp2.tp2+sp", packed=True),
    Case("untied", "pp2.rep2.tp2"),
    Case("moe", "pp2.dp2.tp2.ep4+sp", packed=True),
)


def measure(cases: list[Case], checkpoints: Path, out: Path) -> None:
    """One rank: step 3 of every case under the counter."""
    import torch
    import torch.distributed as dist

    from tests.parity_llm.training import build
    from trainer.measuring.operators import WireCounter

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in cases:
        engine, next_batch, axes = build(case, checkpoints)
        for step in (1, 2):
            engine.train_step(next_batch(step), 0.01)
        batch = next_batch(3)
        with WireCounter(axes.world_axis) as wire:
            engine.train_step(batch, 0.01)
        together = sum(sum(size for _, size in kinds.values()) for kinds in wire.axes.values())
        assert together == sum(size for _, size in wire.operations.values())
        assert abs(sum(wire.wire_bytes_per_axis.values()) - wire.wire_bytes) < 1e-6
        (out / f"{case.name} {dist.get_rank()}.json").write_text(json.dumps(wire.axes))
        dist.barrier()


def measure_all(cases: Sequence[Case], checkpoints: Path, out: Path) -> None:
    """Leaves what every rank counted in `out`; cases of one world size share a fork."""
    for size in sorted({case.world_size for case in cases}):
        some = [case for case in cases if case.world_size == size]
        run_ranks(partial(measure, some, checkpoints, out), size, timeout_s=300)


def check_formula(case: Case, checkpoints: Path, measured: Path) -> None:
    """What each rank counted is what the formula says, axis by axis."""
    config = Config(run="wire", model_path=str(checkpoints / case.model), **case.config())
    shape = read_shape(config)
    layout = resolve_layout(config, case.world_size, shape)
    axes = layout.axes
    expert_bytes = {"counted": 0, "formula": 0}
    for rank in range(case.world_size):
        found = json.loads((measured / f"{case.name} {rank}.json").read_text())
        work = Work(
            shape, axes, axes.coordinates(rank)["pp"], config.micro_batch_size, SEQ_LEN,
            micro_batches=ROWS // axes.dp // config.micro_batch_size,
            stages=count_stages(config, axes.pp), sequence_parallel=layout.sequence_parallel,
            cp_method=config.cp_method, activation_checkpointing=config.activation_checkpointing,
            accumulates_sharded=accumulates_sharded(config, axes.pp),
            reshards=reshards_after_forward(config, axes.pp),
            reduced_element=2 if config.reduce_dtype == "bf16" else 4,
        )  # fmt: skip
        formula = decoder_traffic(work)
        assert _counts(found) == _counts(formula), f"rank {rank}"
        for name, axes_of in (("counted", found), ("formula", formula)):
            expert_bytes[name] += sum(size for _, size in axes_of.pop("ep", {}).values())
        assert {
            axis: {kind: tuple(pair) for kind, pair in kinds.items()} for axis, kinds in found.items()
        } == formula
    # rows that reach a rank's experts depend on the router; over all ranks together they do not
    assert expert_bytes["counted"] == expert_bytes["formula"]
    assert bool(expert_bytes["formula"]) == (axes.ep > 1)


def _counts(axes: Any) -> dict[str, dict[str, int]]:
    return {axis: {kind: count for kind, (count, _) in kinds.items()} for axis, kinds in axes.items()}
