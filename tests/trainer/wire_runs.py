"""The bytes and the operations of a step equal the closed formula; what DeepSpeed sends beyond it is written down.

ddp, fsdp, hsdp and single: measured / formula = 1.000, operations equal. fsdp differs from the textbook's 3 (n-1)/n P
by under 4 %: fully_shard pads the first dimension of every parameter, and gathers the root once instead of twice.

DeepSpeed 0.19.8 against the textbook, two micro-batches, P = 547,624 bytes: zero1 1.500 and zero2 1.667, for they
all-reduce whole buckets, twice a reduce to their owners; zero3 0.500, for parameters below its persistence threshold
stay whole: gathered once after the update, (m + 1) / 3 m; 1.000 where each is gathered anew. zeropp on 2 nodes of 2
0.833: only the step's first gather crosses nodes. Norms cost 4 bytes, zero3's 8. In bf16 fsdp, hsdp and zero3 gather
weights of products in 2 bytes per element, all others in 4, and reduce in 4; zero1 and zero2 gather fp32.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from tests.forks import Forks
from tests.trainer.wire_formulas import (
    Parameter,
    Traffic,
    ddp_traffic,
    gathered_bytes,
    sharded_traffic,
    single_traffic,
    textbook_bytes,
    zeropp_bytes,
)

GLOBAL = 16


@dataclass(frozen=True)
class Run:
    """A small vit_tiny under a strategy, of which one step is counted."""

    strategy: str
    world_size: int
    micro_batches: int
    settings: tuple[tuple[str, Any], ...] = ()
    forced_gathers: bool = False

    @property
    def file(self) -> str:
        words = [self.strategy, self.world_size, self.micro_batches, *dict(self.settings).items()]
        return " ".join(map(str, words)) + (" forced" if self.forced_gathers else "")


TWO_BY_TWO = (("dp_replicate", 2), ("dp_shard", 2))
PRECISION = ("precision", "bf16")
SHARDED = (("fsdp", 2, ()), ("hsdp", 4, TWO_BY_TWO))
KNOBS = (
    ("accumulate", "whole"),
    ("reshard_after_forward", "off"),
    ("prefetch_blocks", 2),
    ("reduce_dtype", "bf16"),
)
CHOSEN = (
    Run("single", 1, 2),
    Run("ddp", 2, 2, (("reduce_bucket_mib", 1),)),
    Run("ddp", 2, 1, (("lora_rank", 4),)),
    Run("fsdp", 2, 2),
    Run("fsdp", 2, 2, (("accumulate", "whole"),)),
    Run("fsdp", 2, 1, (PRECISION,)),
    *(Run(strategy, 2, 2) for strategy in ("zero1", "zero2", "zero3")),
    Run("zero3", 2, 1, forced_gathers=True),
)
"""For every change: two ranks, rather those that accumulate."""
EVERY = {
    *CHOSEN,
    *(Run("ddp", 4, micro, more) for micro, more in ((1, ()), (2, (("lora_rank", 4),)))),
    Run("ddp", 2, 2, (("reduce_dtype", "bf16"),)),
    Run("ddp", 2, 1, (("static_graph", True),)),
    Run("fsdp", 4, 1),
    Run("hsdp", 2, 2, (("dp_replicate", 2), ("dp_shard", 1))),
    Run("hsdp", 2, 1, (("dp_replicate", 1), ("dp_shard", 2))),
    *(Run("hsdp", 4, micro, TWO_BY_TWO) for micro in (1, 2)),
    # replicas reduce the shards of several micro-batches in fp32 alone
    *(
        Run(strategy, ranks, 1 if (strategy, knob[1]) == ("hsdp", "bf16") else 2, (*mesh, knob))
        for strategy, ranks, mesh in SHARDED
        for knob in KNOBS
    ),
    *(Run(strategy, ranks, 2, (*mesh, PRECISION)) for strategy, ranks, mesh in SHARDED),
    Run("zero3", 2, 2, (PRECISION,), True),
    *(Run(strategy, 4, 2) for strategy in ("zero1", "zero2", "zero3")),
    *(Run(strategy, 4, micro, (), True) for strategy, micro in (("zero3", 2), ("zeropp", 1), ("zeropp", 2))),
    Run("zeropp", 4, 1, (("zeropp", "qwz"),), True),
    Run("zeropp", 4, 2, (("zeropp", "qgz"),), True),
    Run("zeropp", 4, 2, (("zeropp", "hpz,qwz,qgz"), PRECISION), True),
}


class Found(NamedTuple):
    """Traffic of a rank, the parameters outside of blocks, those of each block, and the element types sent."""

    traffic: Traffic
    root: list[Parameter]
    blocks: list[list[Parameter]]
    dtypes: dict[str, list[str]]


def measure(run: Run, out: Path) -> None:
    """One rank: a step under the counter; leaves what it saw, and the parameters' shapes."""
    import torch.distributed as dist

    from stratlab_spec.settings.config import Config
    from tests.quantizer_stand_in import load_stand_in
    from tests.trainer.runs import run_of
    from trainer.data import open_data
    from trainer.data.batches import SampleOrder, Share, build_batch
    from trainer.engines.deepspeed_config import FORCED_GATHERS, ZERO
    from trainer.measuring.operators import WireCounter
    from trainer.measuring.phases import Phases
    from trainer.models import build_model
    from trainer.models.mixed_precision import is_product_weight
    from trainer.strategies import build_engine, builds_empty

    micro = GLOBAL // run.world_size // run.micro_batches
    sizes = {"image_size": 16, "global_batch_size": GLOBAL, "micro_batch_size": micro}
    config = Config(run="wire", strategy=run.strategy, **sizes, **dict(run.settings))
    rank, per_node = dist.get_rank(), 2 if run.strategy == "zeropp" else 0  # hpZ: nodes of 2
    data = open_data(config, 16)
    model = build_model(config, image_size=16, channels=1, num_labels=10, empty=builds_empty(config, rank))
    inside = {id(p) for block in model.blocks() for p in block.parameters()}
    products = {
        id(parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if is_product_weight(module, name)
    }

    def describe(found: Iterable[Any]) -> list[tuple[Any, ...]]:
        return [(tuple(p.shape), p.requires_grad, id(p) in products) for p in found]

    shapes = {
        "root": describe(p for p in model.parameters() if id(p) not in inside),
        "blocks": [describe(block.parameters()) for block in model.blocks()],
    }
    placed = run_of(config, per_node=per_node)
    changed = ZERO.get(run.strategy, {}) | (FORCED_GATHERS if run.forced_gathers else {})
    stand_in = mock.patch("trainer.strategies.zero.load_quantizer", load_stand_in)  # no CPU has the kernel
    with mock.patch.dict(ZERO, {run.strategy: changed}), stand_in:
        engine = build_engine(placed, model, Phases("cpu"))
    order, share = SampleOrder(0, len(data.train)), Share(rank, placed.axes.dp)
    before = 3 if config.static_graph else 2  # in the third, DDP with a static graph agrees on its buckets
    for step in range(1, before + 1):
        engine.train_step(build_batch(data.train, order, step, config, share, "cpu"), 0.01)
    batch = build_batch(data.train, order, before + 1, config, share, "cpu")
    with WireCounter() as wire:
        engine.train_step(batch, 0.01)
    engine.close()
    dtypes = {name: sorted(types) for name, types in wire.dtypes.items()}
    found = {"operations": wire.operations, "wire_bytes": wire.wire_bytes, "dtypes": dtypes, "shapes": shapes}
    (out / f"{run.file} rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()


def measure_together(runs: Sequence[Run], out: Path) -> Callable[[Run], Found]:
    """What the ranks of a run have counted; all runs of one world size share a fork."""

    def measure_all(runs: Sequence[Run]) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        for run in runs:
            measure(run, out)

    forks = Forks(runs, measure_all)

    def read(run: Run) -> Found:
        assert forks.complaint(run.world_size) == ""
        ranks = [
            json.loads((out / f"{run.file} rank{rank}.json").read_text()) for rank in range(run.world_size)
        ]
        assert all(found["wire_bytes"] == ranks[0]["wire_bytes"] for found in ranks)
        operations = {kind: tuple(pair) for kind, pair in ranks[0]["operations"].items()}
        shapes = ranks[0]["shapes"]
        return Found(
            Traffic(operations, ranks[0]["wire_bytes"]),
            _parameters(shapes["root"]),
            [_parameters(block) for block in shapes["blocks"]],
            ranks[0]["dtypes"],
        )

    return read


def _parameters(rows: list[Any]) -> list[Parameter]:
    return [Parameter(tuple(shape), trainable, product) for shape, trainable, product in rows]


# strategy, ranks -> operations of rank 0, sent / textbook
DEEPSPEED = {
    ("zero1", 2): ({"all_reduce": (2, 547_628), "all_gather": (1, 273_816)}, 1.500),
    ("zero1", 4): ({"all_reduce": (2, 547_628), "all_gather": (1, 136_912)}, 1.500),
    ("zero2", 2): ({"all_reduce": (3, 1_095_252), "all_gather": (1, 273_816)}, 1.667),
    ("zero2", 4): ({"all_reduce": (3, 1_095_252), "all_gather": (1, 136_912)}, 1.667),
    ("zero3", 2): (
        {"reduce_scatter": (2, 1_095_248), "all_reduce": (1, 8), "all_gather": (72, 273_812)},
        0.500,
    ),
    ("zero3", 4): (
        {"reduce_scatter": (2, 1_095_264), "all_reduce": (1, 8), "all_gather": (72, 136_908)},
        0.500,
    ),
}


def check(run: Run, counted: Found) -> None:
    """What was sent is what the closed formula says, or what is written down of DeepSpeed."""
    found, root, blocks, dtypes = counted
    given, ranks, micro = dict(run.settings), run.world_size, run.micro_batches
    everything = [p for group in (*blocks, root) for p in group]
    size = sum(p.elements for p in everything if p.trainable) * 4
    reduced = 2 if given.get("reduce_dtype") == "bf16" else 4
    if run.strategy == "single":
        assert found == single_traffic()
    elif run.strategy == "ddp":
        bucket = given.get("reduce_bucket_mib", 25) << 20
        assert found == ddp_traffic(everything, ranks, bucket_bytes=bucket, reduced_element=reduced)
        assert found.wire_bytes / textbook_bytes("ddp", size, ranks) == pytest.approx(reduced / 4)
    elif run.strategy in ("fsdp", "hsdp"):
        shards = given.get("dp_shard", ranks)
        assert found == sharded_traffic(
            root, blocks, shards=shards, replicas=ranks // shards, micro_batches=micro,
            reduced_element=reduced, product_element=2 if "precision" in given else 4,
            reshards=given.get("reshard_after_forward") != "off",
            accumulates_sharded=given.get("accumulate") != "whole",
        )  # fmt: skip
        if run.strategy == "fsdp" and not given:
            assert found.wire_bytes / textbook_bytes("fsdp", size, ranks, micro) == pytest.approx(1, abs=0.04)
    elif "zeropp" in given:
        parts = given["zeropp"].split(",")
        element = 2 if "precision" in given else 4
        options = {"per_node": 2, "micro_batches": micro, "parts": parts, "product_element": element}
        formula = zeropp_bytes(everything, ranks=ranks, **options)
        assert found.wire_bytes / formula == pytest.approx(1, abs=1e-3)  # padding and the norm's 8 bytes
        plain = size * 3 * micro * 3 / 4
        assert formula < {"qwz": 0.6, "qgz": 0.75, "hpz,qwz,qgz": 0.4}[given["zeropp"]] * plain
        assert ("int8" in dtypes["gathers"]) == ("qwz" in parts)
        assert dtypes["exchanges"] == (["float32", "int8"] if "qgz" in parts else [])
    elif "precision" in given:
        gathered = gathered_bytes(everything, 2)
        assert gathered < 0.6 * size  # biases, norms and embeddings of places are the rest
        formula = (ranks - 1) / ranks * micro * (2 * gathered + size)
        assert found.wire_bytes / formula == pytest.approx(1, abs=2e-4)  # padding and the norm's 8 bytes
    elif run.forced_gathers:
        node = 2 if run.strategy == "zeropp" else ranks
        everywhere, inside = (ranks - 1) / ranks, (node - 1) / node
        formula = size * (everywhere * (1 + micro) + inside * (2 * micro - 1))
        assert found.wire_bytes / formula == pytest.approx(1, abs=1e-4)  # padding and the norm's 8 bytes
        if run.strategy == "zero3":
            assert formula == pytest.approx(textbook_bytes("zero3", size, ranks, micro))
    else:
        operations, excess = DEEPSPEED[run.strategy, ranks]
        assert size == 547_624 and found.operations == operations
        textbook = textbook_bytes(run.strategy, size, ranks, micro)
        assert found.wire_bytes / textbook == pytest.approx(excess, abs=1e-3)
