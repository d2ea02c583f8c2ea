from __future__ import annotations

from contextlib import nullcontext

import torch

from tests.ranks import run_ranks
from tests.trainer.models.varlen_stand_in import on_varlen
from trainer.models.packing import Bounds, build_packing

DOCUMENTS = torch.tensor([[0, 0, 0, 3, 3, 3, 3, 7], [0, 1, 1, 1, 1, 1, 1, 1]])


def test_attention_over_two_ranks_is_that_of_one():
    """One key head for four heads: ulysses must repeat it."""

    def run() -> None:
        import torch.distributed as dist
        from torch import nn
        from transformers import AttentionInterface

        from trainer.models.decoder import causal_attention
        from trainer.parallel import context

        assert context.apply_context
        dist.init_process_group("gloo")
        at = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
        generator = torch.Generator().manual_seed(0)
        whole = [torch.randn(2, heads, 8, 4, generator=generator) for heads in (4, 1, 1)]
        module = nn.Module()
        module.context_group = dist.group.WORLD
        for kind, packed, way in (
            ("ulysses", True, nullcontext),
            ("ulysses", False, on_varlen),
            ("allgather", True, on_varlen),
            ("allgather", False, nullcontext),
        ):
            documents = DOCUMENTS if packed else torch.zeros_like(DOCUMENTS)
            bounds = Bounds(documents=3, longest=7 + (not packed))

            def pack(part, documents=documents, bounds=bounds):
                return build_packing(documents, part, torch.float32, bounds)

            tracked = [tensor.clone().requires_grad_() for tensor in whole]
            wanted = causal_attention(*tracked, pack((0, 1)) if packed else None, 0.0, 0.3).transpose(1, 2)
            wanted.square().sum().backward()
            mine = [tensor[:, :, at].clone().requires_grad_() for tensor in whole]
            attend = AttentionInterface().get_interface(f"stratlab_{kind}", None)
            with way():
                given = pack((dist.get_rank(), 2) if kind == "allgather" else (0, 1))
                found, _ = attend(module, *mine, None, scaling=0.3, packing=given)
            found.square().sum().backward()
            torch.testing.assert_close(found, wanted[:, at])
            for part, tensor in zip(mine, tracked, strict=True):
                torch.testing.assert_close(part.grad, tensor.grad[:, :, at])

    run_ranks(run, 2)
