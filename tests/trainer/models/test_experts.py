"""Experts of one rank and their router: transformers' answers, in the products' element type, without waiting."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stratlab_spec.models.decoder_config import SHAPES
from trainer.measuring.held_tensors import local_part
from trainer.models.decoder import build_hugging_face
from trainer.models.experts import Experts, Router, add_answers
from trainer.parallel import expert

SHAPE = SHAPES["qwen_moe_tiny"]
TOKENS, K = 24, 2


@pytest.fixture
def block() -> Any:
    """transformers' mixture of experts with weights that are neither small nor alike."""
    generator = torch.Generator().manual_seed(3)
    whole = build_hugging_face(SHAPE).model.layers[0].mlp
    with torch.no_grad():
        for weight in whole.parameters():
            weight.normal_(0.0, 0.1, generator=generator)
    return whole


def draw(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, chosen, shares); nobody chooses the experts 3, 6 and 7."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, SHAPE.hidden, generator=generator)
    chosen = torch.randint(0, 3, (TOKENS, K), generator=generator)
    chosen[:, 1] = 4 + chosen[:, 1] % 2
    return tokens, chosen, torch.rand(TOKENS, K, generator=generator)


def outcome(experts: nn.Module, dtype: torch.dtype | None = None) -> list[Tensor]:
    tokens, chosen, shares = draw()
    tokens, shares = tokens.requires_grad_(), shares.requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        answers = experts(tokens, chosen, shares)
    answers.float().square().sum().backward()
    weights = [experts.gate_up_proj.grad, experts.down_proj.grad]
    return [answers.detach(), tokens.grad, shares.grad, *weights]


def test_in_fp32_they_are_those_of_transformers(block: Any) -> None:
    theirs = outcome(copy.deepcopy(block.experts))
    ours = outcome(Experts(block.experts))
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted, atol=2e-6, rtol=1e-5)
    for gradient in ours[3:]:
        assert [expert for expert in range(SHAPE.experts) if not gradient[expert].any()] == [3, 6, 7]


@pytest.fixture
def ep() -> Iterator[DeviceMesh]:
    """The axis of one rank, in this process: what travels comes back."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,), mesh_dim_names=("ep",))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("travel", "dtype"), [(False, torch.float16), (True, torch.bfloat16)])
def test_under_autocast_every_product_is_in_its_precision(block, dtype, travel, ep, monkeypatch):
    exact = outcome(Experts(copy.deepcopy(block.experts)))
    products, sent = [], []
    compute, send = F.grouped_mm, expert.all_to_all

    def send_seen(rows: Tensor, *where: Any) -> Tensor:
        sent.append(rows.dtype)
        return send(rows, *where)

    monkeypatch.setattr(expert, "all_to_all", send_seen)

    def watch(rows: Tensor, weights: Tensor, **given: Any) -> Tensor:
        products.append((rows.dtype, weights.dtype))
        return compute(rows, weights, **given)

    monkeypatch.setattr(F, "grouped_mm", watch)
    ours = Experts(block.experts)
    found = outcome(expert.TravellingExperts(ours, ep) if travel else ours, dtype)
    assert sent == ([dtype, torch.float32, dtype] if travel else [])  # tokens, weights, answers
    assert products == [(dtype, dtype)] * 6  # gate and up in one, then down; backward twice as many
    assert [t.dtype for t in found] == [dtype, *[torch.float32] * 4]
    for rounded, whole in zip(map(local_part, found), exact, strict=True):
        assert 1e-5 < float((rounded.float() - whole).norm() / whole.norm()) < 0.02


def test_answers_in_16_bits_are_added_up_in_fp32() -> None:
    """Eight answers, of which seven are lost one by one beside the first if their sum has 16 bits."""
    answers = torch.full((8, 4), 0.003, dtype=torch.bfloat16)
    answers[0] = 1.0
    places, shares = torch.arange(8)[None], torch.ones(1, 8)
    wanted = answers.float().sum(0, keepdim=True).bfloat16()
    assert wanted[0, 0] > 1.015
    for found in (add_answers(answers, places), add_answers(answers, places, shares)):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("scaled", [True, False])
def test_in_fp32_the_router_is_that_of_transformers(block: Any, scaled: bool) -> None:
    block.gate.norm_topk_prob = scaled
    found = []
    for gate in (copy.deepcopy(block.gate), Router(block.gate)):
        tokens = draw()[0].requires_grad_()
        logits, shares, chosen = gate(tokens.view(2, -1, SHAPE.hidden))
        (shares * torch.arange(1, 1 + shares.numel()).view_as(shares)).sum().backward()
        found.append([logits, shares, chosen, tokens.grad, gate.weight.grad])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_a_token_is_routed_in_fp32_whatever_the_products_are_in(block: Any) -> None:
    router, tokens = Router(block.gate), draw()[0].bfloat16()
    whole = router(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = router(tokens)
    assert [t.dtype for t in found] == [torch.float32, torch.float32, torch.int64]
    assert all(torch.equal(*pair) for pair in zip(found, whole, strict=True))
    exact = tokens.double() @ router.weight.double().T
    assert float((whole[0] - exact).detach().abs().max()) < 1e-5  # in bf16 off by some 1e-3
