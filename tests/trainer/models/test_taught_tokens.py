"""The loss of a language model with a teacher, in chunks, against torch's of all logits at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.models.test_token_loss import HIDDEN, ROWS, TOKENS, WORDS, draw_case, relative
from trainer.data.batches import IGNORED
from trainer.models import chunked_cross_entropy as losses
from trainer.models.chunked_cross_entropy import Head, TaughtStates, TokenLoss, token_loss

OTHER_HIDDEN = 6
"""Of the teacher."""


def draw_teacher(temperature: float = 3.0, share: float = 0.7) -> TaughtStates:
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(ROWS, TOKENS, OTHER_HIDDEN, generator=generator)
    return TaughtStates(states, torch.randn(WORDS, OTHER_HIDDEN, generator=generator), temperature, share)


def plain_loss(
    states: Tensor, weight: Tensor, labels: Tensor, taught: TaughtStates, smoothing: float = 0.0
) -> Tensor:
    """As the paper has it, token by token: cross-entropy and T^2 KL of whole logits."""
    logits = (states @ weight.T).flatten(0, 1)
    wanted = (taught.states.to(logits.dtype) @ taught.weight.to(logits.dtype).T).flatten(0, 1)
    labels, t = labels.flatten(), taught.temperature
    hard = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing)
    soft = F.kl_div((logits / t).log_softmax(1), (wanted / t).softmax(1), reduction="none").sum(1)
    each = (1 - taught.share) * hard + taught.share * t**2 * soft
    return each[labels != IGNORED].sum()


@pytest.mark.parametrize(
    ("chunk_tokens", "rows_at_once", "temperature", "share", "smoothing"),
    [(3, 2, 4.0, 0.9, 0.2), (4, 256, 0.5, 1.0, 0.0), (4096, 3, 1.0, 0.5, 0.2)],
)
def test_loss_and_gradients_are_torchs(
    monkeypatch, chunk_tokens, rows_at_once, temperature, share, smoothing
):
    monkeypatch.setattr(losses, "ROWS_AT_ONCE", rows_at_once)
    states, weight, labels = draw_case()
    taught = draw_teacher(temperature, share)
    theirs = plain_loss(states, weight, labels, taught, smoothing)
    wanted = torch.autograd.grad(2 * theirs, (states, weight))
    ours = token_loss(states, weight, labels, None, smoothing, chunk_tokens, taught)
    found = torch.autograd.grad(2 * ours, (states, weight))
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)
    for mine, plain in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, plain, rtol=2e-5, atol=2e-5)


def test_the_student_that_says_what_the_teacher_says_is_at_no_distance():
    states, weight, labels = draw_case()
    same = TaughtStates(states.detach(), weight.detach(), 2.0, 1.0)
    loss = token_loss(states, weight, labels, taught=same)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-5) and float(states.grad.abs().max()) < 1e-6


@pytest.mark.parametrize("temperature", [1.0, 100.0])
def test_in_fp16_the_temperature_does_not_leave_the_range(temperature):
    """At T the logits' gradient of a token is as large as T, where teacher and student are sure of different words."""
    states = (torch.eye(WORDS)[None, :TOKENS] * 900).half().requires_grad_()
    weight = torch.eye(WORDS).half().float().requires_grad_()
    labels = torch.arange(TOKENS)[None]
    other = TaughtStates(states.detach().float().roll(1, 2), torch.eye(WORDS), temperature, 1.0)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = token_loss(states, weight, labels, taught=other)
    (loss / TOKENS).backward()
    exact = [t.detach().double().requires_grad_() for t in (states, weight)]
    (plain_loss(*exact, labels, other) / TOKENS).backward()
    assert torch.isfinite(weight.grad).all() and relative(weight.grad, exact[1].grad) < 1e-3
    assert relative(states.grad, exact[0].grad) < 1e-3


def test_a_frozen_head_gets_no_gradient_and_the_teacher_none_at_all():
    states, weight, labels = draw_case()
    taught = draw_teacher()
    taught.states.requires_grad_(), taught.weight.requires_grad_()
    token_loss(states, weight.detach(), labels, chunk_tokens=3, taught=taught).backward()
    wanted = torch.autograd.grad(plain_loss(states, weight, labels, taught), states)[0]
    torch.testing.assert_close(states.grad, wanted, rtol=2e-5, atol=2e-5)
    assert taught.states.grad is None and taught.weight.grad is None


def test_the_head_hands_it_on():
    states, weight, labels = draw_case()
    head = Head(HIDDEN, WORDS, bias=False)
    head.loss, head.weight.data = TokenLoss(), weight.detach()
    taught = draw_teacher()
    found = float(head(states, labels=labels, taught=taught).detach())
    assert found == pytest.approx(float(plain_loss(states, weight, labels, taught).detach()), rel=1e-5)
