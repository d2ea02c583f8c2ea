from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.models.varlen_stand_in import on_varlen
from trainer.models.packing import Bounds, build_packing

DOCUMENTS = torch.tensor([[0, 0, 0, 3, 3, 3, 3, 7], [0, 1, 1, 1, 1, 1, 1, 1]])


def test_exchanges_are_inverse_and_move_what_they_say():
    def run() -> None:
        import torch.distributed as dist

        from trainer.parallel.context import exchange_heads, exchange_sequence

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        whole = torch.arange(2 * 4 * 6 * 3).view(2, 4, 6, 3).float()
        part = whole[:, :, 3 * rank : 3 * rank + 3].clone().requires_grad_()
        heads = exchange_heads(part, dist.group.WORLD)
        assert torch.equal(heads, whole[:, 2 * rank : 2 * rank + 2])
        back = exchange_sequence(heads, dist.group.WORLD)
        assert torch.equal(back, part)
        (back * (part.detach() + 1)).sum().backward()
        assert torch.equal(part.grad, part.detach() + 1)

    run_ranks(run, 2)


@pytest.mark.parametrize("way", [nullcontext, on_varlen], ids=["mask", "varlen"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["ulysses", "allgather"])
def test_attention_over_two_ranks_is_that_of_one(kind, packed, way):
    def run() -> None:
        import torch.distributed as dist
        from torch import nn
        from transformers import AttentionInterface

        from trainer.models.attention import causal_attention
        from trainer.parallel import context

        def pack(part):
            documents = DOCUMENTS if packed else torch.zeros_like(DOCUMENTS)
            return build_packing(
                documents, part, torch.float32, Bounds(documents=3, longest=7 + (not packed))
            )

        assert context.apply_context
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        generator = torch.Generator().manual_seed(0)
        # one key head for four heads: ulysses must repeat it
        whole = [torch.randn(2, heads, 8, 4, generator=generator) for heads in (4, 1, 1)]
        tracked = [tensor.clone().requires_grad_() for tensor in whole]
        wanted = causal_attention(*tracked, pack((0, 1)) if packed else None, 0.0, 0.3).transpose(1, 2)
        wanted.square().sum().backward()

        at = slice(4 * rank, 4 * rank + 4)
        mine = [tensor[:, :, at].clone().requires_grad_() for tensor in whole]
        module = nn.Module()
        module.context_group = dist.group.WORLD
        attend = AttentionInterface().get_interface(f"stratlab_{kind}", None)
        with way():
            given = pack((rank, 2) if kind == "allgather" else (0, 1))
            found, _ = attend(module, *mine, None, scaling=0.3, packing=given)
        found.square().sum().backward()
        torch.testing.assert_close(found, wanted[:, at])
        for part, tensor in zip(mine, tracked, strict=True):
            torch.testing.assert_close(part.grad, tensor.grad[:, :, at])

    run_ranks(run, 2)
