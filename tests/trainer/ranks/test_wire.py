"""The bytes and the operations of a step equal the closed formula; what DeepSpeed sends beyond it is written down.

Our own paths (ddp, fsdp, hsdp, single): measured / formula = 1.000, operations equal, at world size 2 and 4, with one
and with two micro-batches. fsdp differs from the textbook's 3 (n-1)/n P by under 4 %: fully_shard pads the first
dimension of every parameter, which adds, and gathers the root once instead of twice.

DeepSpeed 0.19.8 against the textbook, vit_tiny on 16x16 images (P = 547,624 bytes), m = 2 micro-batches, 2 and 4 ranks:

    strategy  operations per step                            sent / textbook and why
    zero1     2 all-reduce, 1 all-gather                     1.500  gradients are all-reduced in whole buckets,
                                                                    which is twice a reduce to their owners
    zero2     3 all-reduce, 1 all-gather                     1.667  the same in every micro-batch: (2 m + 1) / (m + 1)
    zero3     2 reduce-scatter, 72 all-gather, 1 all-reduce  0.500  every parameter has fewer elements than
                                                                    stage3_param_persistence_threshold and stays whole:
                                                                    gathered once after the update, (m + 1) / 3 m
    zero3, every parameter gathered anew                     1.000
    zeropp, the same, 4 ranks as 2 nodes of 2                0.833  only the step's first gather crosses nodes, all
                                                                    others take hpZ's copy inside the node

qwz and qgz, with a stand-in for the kernel: blocks as zeropp_bytes has them, whatever the precision.

The extra all-reduce is the gradient norm: 4 bytes, 8 with zero3. Flat vectors are padded to a multiple of twice the
ranks; zero3 pads each parameter to a multiple of the ranks.

With precision bf16 fsdp, hsdp and zero3 gather the weights of products in 2 bytes per element and all others in 4, and
reduce gradients in 4. zero1 and zero2 gather fp32 after their update: what they hold are the fp32 parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from tests.covering import choose_cover
from tests.forks import Forks
from tests.ranks import run_ranks
from trainer.measuring.wire_formulas import (
    Parameter,
    Traffic,
    ddp_buckets,
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


DDP = [
    Run("ddp", ranks, micro, settings)
    for settings in ((), (("lora_rank", 4),))
    for ranks in (2, 4)
    for micro in (1, 2)
]
FSDP = [Run("fsdp", ranks, micro) for ranks in (2, 4) for micro in (1, 2)]
HSDP = [
    Run("hsdp", replicas * shards, micro, (("dp_replicate", replicas), ("dp_shard", shards)))
    for replicas, shards in ((2, 1), (1, 2), (2, 2))
    for micro in (1, 2)
]
KNOBS = [
    # replicas reduce the shards of several micro-batches in fp32 alone
    Run(strategy, ranks, 1 if (strategy, value) == ("hsdp", "bf16") else 2, (*mesh, (name, value)))
    for strategy, ranks, mesh in (
        ("fsdp", 2, ()),
        ("hsdp", 4, (("dp_replicate", 2), ("dp_shard", 2))),
    )
    for name, value in (
        ("accumulate", "whole"),
        ("reshard_after_forward", "off"),
        ("prefetch_blocks", 2),
        ("reduce_dtype", "bf16"),
    )
]
IN_16_BITS = [
    Run(strategy, ranks, micro, (*mesh, ("precision", "bf16")), forced_gathers=strategy == "zero3")
    for strategy, ranks, mesh in (
        ("fsdp", 2, ()),
        ("hsdp", 4, (("dp_replicate", 2), ("dp_shard", 2))),
        ("zero3", 2, ()),
    )
    for micro in (1, 2)
]
DDP_KNOBS = [
    Run("ddp", 2, micro, (knob,))
    for knob, micro in (
        (("reduce_bucket_mib", 1), 2),
        (("reduce_dtype", "bf16"), 2),
        (("static_graph", True), 1),
    )
]
FORCED = [
    Run(strategy, ranks, micro, forced_gathers=True)
    for strategy, ranks in (("zero3", 2), ("zero3", 4), ("zeropp", 4))
    for micro in (1, 2)
]
QUANTIZED = [
    Run("zeropp", 4, micro, (("zeropp", parts), *precision), forced_gathers=True)
    for parts, micro, precision in (
        ("qwz", 1, ()),
        ("qgz", 2, ()),
        ("hpz,qwz,qgz", 2, (("precision", "bf16"),)),
    )
]
SHIPPED = [Run(strategy, ranks, 2) for strategy in ("zero1", "zero2", "zero3") for ranks in (2, 4)]
SINGLE = Run("single", 1, 2)
EVERY = [
    *(SINGLE, *DDP, *FSDP, *HSDP, *KNOBS, *IN_16_BITS),
    *(*DDP_KNOBS, *SHIPPED, *FORCED, *QUANTIZED),
]


def traits_of(run: Run) -> set[Hashable]:
    """Every setting of a strategy on every number of ranks, and both numbers of micro-batches with every strategy."""
    return {
        (run.strategy, run.settings, run.forced_gathers, run.world_size),
        (run.strategy, run.micro_batches),
    }


CHOSEN = choose_cover(EVERY, traits_of, lambda run: run.world_size + 0.1 * (run.micro_batches == 1))
"""For every change, rather those that accumulate; the others are in tests/nightly/trainer/test_wire.py."""


def chosen(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run in CHOSEN]


def measure(run: Run, out: Path) -> None:
    """One rank: a step under the counter; leaves what it saw, and the parameters' shapes."""
    import torch.distributed as dist

    from tests.quantizer_stand_in import load_stand_in
    from tests.trainer.runs import run_of
    from trainer.data import open_data
    from trainer.data.batches import Share, build_batch
    from trainer.data.order import SampleOrder
    from trainer.engines.deepspeed_config import FORCED_GATHERS, ZERO
    from trainer.measuring.phases import Phases
    from trainer.measuring.wire import WireCounter
    from trainer.models import build_model
    from trainer.models.products import is_product_weight
    from trainer.settings.config import Config
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


@pytest.fixture(scope="module")
def runs() -> Sequence[Run]:
    return CHOSEN


@pytest.fixture(scope="module")
def read_run(runs: Sequence[Run], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], Found]:
    """What the ranks of a run have counted; all runs of one world size share a fork."""
    out = tmp_path_factory.mktemp("wire")

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


class Found(NamedTuple):
    """Traffic of a rank, the parameters outside of blocks, those of each block, and the element types sent."""

    traffic: Traffic
    root: list[Parameter]
    blocks: list[list[Parameter]]
    dtypes: dict[str, list[str]]


def _parameters(rows: list[Any]) -> list[Parameter]:
    return [Parameter(tuple(shape), trainable, product) for shape, trainable, product in rows]


def trainable(root: list[Any], blocks: list[list[Any]]) -> list[Parameter]:
    return [p for group in (*blocks, root) for p in group]


def by_file(run: Run) -> str:
    return run.file


def test_a_single_process_sends_nothing(read_run):
    assert read_run(SINGLE).traffic == single_traffic()


@pytest.mark.parametrize("run", chosen(DDP), ids=by_file)
def test_ddp(run, read_run):
    found, root, blocks, _ = read_run(run)
    parameters = trainable(root, blocks)
    assert found == ddp_traffic(parameters, run.world_size)
    size = sum(p.elements for p in parameters if p.trainable) * 4
    assert found.wire_bytes / textbook_bytes("ddp", size, run.world_size) == pytest.approx(1)


@pytest.mark.parametrize("run", chosen(FSDP), ids=by_file)
def test_fsdp(run, read_run):
    found, root, blocks, _ = read_run(run)
    ranks, micro_batches = run.world_size, run.micro_batches
    formula = sharded_traffic(root, blocks, shards=ranks, micro_batches=micro_batches)
    assert found == formula and found.wire_bytes / formula.wire_bytes == 1.0
    size = sum(p.elements for p in trainable(root, blocks)) * 4
    assert found.wire_bytes / textbook_bytes("fsdp", size, ranks, micro_batches) == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("run", chosen(HSDP), ids=by_file)
def test_hsdp(run, read_run):
    found, root, blocks, _ = read_run(run)
    axes = dict(run.settings)
    assert found == sharded_traffic(
        root, blocks, shards=axes["dp_shard"], replicas=axes["dp_replicate"], micro_batches=run.micro_batches
    )


@pytest.mark.parametrize("run", chosen(KNOBS), ids=by_file)
def test_the_knobs_of_fully_shard(run, read_run):
    found, root, blocks, _ = read_run(run)
    given = dict(run.settings)
    shards = given.get("dp_shard", run.world_size)
    assert found == sharded_traffic(
        root,
        blocks,
        shards=shards,
        replicas=run.world_size // shards,
        micro_batches=run.micro_batches,
        reduced_element=2 if given.get("reduce_dtype") == "bf16" else 4,
        reshards=given.get("reshard_after_forward") != "off",
        accumulates_sharded=given.get("accumulate") != "whole",
    )


@pytest.mark.parametrize("run", chosen(IN_16_BITS), ids=by_file)
def test_weights_of_products_are_gathered_in_16_bits_and_gradients_reduced_in_32(run, read_run):
    found, root, blocks, _ = read_run(run)
    given, ranks, micro_batches = dict(run.settings), run.world_size, run.micro_batches
    everything = trainable(root, blocks)
    gathered, size = gathered_bytes(everything, 2), sum(p.elements for p in everything) * 4
    assert gathered < 0.6 * size  # biases, norms and embeddings of places are the rest
    if run.strategy == "zero3":
        formula = (ranks - 1) / ranks * micro_batches * (2 * gathered + size)
        assert found.wire_bytes / formula == pytest.approx(1, abs=2e-4)  # padding and the norm's 8 bytes
        return
    shards = given.get("dp_shard", ranks)
    assert found == sharded_traffic(
        root,
        blocks,
        shards=shards,
        replicas=ranks // shards,
        micro_batches=micro_batches,
        product_element=2,
    )


@pytest.mark.parametrize("run", chosen(DDP_KNOBS), ids=by_file)
def test_the_knobs_of_ddp(run, read_run):
    found, root, blocks, _ = read_run(run)
    given = dict(run.settings)
    assert found == ddp_traffic(
        trainable(root, blocks),
        run.world_size,
        bucket_bytes=given.get("reduce_bucket_mib", 25) << 20,
        reduced_element=2 if given.get("reduce_dtype") == "bf16" else 4,
    )


# strategy, ranks -> operations of rank 0, sent / textbook. Two micro-batches. The causes are in the docstring above.
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


@pytest.mark.parametrize("run", chosen(FORCED), ids=by_file)
def test_forced_gathers_are_the_formula(run, read_run):
    found, root, blocks, _ = read_run(run)
    ranks, micro_batches = run.world_size, run.micro_batches
    size = sum(p.elements for p in trainable(root, blocks)) * 4
    node = 2 if run.strategy == "zeropp" else ranks
    everywhere, inside = (ranks - 1) / ranks, (node - 1) / node
    formula = size * (everywhere * (1 + micro_batches) + inside * (2 * micro_batches - 1))
    assert found.wire_bytes / formula == pytest.approx(1, abs=1e-4)  # padding and the norm's 8 bytes
    if run.strategy == "zero3":
        assert formula == pytest.approx(textbook_bytes("zero3", size, ranks, micro_batches))


@pytest.mark.parametrize("run", chosen(QUANTIZED), ids=by_file)
def test_quantized_gathers_and_reductions_are_the_formula(run, read_run):
    found, root, blocks, dtypes = read_run(run)
    given, everything = dict(run.settings), trainable(root, blocks)
    parts = given["zeropp"].split(",")
    formula = zeropp_bytes(
        everything,
        ranks=run.world_size,
        per_node=2,
        micro_batches=run.micro_batches,
        parts=parts,
        product_element=2 if given.get("precision") == "bf16" else 4,
    )
    assert found.wire_bytes / formula == pytest.approx(1, abs=1e-3)  # padding and the norm's 8 bytes
    plain = sum(p.elements for p in everything) * 4 * 3 * run.micro_batches * 3 / 4
    assert formula < {"qwz": 0.6, "qgz": 0.75, "hpz,qwz,qgz": 0.4}[given["zeropp"]] * plain
    assert ("int8" in dtypes["gathers"]) == ("qwz" in parts)
    assert dtypes["exchanges"] == (["float32", "int8"] if "qgz" in parts else [])


@pytest.mark.parametrize("run", chosen(SHIPPED), ids=by_file)
def test_what_deepspeed_sends_beyond_the_formula(run, read_run):
    operations, excess = DEEPSPEED[run.strategy, run.world_size]
    found, root, blocks, _ = read_run(run)
    size = sum(p.elements for p in trainable(root, blocks)) * 4
    assert size == 547_624 and found.operations == operations
    textbook = textbook_bytes(run.strategy, size, run.world_size, run.micro_batches)
    assert found.wire_bytes / textbook == pytest.approx(excess, abs=1e-3)


def test_buckets_are_as_many_as_ddp_makes(tmp_path):
    """Linear layers of 4 MB and more: the first bucket is closed at 1 MiB, the others at 25 MiB."""

    def wide() -> None:
        import torch
        import torch.distributed as dist
        from torch import nn

        from trainer.measuring.wire import WireCounter

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        layers = [nn.Linear(1024, 1024, bias=False) for _ in range(16)]
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
        for _ in range(2):
            model(torch.ones(1, 1024)).sum().backward()
        with WireCounter() as wire:
            model(torch.ones(1, 1024)).sum().backward()
        (tmp_path / f"{dist.get_rank()}.json").write_text(json.dumps([wire.operations, wire.wire_bytes]))

    run_ranks(wide, 2)
    operations, sent = json.loads((tmp_path / "0.json").read_text())
    formula = ddp_traffic([Parameter((1024, 1024))] * 16, 2)
    assert operations == {"all_reduce": list(formula.operations["all_reduce"])} and sent == formula.wire_bytes
    assert formula.operations["all_reduce"][0] == 4


def test_buckets():
    mib = 1 << 20
    assert ddp_buckets([]) == []
    assert ddp_buckets([mib // 2]) == [mib // 2]
    assert ddp_buckets([4 * mib] * 8) == [4 * mib, 28 * mib]
    assert ddp_buckets([4 * mib] * 9) == [4 * mib, 28 * mib, 4 * mib]


def test_every_collective_is_counted_with_its_own_formula(tmp_path):
    """The calls that a program makes, in a group of three among four, against sizes counted by hand."""

    def call_everything() -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        from trainer.measuring.wire import WireCounter

        dist.init_process_group("gloo")
        rank, group = dist.get_rank(), dist.new_group([0, 1, 2])
        if rank < 3:
            whole, part = torch.ones(12), torch.ones(4)  # 48 and 16 bytes
            with WireCounter() as wire:
                dist.all_reduce(whole, group=group)
                dist.all_gather([torch.ones(4) for _ in range(3)], part, group=group)
                dist.all_gather_into_tensor(torch.ones(12), part, group=group)
                dist.reduce_scatter_tensor(part, whole, group=group)
                dist.broadcast(whole, 0, group=group)
                dist.reduce(whole, 0, group=group)
                dist.all_to_all_single(torch.ones(12), whole, group=group)
                dist.gather(part, [torch.ones(4) for _ in range(3)] if rank == 0 else None, 0, group=group)
                dist.scatter(part, [torch.ones(4) for _ in range(3)] if rank == 0 else None, 0, group=group)
                functional.all_reduce(whole, "sum", group).wait()
                functional.all_gather_tensor(part, 0, group).wait()
                dist.barrier(group=group)  # no bytes
            third = 2 / 3
            expected = {
                "all_reduce": [2, 96],
                "all_gather": [3, 48],
                "reduce_scatter": [1, 48],
                "broadcast": [1, 48],
                "reduce": [1, 48],
                "all_to_all": [1, 48],
                "gather": [1, 16],
                "scatter": [1, 16],
            }
            assert {kind: list(pair) for kind, pair in wire.operations.items()} == expected
            sent = 2 * third * 96 + 2 * 48 + third * (48 * 4 + 16 * 2)
            assert abs(wire.wire_bytes - sent) < 1e-9 and wire.collectives == 11
        with WireCounter() as wire:
            if rank == 0:
                dist.send(torch.ones(3, dtype=torch.bfloat16), 3)
            elif rank == 3:
                dist.recv(torch.ones(3, dtype=torch.bfloat16), 0)
        assert wire.operations == ({"send": (1, 6)} if rank == 0 else {}) and wire.wire_bytes in (0, 6)

    run_ranks(call_everything, 4)


def test_the_element_types_that_are_sent_are_kept():
    def call() -> None:
        import torch
        import torch.distributed as dist

        from trainer.measuring.wire import WireCounter

        dist.init_process_group("gloo")
        with WireCounter() as wire:
            dist.all_reduce(torch.ones(4, dtype=torch.bfloat16))
            dist.all_reduce(torch.ones(1, dtype=torch.float64))  # a single number: a norm, a flag
            dist.all_reduce(torch.ones(4, dtype=torch.int64))
            dist.broadcast(torch.ones(4, dtype=torch.float16), 0)
            whole, part = torch.ones(4, dtype=torch.int8), torch.ones(2, dtype=torch.int8)
            dist.all_gather_into_tensor(whole, part)
            dist.all_to_all_single(torch.ones(2), torch.ones(2))
        assert wire.dtypes == {"reductions": {"bfloat16"}, "gathers": {"int8"}, "exchanges": {"float32"}}

    run_ranks(call, 2)
