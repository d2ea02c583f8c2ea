"""The loss of a language model in chunks, with and without a teacher, against torch's of all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.data.text.token_rows import IGNORED
from trainer.memory_estimation.storages import StorageWatch
from trainer.models import chunked_cross_entropy as losses
from trainer.models.chunked_cross_entropy import Head, TaughtStates, TokenLoss, token_loss

ROWS, TOKENS, HIDDEN, WORDS = 2, 5, 8, 12


def draw_case() -> tuple[Tensor, Tensor, Tensor]:
    """States, weight of the head, labels of which two do not count."""
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(ROWS, TOKENS, HIDDEN, generator=generator).requires_grad_()
    weight = torch.randn(WORDS, HIDDEN, generator=generator).requires_grad_()
    labels = torch.randint(0, WORDS, (ROWS, TOKENS), generator=generator)
    labels[0, :2] = IGNORED
    return states, weight, labels


OTHER_HIDDEN = 6
"""Of the teacher."""


def draw_teacher(temperature: float = 3.0, share: float = 0.7) -> TaughtStates:
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(ROWS, TOKENS, OTHER_HIDDEN, generator=generator)
    return TaughtStates(states, torch.randn(WORDS, OTHER_HIDDEN, generator=generator), temperature, share)


def plain_loss(
    states: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.0, taught: TaughtStates | None = None
) -> Tensor:
    """As the papers have it, token by token: cross-entropy, and with a teacher T^2 KL of whole logits."""
    logits = (states @ weight.T).flatten(0, 1)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    labels = labels.flatten()
    hard = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing)
    if taught is None:
        return hard.sum()
    wanted = (taught.states.to(logits.dtype) @ taught.weight.to(logits.dtype).T).flatten(0, 1)
    t = taught.temperature
    soft = F.kl_div((logits / t).log_softmax(1), (wanted / t).softmax(1), reduction="none").sum(1)
    return ((1 - taught.share) * hard + taught.share * t**2 * soft)[labels != IGNORED].sum()


@pytest.mark.parametrize(
    ("chunk_tokens", "rows_at_once", "smoothing", "teacher"),
    [
        (3, 2, 0.0, None),
        (4, 256, 0.2, None),
        (1, 1, 0.2, None),
        (4096, 3, 0.0, None),
        (3, 2, 0.2, (4.0, 0.9)),
        (4, 256, 0.0, (0.5, 1.0)),
        (4096, 3, 0.2, (1.0, 0.5)),
    ],
)
def test_loss_and_gradients_are_torchs(monkeypatch, chunk_tokens, rows_at_once, smoothing, teacher):
    monkeypatch.setattr(losses, "ROWS_AT_ONCE", rows_at_once)
    states, weight, labels = draw_case()
    taught = draw_teacher(*teacher) if teacher else None
    theirs = plain_loss(states, weight, labels, smoothing, taught)
    wanted = torch.autograd.grad(2 * theirs, (states, weight))
    ours = token_loss(states, weight, labels, None, smoothing, chunk_tokens, taught)
    found = torch.autograd.grad(2 * ours, (states, weight))
    off = 2e-6 if teacher else 1e-6
    torch.testing.assert_close(ours, theirs, rtol=off, atol=off)
    for mine, plain in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, plain, rtol=10 * off, atol=10 * off)


@pytest.mark.parametrize(("chunk_tokens", "autocast"), [(3, True), (4096, False)])
def test_in_16_bits_the_loss_is_fp32_and_gradients_have_the_types_of_what_they_are_of(chunk_tokens, autocast):
    states, weight, labels = draw_case()
    if not autocast:  # gathered in 16 bits
        states, weight = (t.detach().bfloat16().requires_grad_() for t in (states, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = token_loss(states, weight, labels, chunk_tokens=chunk_tokens)
    (loss / 3).backward()
    exact = [t.detach().float().requires_grad_() for t in (states, weight)]
    theirs = plain_loss(*exact, labels)
    (theirs / 3).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, theirs, rtol=1e-2, atol=0)
    for ours, plain in zip((states, weight), exact, strict=True):
        assert ours.grad.dtype == ours.dtype
        torch.testing.assert_close(ours.grad.float(), plain.grad, rtol=0.05, atol=0.02)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def test_many_chunks_in_16_bits_are_added_up_in_fp32():
    """64 chunks: a sum of them in bf16 is wrong by more than one product is."""
    generator = torch.Generator().manual_seed(5)
    states = torch.randn(1, 4096, 16, generator=generator).bfloat16().float()
    weight = (torch.randn(24, 16, generator=generator) * 0.05).bfloat16().float().requires_grad_()
    labels = torch.randint(0, 24, (1, 4096), generator=generator) // 8 * 8
    wanted = torch.autograd.grad(plain_loss(states, weight, labels), weight)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = token_loss(states, weight, labels, chunk_tokens=64)
    assert relative(torch.autograd.grad(loss, weight)[0], wanted) < 4e-3


@pytest.mark.parametrize(("scale", "chunk_tokens"), [(2.0**16, 512), (1.0, 4096), (2.0**-20, 512)])
def test_in_fp16_no_sum_leaves_the_range_whatever_the_loss_scale(chunk_tokens, scale):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 2048, 16, generator=generator) * 4
    states[..., 0] = 40.0
    states = states.half().requires_grad_()
    weight = (torch.randn(60, 16, generator=generator) * 0.02).half().float().requires_grad_()
    labels = torch.full((1, 2048), 7)
    factor = scale / 2048
    with torch.autocast("cpu", dtype=torch.float16):
        loss = token_loss(states, weight, labels, chunk_tokens=chunk_tokens)
    (loss * factor).backward()
    exact = [t.detach().double().requires_grad_() for t in (states, weight)]
    (plain_loss(*exact, labels) * factor).backward()
    assert relative(weight.grad, exact[1].grad) < 1e-3
    if scale >= 1.0:  # the stream has 16 bits, and its gradients need the scale
        assert relative(states.grad, exact[0].grad) < 1e-2


def test_in_fp16_rare_words_learn_as_exactly_as_frequent_ones():
    """Of 150 thousand words each has a share of the gradient that fp16 alone would round to a few bits."""
    smoothing = 0.1
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 8, 16, generator=generator).half().requires_grad_()
    weight = (torch.randn(151_936, 16, generator=generator) * 0.02).half().float().requires_grad_()
    labels = torch.arange(8)[None]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = token_loss(states, weight, labels, None, smoothing)
    (loss * 2.0**16 / 8).backward()
    exact = [t.detach().double().requires_grad_() for t in (states, weight)]
    (plain_loss(*exact, labels, smoothing) * 2.0**16 / 8).backward()
    assert relative(weight.grad[8:], exact[1].grad[8:]) < 1e-3
    assert relative(states.grad, exact[0].grad) < 1e-3


class _Largest(TorchDispatchMode):
    """The most elements that any operator has given, but for those of the shapes that are known."""

    def __init__(self, known: set[tuple[int, ...]]) -> None:
        super().__init__()
        self._known, self.found = known, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        if isinstance(given, Tensor) and tuple(given.shape) not in self._known:
            self.found = max(self.found, given.numel())
        return given


def test_no_more_than_a_chunk_of_logits_is_ever_there_and_none_outlives_the_next_one():
    states, weight, labels = draw_case()
    sizes, chunk_tokens = (
        {(WORDS, HIDDEN), (HIDDEN, WORDS), (ROWS * TOKENS, HIDDEN), (ROWS, TOKENS, HIDDEN)},
        5,
    )
    with _Largest(sizes) as largest:
        token_loss(states, weight, labels, chunk_tokens=chunk_tokens).backward()
    assert largest.found == chunk_tokens * WORDS
    with StorageWatch(1) as watch:
        loss = token_loss(states, weight, labels, chunk_tokens=chunk_tokens)
        left = watch.timeline.moment(len(watch.timeline.events)).total
    given = states.nbytes + weight.nbytes + labels.nbytes
    assert left - given == states.nbytes + weight.nbytes + loss.nbytes


@pytest.mark.parametrize("taught", [None, draw_teacher()], ids=["alone", "taught"])
def test_a_frozen_head_gets_no_gradient_and_nothing_is_left_where_nothing_is_trained(taught):
    states, weight, labels = draw_case()
    if taught:
        taught.states.requires_grad_(), taught.weight.requires_grad_()
    token_loss(states, weight.detach(), labels, chunk_tokens=3, taught=taught).backward()
    wanted = torch.autograd.grad(plain_loss(states, weight, labels, taught=taught), states)[0]
    torch.testing.assert_close(states.grad, wanted, rtol=2e-5, atol=2e-5)
    assert taught is None or taught.states.grad is taught.weight.grad is None
    judged = token_loss(states.detach(), weight.detach(), labels, chunk_tokens=3)
    torch.testing.assert_close(judged, plain_loss(states, weight, labels).detach())
    assert not judged.requires_grad


def test_an_evaluation_counts_labels_and_smoothes_nothing():
    head = Head(2, 3, bias=False)
    head.loss = TokenLoss(0.3)
    head.weight.data = torch.log(torch.tensor([[0.5, 0.25], [0.25, 0.5], [0.25, 0.25]]))
    states = torch.eye(2)[None, [0, 1, 1]]
    labels = torch.tensor([[0, 0, IGNORED]])
    judged = float(head.eval()(states, labels=labels))
    assert judged == pytest.approx(torch.log(torch.tensor(8.0)).item())
    assert head.loss.measure(labels).tolist() == [2]
    head.train()
    assert float(head(states, labels=labels)) > judged and len(head.loss.measure(labels)) == 0
    torch.testing.assert_close(head(states)[0, 0].exp(), torch.tensor([0.5, 0.25, 0.25]))
