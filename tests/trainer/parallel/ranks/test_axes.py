"""Each axis by itself: tp, cp and ep give the answers of one process."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.ranks import run_ranks
from tests.trainer.models.test_experts import Waits
from tests.trainer.models.varlen_stand_in import on_varlen
from tests.trainer.parallel.small import make_config, whole_decoder
from trainer.measuring.held_tensors import local_part
from trainer.models.decoder_build import build_decoder
from trainer.models.packing import Bounds, build_packing
from trainer.parallel.pipeline import apply_stage
from trainer.parallel.tensor import build_plan


@pytest.mark.parametrize(
    ("model", "sequence_parallel"), [("qwen_tiny", True), ("qwen_tiny", False), ("qwen_moe_tiny", True)]
)
def test_the_plan_covers_every_parameter_but_the_experts(model, sequence_parallel):
    decoder, plan = planned(model, sequence_parallel)
    owners = {name.rpartition(".")[0] for name, _ in decoder.hf.named_parameters()}
    assert {name for name in owners if "experts" not in name} <= plan.keys()
    assert all(decoder.hf.get_submodule(name) is not None for name in plan)


def planned(model, sequence_parallel):
    decoder = build_decoder(make_config(model=model, lora_rank=2), empty=True)
    apply_stage(decoder, 0, 1)
    return decoder, build_plan(decoder, sequence_parallel)


def test_cut_parameters_stay_tied_and_frozen():
    def run() -> None:
        from trainer.parallel.tensor import apply_tensor

        dist.init_process_group("gloo")
        decoder = build_decoder(make_config(lora_rank=2), empty=True)
        trained = {name: p.requires_grad for name, p in decoder.named_parameters()}
        assert len(set(trained.values())) == 2
        apply_stage(decoder, 0, 1)
        apply_tensor(decoder, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), True)
        assert {name: p.requires_grad for name, p in decoder.named_parameters()} == trained
        assert decoder.hf.lm_head.weight is decoder.hf.model.embed_tokens.weight
        sizes = {name: p.to_local().numel() / p.numel() for name, p in decoder.named_parameters()}
        whole = {name for name, part in sizes.items() if part == 1}
        assert set(sizes.values()) == {0.5, 1}
        assert all("norm" in name or "lora_" in name for name in whole)
        assert sum("lora_A" in name for name in whole) == 3 * 4  # q, k and v of every layer
        assert sum("lora_B" in name for name in whole) == 4  # o

    run_ranks(run, 2)


DOCUMENTS = torch.tensor([[0, 0, 0, 3, 3, 3, 3, 7], [0, 1, 1, 1, 1, 1, 1, 1]])


def test_attention_over_two_ranks_is_that_of_one():
    def run() -> None:
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


@pytest.mark.parametrize("ranks", [1, 4])
def test_experts_on_several_ranks_answer_as_those_of_one_do(ranks):
    """Tokens spread unevenly: some experts, and with 4 ranks whole ranks, get none.

    The host waits once, for the sizes of what travels, in one copy; without a rank to travel to not at all.
    """

    def run() -> None:

        from trainer.parallel.expert import apply_experts

        dist.init_process_group("gloo")
        layer = whole_decoder(make_config(model="qwen_moe_tiny")).hf.model.layers[0]
        rank, ours = dist.get_rank(), copy.deepcopy(layer)
        apply_experts([ours], init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",)))
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randn(4, 6, 64, generator=generator)
        chosen = torch.randint(0, 3, (4, 6, 2), generator=generator)
        chosen[..., 1] = 4 + chosen[..., 1] % 2  # never 3, 6 or 7
        shares = torch.rand(4, 6, 2, generator=generator)
        per = 4 // ranks

        def outcome(experts: nn.Module, part: slice) -> list[torch.Tensor]:
            given = [t[part].flatten(0, 1).clone() for t in (tokens, shares)]
            given = [tensor.requires_grad_() for tensor in given]
            answer = experts(given[0], chosen[part].flatten(0, 1), given[1])
            answer.square().sum().backward()
            return [answer, given[0].grad, given[1].grad]

        wanted = outcome(layer.mlp.experts, slice(0, 4))
        copies, copy_out = [], torch.Tensor.tolist

        def counted(tensor):
            copies.append(tuple(tensor.shape))
            return copy_out(tensor)

        torch.Tensor.tolist = counted  # on a CPU no operator tells of it
        with Waits() as waits:
            found = outcome(ours.mlp.experts, slice(per * rank, per * rank + per))
        assert copies == ([(2, ranks)] if ranks > 1 else []) and waits.found == []
        for mine, whole in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, whole.chunk(ranks)[rank], atol=1e-5, rtol=1e-5)
        theirs = dict(layer.mlp.experts.named_parameters())
        for name, parameter in ours.mlp.experts.named_parameters():
            gradient = local_part(parameter.grad)
            assert gradient.shape[0] == 8 // ranks
            expected = theirs[name].grad.chunk(ranks)[rank]
            torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)

    run_ranks(run, ranks)
