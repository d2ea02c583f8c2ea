from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ranks import run_ranks
from trainer.data.batches import IGNORED
from trainer.parallel import loss as losses


def example():
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(2, 5, 12, generator=generator)
    labels = torch.randint(0, 12, (2, 5), generator=generator)
    labels[0, :2] = IGNORED
    return logits.requires_grad_(), labels


def expected(logits, labels, smoothing):
    flat = logits.flatten(0, 1), labels.flatten()
    return F.cross_entropy(*flat, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("rows_at_once", [3, 4096])
def test_loss_and_gradient_are_torchs(monkeypatch, rows_at_once, smoothing):
    monkeypatch.setattr(losses, "ROWS_AT_ONCE", rows_at_once)
    logits, labels = example()
    theirs = expected(logits, labels, smoothing)
    (wanted,) = torch.autograd.grad(2 * theirs, logits)
    ours = losses.token_loss(logits, labels, None, smoothing)
    (2 * ours).backward()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(logits.grad, wanted)


def test_bf16_logits_keep_their_type_and_the_loss_is_fp32():
    logits, labels = example()
    half = logits.detach().bfloat16().requires_grad_()
    loss = losses.token_loss(half, labels, None)
    loss.backward()
    assert loss.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(loss, expected(half.detach().float(), labels, 0.0))


def test_two_ranks_with_half_the_words_each():
    def run() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for smoothing in (0.0, 0.2):
            logits, labels = example()
            theirs = expected(logits, labels, smoothing)
            theirs.backward()
            at = slice(6 * dist.get_rank(), 6 * dist.get_rank() + 6)
            mine = logits.detach()[..., at].clone().requires_grad_()
            ours = losses.token_loss(mine, labels, dist.group.WORLD, smoothing)
            ours.backward()
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(mine.grad, logits.grad[..., at])

    run_ranks(run, 2)
