"""qwz and qgz among real processes, on numbers that their blocks hold exactly: what differs is a fault.

The kernel's place has the stand-in of tests/quantizer_stand_in.py.
"""

import functools
from types import SimpleNamespace
from typing import Any

from tests.ranks import run_ranks


def whole_steps(elements: int, half: int) -> Any:
    """Whole numbers from -half to half - 1 in an order that repeats nowhere near a block."""
    import torch

    return (torch.arange(elements) * 7919 % 10007 % (2 * half) - half).float()


def test_the_mean_of_gradients_arrives_at_each_owner():
    """4 ranks in 2 nodes. With gradients v, 0, 2v, 2v each node's sum and all sums have 4 bits; the mean is 5/4 v.

    8192 elements are 2048 on each rank; 8190 are 2048 and 2046 on the last one, filled up with zeros; 4 x 5 go plain.
    """

    def reduce() -> None:
        import torch
        import torch.distributed as dist

        from benchmarks.gpu.quantizer_formula import StandInQuantizer
        from trainer.engines.quantization import REDUCTION, apply_quantized_reduction
        from trainer.measuring.operators import WireCounter

        dist.init_process_group("gloo")
        rank, mine = dist.get_rank(), (1.0, 0.0, 2.0, 2.0)[dist.get_rank()]
        sizes = {"matrix": 8192, "bias": 20, "odd": 8190}
        values = {name: whole_steps(size, 8) * 2.0**-40 for name, size in sizes.items()}
        parameters = [
            SimpleNamespace(name=name, ds_numel=size, grad=(mine * values[name]).view(2, -1))
            for name, size in sizes.items()
        ]

        def plain(given, dtype):
            assert [each.name for each in given] == ["bias"] and dtype == torch.bfloat16
            return [torch.full((5,), 3.0)]

        optimizer = SimpleNamespace(**{REDUCTION: plain})
        apply_quantized_reduction(optimizer, StandInQuantizer(), per_node=2)
        with WireCounter() as wire:
            found = dict(zip(sizes, getattr(optimizer, REDUCTION)(parameters, torch.bfloat16), strict=True))
        assert found["bias"].tolist() == [3.0] * 5
        for name, length in (("matrix", 2048), ("odd", 2048)):
            expected = 1.25 * values[name][rank * length : (rank + 1) * length]
            assert torch.equal(found[name], expected), name
        # 4 blocks of each of two shards, for 2 x 2 ranks inside and 2 between; numbers and scales
        assert wire.operations == {"all_to_all": (4, (4 + 2) * 8 * (256 + 4))}
        assert wire.wire_bytes == (4 + 2) * 8 * 260 / 2

    run_ranks(reduce, 4)


def test_gathered_weights_have_8_bits_and_the_type_that_they_are_gathered_in():
    """A matrix of 41 x 129 on 2 ranks, 2645 and 2644 elements: its last block is filled up. The bias goes as it is."""

    def gather(gathered: str, values: str) -> None:
        import deepspeed
        import deepspeed.ops
        import torch
        import torch.distributed as dist
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
        from torch import nn

        from benchmarks.gpu.quantizer_formula import StandInQuantizer
        from trainer.engines.quantization import apply_quantized_gathers
        from trainer.measuring.operators import WireCounter

        deepspeed.ops.__compatible_ops__ = {}  # or it compiles collectives of its own, as in trainer/strategies/zero.py
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        torch.manual_seed(3)
        model = nn.Linear(129, 41)
        with torch.no_grad():
            if values == "whole steps":
                model.weight.copy_(whole_steps(41 * 129, 128).view(41, 129) / 1024)
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        deepspeed.zero.Init(module=model, dtype=torch.float32)
        weight, bias = model.weight, model.bias
        if gathered == "bfloat16":
            weight.comm_dtype = torch.bfloat16
        if dist.get_rank() == 1:
            weight.ds_tensor[-1] = 1e6  # its filling, which is whatever the memory held
        apply_quantized_gathers(model.parameters(), StandInQuantizer())
        with WireCounter() as wire:
            handle = weight.all_gather_coalesced([bias, weight])
            assert weight.ds_status == ZeroParamStatus.INFLIGHT
            handle.wait()
            handle.wait()
        assert {each.ds_status for each in (weight, bias)} == {ZeroParamStatus.AVAILABLE}
        assert torch.equal(bias, before["bias"]) and weight.dtype == torch.float32
        if values == "whole steps":
            assert torch.equal(weight, before["weight"])
        else:
            error = (weight - before["weight"]).abs().max() / before["weight"].abs().max()
            assert 1 / 1000 < error < 1 / 64
            assert torch.equal(weight.to(torch.bfloat16).float(), weight) == (gathered == "bfloat16")
        # 6 blocks with their scales; 21 elements of the bias
        assert wire.operations == {"all_gather": (3, 6 * (512 + 4) + 21 * 4)}
        weight.partition()
        weight.all_gather()  # as for a checkpoint: with all its bits
        assert torch.equal(weight, before["weight"])
        dist.barrier()

    for gathered, values in (("float32", "whole steps"), ("float32", "any"), ("bfloat16", "any")):
        run_ranks(functools.partial(gather, gathered, values), 2)
