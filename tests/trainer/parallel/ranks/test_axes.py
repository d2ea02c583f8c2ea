"""Each axis by itself: tp, cp and ep give the answers of one process."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.ranks import run_ranks
from tests.trainer.models.test_experts import Waits
from tests.trainer.parallel.small import make_config, whole_decoder
from trainer.measuring.held_tensors import local_part
from trainer.models.decoder_build import build_decoder
from trainer.parallel.pipeline import apply_stage


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


@pytest.mark.parametrize("ranks", [1, 4])
def test_experts_on_several_ranks_answer_as_those_of_one_do(ranks):
    """Tokens spread unevenly: some experts, and with 4 ranks whole ranks, get none."""

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
            torch.testing.assert_close(gradient, theirs[name].grad.chunk(ranks)[rank], atol=1e-5, rtol=1e-5)

    run_ranks(run, ranks)
